"""Runs that measure a draw of the rows, which decides no end: where there are goals to reach, a draw is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.files.history import read_history
from mpifed.testing import Job, Solo

SIZES = {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}


def job(folder: Path, **changes: Any) -> Job:
    record = {"evaluate_every": 2, "evaluate_rows": 1, "checkpoint_every": 2}
    base = {"model": {"name": "softmax", "bias": False, "l2": 0.01}, "rounds": 6, "record": record}
    return checked(table(folder, {"name": "ssca", **SIZES}, **(base | changes)))


@pytest.mark.parametrize(
    "goals",
    [{"constraint": [{"name": "loss", "classes": [1], "limit": 0.3}]}, {"stop": {"reached": ["kkt_residual<=0.1"]}}],
)
def test_goals_are_of_all_rows(classes: Path, goals: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="evaluate_rows = 1: no sample of the rows can say"):
        job(classes, **goals)


def test_a_class_without_rows_in_the_draw(classes: Path, tmp_path: Path) -> None:
    """Its mean is not known; checkpoints are written all the same, and there is no certificate."""
    absent = 0
    for k in range(3):
        out = tmp_path / f"of-{k}"
        run(job(classes, constraint=[], minimize={"name": "error-rate", "classes": [k]}), Solo(), out)
        history = read_history(out)
        unknown = np.isnan(history["objective"]).all()
        assert np.isnan(history["kkt_residual"]).all() == unknown
        absent += int(unknown)
    assert absent == 2
