"""What the runs of one curve have measured, over their seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jobs.reproduction.results import Floats, Rounds, read_runs
from mpifed.files.model_file import read_model


class Curve(NamedTuple):
    """Runs that differ in their seed alone."""

    name: str
    rounds: Rounds  # [T]
    loss: Floats  # [seeds, T] mean training loss, without the two penalties
    objective: Floats  # [seeds, T] F, with them: (24)
    accuracy: Floats  # [seeds, T] on the test data
    epsilon: Floats  # [seeds, T] of the worst client, rigorous, were the noise secret; NaN without privacy
    paper: Floats  # [seeds, T] of the worst client by (20)
    zeros: Floats  # [seeds, T] share of the last model's parameters, NaN before

    def columns(self) -> dict[str, Floats]:
        """[seeds, T] each, as they are written."""
        return {
            "train_loss": self.loss,
            "objective": self.objective,
            "test_accuracy": self.accuracy,
            "epsilon_if_secret": self.epsilon,
            "epsilon_paper": self.paper,
            "zeros": self.zeros,
        }


def read_curve(name: str, run_dirs: Sequence[Path], rounds: int) -> Curve | None:
    """The runs that have come to round `rounds`; None without any."""
    names = "train_loss", "objective", "test_accuracy", "epsilon_if_secret", "epsilon_paper"
    runs = read_runs(run_dirs, rounds, names)
    if runs is None:
        return None
    loss, objective, accuracy, epsilon, paper = runs.columns.values()
    zeros = np.full_like(loss, np.nan)
    zeros[:, -1] = [_zeros(run) for run in runs.folders]
    return Curve(name, runs.rounds, loss, objective, accuracy, epsilon, paper, zeros)


def _zeros(run: Path) -> float:
    arrays = read_model(run / "model.safetensors").values()
    return 1 - sum(np.count_nonzero(one) for one in arrays) / sum(one.size for one in arrays)
