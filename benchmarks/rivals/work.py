"""The work that every framework does: cases, data, network, minibatches, the clock."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch.nn.functional import cross_entropy, silu
from torch.nn.utils import parameters_to_vector

HIDDEN, CLASSES, PENALTY, WARM_UP = 128, 10, 1e-5, 1
Rows: TypeAlias = tuple[torch.Tensor, torch.Tensor]


class Case(NamedTuple):
    """The work of one round: FedAvg, of which one local step is FedSGD. All shards are of one size."""

    clients: int
    batch: int
    step: float
    present: int  # clients drawn in a round
    steps: int = 1  # local steps; 0: one local epoch
    shuffle: bool = True  # otherwise rows come in their order, for comparing results


CASES = {
    "1": Case(10, batch=100, step=0.5, present=10),
    "2": Case(100, batch=30, step=0.1, present=5, steps=0),
    "3": Case(1000, batch=10, step=0.5, present=1000),
    "step": Case(6, batch=70, step=0.5, present=6, shuffle=False),  # those in order are compared with NumPy
    "epoch": Case(6, batch=30, step=0.1, present=6, steps=0, shuffle=False),
}
name, rounds, folder, model_path = os.environ["RIVALS_WORK"].split(":")  # which Ray's workers inherit
CASE, ROUNDS, DATA = CASES[name], int(rounds), Path(folder)


@cache
def shard(client: int) -> Rows:
    """A client's rows and labels."""
    with np.load(DATA / f"shard-{client:05d}.npz") as found:
        return torch.from_numpy(found["x"].astype("f4")), torch.from_numpy(found["y"].astype("i8"))


class Network(torch.nn.Module):
    """p - 128 - 10 without biases, swish, from one start; counts what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(784, HIDDEN, bias=False)
        self.second = torch.nn.Linear(HIDDEN, CLASSES, bias=False)
        self.rows = self.steps = 0
        rng = np.random.default_rng(1)
        for layer in self.parameters():  # the start of loops.py
            outputs, inputs = layer.shape
            drawn = rng.uniform(-1, 1, (inputs, outputs)) * (6 / (inputs + outputs)) ** 0.5
            layer.data = torch.from_numpy(drawn.T.astype("f4", order="C"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        self.steps += 1
        return self.second(silu(self.first(x)))

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        """As pfl calls it."""
        return cross_entropy(self(x), y)


@cache
def network() -> Network:
    """That of this process."""
    return Network()


def optimizer(parameters: object, lr: float = CASE.step) -> torch.optim.SGD:
    """SGD with the slope of penalty ||w||^2."""
    return torch.optim.SGD(parameters, lr, weight_decay=2 * PENALTY)  # type: ignore[arg-type]


def minibatches(data: Rows) -> Iterator[Rows]:
    """Those of a client in one round."""
    X, y = data
    order = torch.randperm(len(y)) if CASE.shuffle else torch.arange(len(y))
    for rows in order[: CASE.steps * CASE.batch or None].split(CASE.batch):
        yield X[rows], y[rows]


marks: list[float] = []


def report(model: torch.nn.Module, rows: int, steps: int) -> None:
    """Print the result, one line of JSON, and write the model; rows and steps are of all clients and rounds."""
    assert len(marks) == WARM_UP + ROUNDS, f"{len(marks)} rounds were played"
    np.save(model_path, parameters_to_vector(model.parameters()).detach().numpy())
    seconds = float(np.median(np.diff(marks[WARM_UP - 1 :])))
    print(json.dumps({"seconds_per_round": seconds, "rows": rows, "steps": steps}), flush=True)


def mark() -> None:
    """The end of a round."""
    marks.append(time.perf_counter())
