"""Batch norms, which mix the samples of a batch, are replaced by group norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mpifed.maths.objectives import TorchNetwork
from mpifed.models import replace_batch_norm


@pytest.mark.parametrize(("layer", "shape", "groups"), [
    (nn.BatchNorm2d(64), (64, 3, 3), 16), (nn.BatchNorm1d(10), (10,), 2), (nn.BatchNorm1d(3), (3, 4), 1),
    (nn.BatchNorm3d(512, eps=0.1), (512, 1, 2, 1), 32), (nn.BatchNorm2d(8, affine=False), (8, 2, 2), 2),
])  # fmt: skip
def test_batch_norms_are_replaced(layer: nn.Module, shape: tuple[int, ...], groups: int) -> None:
    """At any depth, by the same numbers of channels, in groups of four at least; with the numbers it had."""
    if layer.affine:
        nn.init.normal_(layer.weight)
    net = replace_batch_norm(nn.Sequential(nn.Sequential(nn.Identity(), layer), nn.ReLU()))
    norm = net[0][1]
    assert isinstance(norm, nn.GroupNorm) and isinstance(replace_batch_norm(layer), nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels, norm.eps) == (groups, shape[0], layer.eps)
    assert (norm.weight is None) if not layer.affine else torch.equal(norm.weight, layer.weight)
    x = torch.randn(3, *shape, dtype=torch.float32)
    torch.testing.assert_close(net(x)[:1], net(x[:1]))


def normalized(outputs: int) -> nn.Module:
    return replace_batch_norm(
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, outputs))
    )


def test_what_is_replaced_is_not_refused() -> None:
    assert TorchNetwork("test_torch_norms:normalized", (1, 8, 8)).check(64, 10) == []
    with pytest.raises(ValueError, match="LazyBatchNorm2d: has no channels yet"):
        replace_batch_norm(nn.Sequential(nn.LazyBatchNorm2d()))
