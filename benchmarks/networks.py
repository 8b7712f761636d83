"""The networks of PyTorch that benchmarks train, by mpifed and by hand; both build them from the same seed."""

from __future__ import annotations

from torch import nn


def cnn() -> nn.Module:
    """Two 5 x 5 convolutions (16, 32 channels) with ReLU and 2 x 2 maxima, 128 units: 215,370 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """784-200-200-10 with ReLU, the 2NN of McMahan et al. (AISTATS 2017): 199,210 parameters."""
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))
