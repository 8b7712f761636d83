"""Accuracy by rounds, and the first round that reaches a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobs.mcmahan.names import Row
from jobs.reproduction.results import Floats, Rounds
from jobs.reproduction.runs import points_of
from mpifed.files.history import read_history


class Run(NamedTuple):
    """One seed."""

    rounds: Rounds  # [T] measured
    accuracy: Floats  # [T] on the test images

    def reached(self, target: float) -> float | None:
        """The round at which the best accuracy so far, interpolated, comes to the target; None if it does not."""
        return rounds_to(self.rounds, self.accuracy, target)


class Curve(NamedTuple):
    """The seeds of a row, as far as they have come."""

    row: Row
    runs: Sequence[Run]


def rounds_to(rounds: Rounds, accuracy: Floats, target: float) -> float | None:
    """As the paper counts: on the curve [T] of the best accuracy so far, linear between the rounds measured."""
    best = np.maximum.accumulate(accuracy)
    here = int(np.searchsorted(best, target))  # the first that is not below
    if here == len(best):
        return None
    if here == 0:
        return float(rounds[0])
    share = (target - best[here - 1]) / (best[here] - best[here - 1])
    return float(rounds[here - 1] + share * (rounds[here] - rounds[here - 1]))


def read_run(folder: Path) -> Run | None:
    """What a run has measured, also while it goes on or was interrupted; None without a round."""
    if not (folder / "history.csv").exists():
        return None
    history = read_history(folder)
    rounds = history["round"].astype(np.int64)
    if not len(rounds) or rounds[-1] == 0:
        return None
    return Run(rounds, history["test_accuracy"])


def read_curve(row: Row, folder: Path) -> Curve | None:
    """The runs of a sweep over seeds; None without any."""
    found = [run for point in points_of(folder) if (run := read_run(point)) is not None]
    return Curve(row, found) if found else None
