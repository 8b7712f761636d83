"""What all adapters share: the work, the data, the clock. Imports NumPy and the standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from processes import cpu_s, family

HIDDEN, CLASSES, PENALTY = 128, 10, 1e-5
NETWORK = "RIVALS_NETWORK"  # environment variable: the network of the case, which workers import
LAUNCHED = "RIVALS_LAUNCHED"  # environment variable: time.time() just before the launch


class Case(NamedTuple):
    """The work of one round: FedAvg, of which one local step is FedSGD. All shards are of one size."""

    clients: int  # N
    batch: int
    step: float  # of every round: a step that falls with the rounds costs the same
    present: int = 0  # clients drawn in a round; 0: all
    steps: int = 1  # local steps; 0: one local epoch
    network: str = ""  # 784-128-10 without biases and with swish; "cnn": see `start_model`
    shuffle: bool = True  # otherwise the rows come in their order, for comparing results

    def rows(self, samples: int) -> int:
        """The rows that one round reads, of clients with so many samples."""
        return (self.present or self.clients) * (self.steps * self.batch or samples)

    def local_steps(self, samples: int) -> int:
        """The steps of one round, over all clients."""
        return (self.present or self.clients) * (self.steps or -(-samples // self.batch))


CASES = {
    "1": Case(10, batch=100, step=0.5),
    "2": Case(100, batch=30, step=0.1, present=5, steps=0),
    "3": Case(1000, batch=10, step=0.5),
    "cnn": Case(8, batch=20, step=0.05, steps=5, network="cnn"),
    "cnn-epoch": Case(6, batch=30, step=0.1, steps=0, network="cnn", shuffle=False),
    "step": Case(6, batch=70, step=0.5, shuffle=False),  # those in order are compared with reference.py
    "epoch": Case(6, batch=30, step=0.1, steps=0, shuffle=False),
}


class Work(NamedTuple):
    """What an adapter is asked for."""

    name: str
    case: Case
    setting: str
    rounds: int  # that are timed
    warm_up: int  # rounds before them
    data: Path
    model: Path | None  # where the last model goes

    @property
    def all_rounds(self) -> int:
        return self.warm_up + self.rounds


def given(about: str, settings: tuple[str, ...]) -> Work:
    """The work, from the command line."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("setting", choices=settings)
    parser.add_argument("rounds", type=int)
    parser.add_argument("data", type=Path, help="folder of shard-*.npz: x [s, p] float32, y [s]")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--model", type=Path, help="write the last model here, flat, as .npy")
    asked = parser.parse_args()
    case = CASES[asked.case]
    return Work(asked.case, case, asked.setting, asked.rounds, asked.warm_up, asked.data.resolve(), asked.model)


def shards(folder: Path, which: range | None = None) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The clients' data, X [s, p] and y [s], all in memory."""
    paths = sorted(folder.glob("shard-*.npz"))
    if not paths:
        raise SystemExit(f"{folder}: no shard-*.npz; let rivals.py prepare them")
    found = []
    for client in which if which is not None else range(len(paths)):
        with np.load(paths[client]) as shard:
            found.append((shard["x"].astype(np.float32), shard["y"].astype(np.int64)))
    return found


def start_model(features: int, network: str = "") -> tuple[NDArray[np.float32], ...]:
    """The start of every adapter: weights [p, hidden] and [hidden, classes], no biases; or those of the CNN.

    That has 5 x 5 convolutions with 16 and 32 channels, each with ReLU and 2 x 2 maxima, and 128 units with ReLU:
    weights and biases of the four layers, as PyTorch has them, 215,370 numbers.
    """
    rng = np.random.default_rng(1)
    if network == "cnn":
        kernels = (16, 1, 5, 5), (32, 16, 5, 5), (128, 32 * 7 * 7), (CLASSES, 128)
        both = [(rng.uniform(-1, 1, shape) * (3 / np.prod(shape[1:])) ** 0.5, np.zeros(shape[0])) for shape in kernels]
        return tuple(part.astype(np.float32) for pair in both for part in pair)
    shapes = (features, HIDDEN), (HIDDEN, CLASSES)
    first, second = (rng.uniform(-1, 1, shape) * (6 / sum(shape)) ** 0.5 for shape in shapes)
    return first.astype(np.float32), second.astype(np.float32)


class Clock:
    """Marks the rounds; lives in the process of the server. The processes are all that the launch started."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.startup_s: float | None = None
        self.marks: list[float] = []
        self.cpu_s = 0.0

    def start(self) -> None:
        if self.startup_s is None:
            self.startup_s = time.time() - float(os.environ.get(LAUNCHED, "nan"))

    def tick(self) -> None:
        self.marks.append(time.perf_counter())
        if len(self.marks) in (self.work.warm_up, self.work.all_rounds):
            self.cpu_s = cpu_s(family()) - self.cpu_s

    def report(self, w: tuple[Any, ...], rows: int | None, steps: int | None, **more: Any) -> None:
        """Print the result: one line of JSON.

        Parameters
        ----------
        w : the last model, as `start_model` has it
        rows, steps : read and taken by all clients in all rounds with the warm-up; None where no count was to be had
        more : what else is worth knowing, such as versions
        """
        marks = self.marks[self.work.warm_up - 1 :]
        if len(self.marks) != self.work.all_rounds:
            raise SystemExit(f"{len(self.marks)} rounds were played, not {self.work.all_rounds}")
        flat = np.concatenate([np.asarray(part, np.float32).ravel() for part in w])
        if self.work.model is not None:
            np.save(self.work.model, flat)
        result = {
            "rounds": self.work.rounds,
            "seconds_per_round": float(np.median(np.diff(marks))),
            "total_s": marks[-1] - marks[0],
            "cpu_s_per_round": self.cpu_s / self.work.rounds,
            "startup_s": self.startup_s,
            "rows": rows,
            "steps": steps,
            "rounds_counted": self.work.all_rounds,
            "norm": float(np.linalg.norm(flat.astype(np.float64))),
        }
        print(json.dumps(result | more), flush=True)
