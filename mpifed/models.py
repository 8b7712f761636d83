"""PyTorch modules to begin with, for `[model] name = "torch"`, `build = "mpifed.models:cnn"`.

Images have shape [c, h, w]. None of them normalizes over a batch or draws random numbers.
"""

from __future__ import annotations

import math

from torch import nn


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
