"""PyTorch modules to begin with, for `[model] name = "torch"`, `build = "mpifed.models:cnn"`.

Images have shape [c, h, w]. None of them normalizes over a batch or draws random numbers. `replace_batch_norm` makes of
your own one that does not.
"""

from __future__ import annotations

import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two hidden layers of 200 units with ReLU: the 2NN of McMahan et al. (AISTATS 2017, arXiv:1602.05629)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
        nn.Linear(200, outputs),
    )  # fmt: skip


def cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The CNN of McMahan et al. 2017: two 5 x 5 convolutions (32, 64) with ReLU and 2 x 2 maxima, 512 units, ReLU.

    1,663,370 parameters for images of [1, 28, 28] and ten classes, as they count.
    """
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(), nn.Linear(512, outputs),
    )  # fmt: skip


def small_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two strided 3 x 3 convolutions (8, 16 channels) with group norms and ReLU, and a linear layer."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * math.ceil(height / 4) * math.ceil(width / 4), outputs),
    )  # fmt: skip


def replace_batch_norm(net: nn.Module) -> nn.Module:
    """The module with `GroupNorm` in the place of all batch norms, which no sum over samples can train.

    Groups are the most, up to 32, that divide the channels and have four or more each; scales and shifts are kept
    (Y. Wu, K. He: "Group Normalization", ECCV 2018, arXiv:1803.08494; for federated data K. Hsieh et al., ICML 2020).

    Parameters
    ----------
    net : is changed, but for a batch norm itself

    Raises
    ------
    ValueError
        where a batch norm is lazy, and does not know its channels yet.
    """
    if not isinstance(net, _BatchNorm):
        for name, layer in net.named_children():
            setattr(net, name, replace_batch_norm(layer))
        return net
    channels = net.num_features
    if not channels:
        raise ValueError(f"{type(net).__name__}: has no channels yet; let a sample pass before, or name them")
    groups = max(number for number in range(1, min(32, max(1, channels // 4)) + 1) if channels % number == 0)
    norm = nn.GroupNorm(groups, channels, net.eps, net.affine)
    if net.affine:
        norm.weight, norm.bias = net.weight, net.bias
    return norm
