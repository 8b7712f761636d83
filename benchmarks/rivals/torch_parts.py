"""What the adapters of libraries on PyTorch share: the network, and how a client's minibatches are drawn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from common import CLASSES, HIDDEN, NETWORK, PENALTY, Case, Work, shards, start_model
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import silu

DECAY = 2 * PENALTY  # of an optimizer: the slope of penalty ||w||^2
Tensors = tuple[torch.Tensor, torch.Tensor]


class Swish(torch.nn.Module):
    """p - 128 - 10 without biases, swish; the start is that of all adapters. Counts what it is trained with."""

    def __init__(self, features: int = 784) -> None:
        super().__init__()
        self.first = torch.nn.Linear(features, HIDDEN, bias=False)
        self.second = torch.nn.Linear(HIDDEN, CLASSES, bias=False)
        self.rows = self.steps = 0
        with torch.no_grad():
            for layer, weights in zip((self.first, self.second), start_model(features), strict=True):
                layer.weight.copy_(torch.from_numpy(weights.T))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.rows += len(x)
            self.steps += 1
        return self.second(silu(self.first(x)))


class Cnn(torch.nn.Module):
    """The CNN of `start_model`, likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 28, 28)),
            nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, CLASSES),
        )  # fmt: skip
        self.rows = self.steps = 0
        with torch.no_grad():
            for parameter, values in zip(self.parameters(), start_model(784, "cnn"), strict=True):
                parameter.copy_(torch.from_numpy(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.rows += len(x)
            self.steps += 1
        return self.layers(x)


Network: Any = Cnn if os.environ.get(NETWORK) == "cnn" else Swish


def weights(model: torch.nn.Module) -> tuple[NDArray[np.float32], ...]:
    """The parameters of a network, or of a state dictionary with its names, as `start_model` has them."""
    state = model if isinstance(model, dict) else model.state_dict()
    if Network is Cnn:
        return tuple(tensor.detach().numpy() for tensor in state.values())
    first, second = (state[f"{name}.weight"].detach().numpy().T.copy() for name in ("first", "second"))
    return first, second


def tensors(work: Work, which: range | None = None) -> list[Tensors]:
    """The clients' data as tensors in memory."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in shards(work.data, which)]


class Batches:
    """The minibatches of a client in one round, drawn without replacement from tensors; again in every iteration."""

    def __init__(self, data: Tensors, case: Case) -> None:
        self.data, self.case = data, case

    def __iter__(self) -> Iterator[Tensors]:
        X, y = self.data
        order = torch.randperm(len(y)) if self.case.shuffle else torch.arange(len(y))
        for rows in order[: self.case.steps * self.case.batch or None].split(self.case.batch):
            yield X[rows], y[rows]
