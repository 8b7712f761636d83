"""What the runs of one curve have measured, over their seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import Series

from jobs.reproduction.results import Floats, read_runs
from mpifed.results.frames import read


class Curve(NamedTuple):
    """Runs that differ in their seed alone."""

    name: str
    rounds: NDArray[np.int64]  # [T]
    cost: Floats  # [seeds, T] training cost F
    accuracy: Floats  # [seeds, T] on the test data
    norm: Floats  # [seeds, T] ||w||^2
    limit: float | None  # U
    penalty: float  # lambda
    residual: Floats  # [seeds, T] of the KKT certificate; NaN where there is none

    def columns(self) -> dict[str, Floats]:
        """[seeds, T] each, as they are written."""
        settings = {"limit": np.nan if self.limit is None else self.limit, "l2": self.penalty}
        whole = {name: np.full_like(self.cost, value) for name, value in settings.items()}
        measured = {"train_loss": self.cost, "test_accuracy": self.accuracy, "norm_squared": self.norm}
        return measured | {"kkt_residual": self.residual} | whole


def read_curve(name: str, run_dirs: Sequence[Path], rounds: int) -> Curve | None:
    """The runs that have come to round `rounds`, at the rounds that all of them have measured; None without any."""
    runs = read_runs(run_dirs, rounds, ("train_loss", "test_accuracy", "objective", "kkt_residual"))
    if runs is None:
        return None
    job = runs.job
    limits, penalty = [one["limit"] for one in job.get("constraint", [])], job["model"].get("l2", 0.0)
    cost, objective = runs.columns["train_loss"], runs.columns["objective"]
    if job["minimize"]["name"] == "norm":
        norm = objective
    else:
        norm = (objective - cost) / penalty if penalty else np.full_like(cost, np.nan)
    accuracy = runs.columns["test_accuracy"]
    return Curve(name, runs.rounds, cost, accuracy, norm, (*limits, None)[0], penalty, runs.columns["kkt_residual"])


def step_of(settings: Mapping[str, Any]) -> tuple[float, float]:
    """[a, alpha] of a point of a search over learning rates a / t^alpha."""
    (rate,) = (value for key, value in settings.items() if key.endswith("_optimizer.learning_rate"))
    return float(rate["initial"]), float(rate["exponent"])


def tuned(grid: Path, decay: float) -> tuple[float, float] | None:
    """The best step [a, alpha] of a grid among those with one alpha."""
    runs = read(grid).runs
    steps = Series(list(map(step_of, runs["swept"])))
    costs = runs["train_loss"][runs["finished"] & (steps.str[1] == decay)].dropna()
    return steps[costs.idxmin()] if len(costs) else None
