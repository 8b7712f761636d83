"""What the runs of one curve have measured, over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.run.best import job_of, read_points
from mpifed.run.history import read_history, read_json
from mpifed.run.sweep import FINISHED

Floats = NDArray[np.float64]


class Curve(NamedTuple):
    """Runs that differ in their seed alone."""

    name: str
    rounds: NDArray[np.int64]  # [T]
    cost: Floats  # [seeds, T] training cost F
    accuracy: Floats  # [seeds, T] on the test data
    norm: Floats  # [seeds, T] ||w||^2
    limit: float | None  # U
    penalty: float  # lambda
    residual: Floats  # [seeds] of the last round's KKT certificate; NaN where there is none

    @property
    def seeds(self) -> int:
        """How many."""
        return len(self.cost)

    def at(self, round: int) -> int | None:
        """Where a round stands; None when it was not measured."""
        here = np.flatnonzero(self.rounds == round)
        return int(here[0]) if len(here) else None

    def excess(self) -> Floats:
        """[seeds, T] F - U."""
        assert self.limit is not None
        return self.cost - self.limit


class Spread(NamedTuple):
    """Over seeds."""

    mean: float
    deviation: float  # standard; 0 of one seed
    seeds: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / float(np.sqrt(self.seeds))


def spread(values: Floats) -> Spread:
    """Of [seeds] values."""
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, len(values))


def read_curve(name: str, run_dirs: Sequence[Path], rounds: int) -> Curve | None:
    """The runs that have come to round `rounds`, at the rounds that all of them have measured; None without any."""
    found = [read_history(run) for run in run_dirs if _ended(run, rounds)]
    if not found:
        return None
    job = job_of(run_dirs[0])
    limits, penalty = [one["limit"] for one in job.get("constraint", [])], job["objective"].get("penalty", 0.0)
    common = found[0]["round"]
    for history in found:
        common = np.intersect1d(common, history["round"])
    common = common[common <= rounds]
    columns = {
        key: np.stack([history[key][np.isin(history["round"], common)] for history in found])
        for key in ("train_loss", "test_accuracy", "objective")
    }
    cost, objective = columns["train_loss"], columns["objective"]
    if job["minimize"]["name"] == "norm":
        norm = objective
    else:
        norm = (objective - cost) / penalty if penalty else np.full_like(cost, np.nan)
    residual = np.array([history["kkt_residual"][-1] if "kkt_residual" in history else np.nan for history in found])
    return Curve(name, common, cost, columns["test_accuracy"], norm, (*limits, None)[0], penalty, residual)


def _ended(run: Path, rounds: int) -> bool:
    if not (run / "run.json").exists():
        return False
    found = read_json(run / "run.json")
    return found["exit"] in FINISHED and found["rounds"] >= rounds


def tuned(grid: Path, decay: float) -> tuple[float, float] | None:
    """The best step [a, alpha] of a grid among those with one alpha."""
    costs = {}
    for point in read_points(grid):
        a, alpha = point.settings["algorithm.step"]
        if alpha == decay and point.finished and "train_loss" in point.numbers():
            costs[float(a), float(alpha)] = point.numbers()["train_loss"]
    return min(costs, key=costs.__getitem__) if costs else None
