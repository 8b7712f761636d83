"""PyTorch is the user's: its settings and its generator are as they were, whatever has passed; runs in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mpifed.core.errors import UsageError
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import TorchNetwork
from mpifed.models import replace_batch_norm


def settings() -> list[Any]:
    return [
        torch.get_num_threads(), torch.get_deterministic_debug_mode(), torch.get_default_dtype(),
        torch.is_grad_enabled(), torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32, torch.random.get_rng_state().tolist(),
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def as_a_user_has_them() -> Iterator[None]:
    before = settings()[:5]
    torch.set_num_threads(2)
    torch.set_deterministic_debug_mode("warn")
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(11)
    with torch.no_grad():
        yield
    torch.set_num_threads(before[0])
    torch.set_deterministic_debug_mode(before[1])
    torch.set_default_dtype(before[2])
    torch.backends.cudnn.benchmark = before[4]
    torch.backends.cuda.matmul.allow_tf32 = False


def passes(build: str = "nets:dropped") -> Any:
    """All that is done with a network, of five samples."""
    objective, rng = TorchNetwork(build, (1, 8, 8)), np.random.default_rng(1)
    assert objective.check(64, 10) == []
    model = objective.start(64, 10, rng, "float32")
    X, y, keys = rng.standard_normal((1, 5, 64), "f4"), np.arange(5)[None], np.array([3])
    scores, back = objective.forward(model, X, keys)
    weights = np.ones((1, 5))
    return [
        *back(objective.slope((), scores, y, weights)).head, objective.loss((), objective.scores_of(model, X), y),
        *objective.gradient(model, X, y, weights, keys).head,
        *clipped_gradient(objective, model, X, y, weights, 0.1, False, keys).head,
    ]  # fmt: skip


def setting() -> nn.Module:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    raise ValueError("not today")


def refused(build: str) -> Callable[[], Any]:
    return lambda: TorchNetwork(build).check(64, 10)


def failing() -> None:
    with pytest.raises(UsageError, match="not today"):
        refused("test_torch_settings:setting")()


def in_a_pass() -> None:
    objective = TorchNetwork("nets:without_samples", (1, 8, 8))
    model = objective.start(64, 10, np.random.default_rng(0), "float32")
    with pytest.raises((ValueError, IndexError, RuntimeError)):  # by versions of PyTorch
        objective.scores_of(model, np.zeros((1, 0, 64), "f4"))


@pytest.mark.parametrize(
    "use",
    [passes, refused("careless:refused_wide"), refused("careless:refused_counting"), failing, in_a_pass],
    ids=["passes", "refused", "refused in a pass", "failing", "in a pass"],
)
def test_settings_are_put_back(use: Callable[[], Any]) -> None:
    before = settings()
    use()
    assert settings() == before


def test_runs_in_threads() -> None:
    """Each has the bits that it has alone, and the user's own thread its settings."""
    alone, before = [passes(), passes("nets:convolutions")], settings()
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(passes, ["nets:dropped", "nets:convolutions"] * 4))
    for number, each in enumerate(several):
        for came, expected in zip(each, alone[number % 2], strict=True):
            np.testing.assert_array_equal(came, expected)
    assert settings() == before


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
    assert TorchNetwork("test_torch_settings:normalized", (1, 8, 8)).check(64, 10) == []
    with pytest.raises(ValueError, match="LazyBatchNorm2d: has no channels yet"):
        replace_batch_norm(nn.Sequential(nn.LazyBatchNorm2d()))
