"""What the runs of one curve have measured, over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobs.reproduction.results import Floats, Rounds, read_runs
from mpifed.files.model_file import read_model


class Line(NamedTuple):
    """One number of a curve, as it is compared: the lower the cost, the better."""

    rounds: Rounds  # [T]
    cost: Floats  # [seeds, T]


class Curve(NamedTuple):
    """Runs that differ in their seed alone."""

    name: str
    rounds: Rounds  # [T]
    loss: Floats  # [seeds, T] mean training loss, without the two penalties
    objective: Floats  # [seeds, T] F, with them: (24)
    accuracy: Floats  # [seeds, T] on the test data
    epsilon: Floats  # [seeds, T] of the worst client, rigorous, were the noise secret; NaN without privacy
    paper: Floats  # [seeds, T] of the worst client by (20)
    zeros: Floats  # [seeds] share of the last model's parameters

    @property
    def seeds(self) -> int:
        return len(self.loss)

    def by(self, measure: str) -> Line:
        """`loss` or `accuracy`, as a cost."""
        return Line(self.rounds, self.loss if measure == "loss" else -self.accuracy)

    def last(self, measure: str) -> Floats:
        """[seeds] at the end."""
        return (self.loss if measure == "loss" else self.accuracy)[:, -1]


def read_curve(name: str, run_dirs: Sequence[Path], rounds: int) -> Curve | None:
    """The runs that have come to round `rounds`; None without any."""
    names = "train_loss", "objective", "test_accuracy", "epsilon_if_secret", "epsilon_paper"
    runs = read_runs(run_dirs, rounds, names)
    if runs is None:
        return None
    loss, objective, accuracy, epsilon, paper = runs.columns.values()
    zeros = np.array([_zeros(run) for run in runs.folders])
    return Curve(name, runs.rounds, loss, objective, accuracy, epsilon, paper, zeros)


def _zeros(run: Path) -> float:
    arrays = read_model(run / "model.h5").values()
    return 1 - sum(np.count_nonzero(one) for one in arrays) / sum(one.size for one in arrays)
