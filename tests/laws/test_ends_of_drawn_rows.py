"""Runs that measure a draw of the rows: what they ask for is decided over all rows, and units are those of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from registry import table
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import NotCertified
from mpifed.files.history import read_history
from mpifed.testing import Solo

SIZES = {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}
LIMITS = [{"name": "loss", "classes": [1], "limit": 0.3}, {"name": "norm", "limit": 2.0}]


def ends(folder: Path, out: Path, split: str = "rows", resume: bool = False, **changes: Any) -> tuple[int, Any, Any]:
    """Exit code, run.json and history."""
    algorithm = {"name": "ssca", **SIZES}
    algorithm = changes.pop("algorithm", algorithm)
    base = {"model": {"name": "softmax", "bias": False, "l2": 0.01}, "constraint": LIMITS, "rounds": 6}
    code = 0
    try:
        run(checked(table(folder, algorithm, **(base | changes))), Solo(), out, resume=resume)
    except NotCertified as error:
        code = error.exit_code
    told = read_json(out / "run.json")
    assert told["exit"] == code
    return code, told, read_history(out) if (out / "history.csv").exists() else {}


@pytest.mark.parametrize("every", [0, 2])
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_the_last_certificate_does_not_depend_on_the_draw(
    split: str, every: int, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    folder = classes if split == "rows" else by_columns
    whole = ends(folder, tmp_path / "whole", split, record={"evaluate_every": 0})[1]
    drawn = ends(folder, tmp_path / "drawn", split, record={"evaluate_every": every, "evaluate_rows": 7})[1]
    for name in ("kkt_residual", "stationarity", "feasibility", "complementarity", "multiplier_1", "multiplier_2"):
        # the columns' sums are over other turns of rows
        assert drawn[name] == pytest.approx(whole[name], rel=1e-6, abs=1e-12), name


def test_a_class_without_rows_in_the_draw(classes: Path, tmp_path: Path) -> None:
    """Its mean is not known; checkpoints are written all the same, and the end is decided over all rows."""
    limits = [{"name": "loss", "classes": [k], "limit": 2.0} for k in range(3)]
    record = {"evaluate_every": 2, "evaluate_rows": 1, "checkpoint_every": 2}
    code, told, history = ends(classes, tmp_path / "all", constraint=limits, record=record)
    assert np.isnan([history[f"constraint_{m}"] for m in (1, 2, 3)]).any()
    assert code == 0 and all(told[f"constraint_{m}"] <= 2.0 for m in (1, 2, 3))
    assert told["kkt_residual"] is not None
    # the same where nothing is asked: no certificate, and no end for it
    minimized = [
        ends(
            classes, tmp_path / f"of-{k}", record=record, constraint=[],
            minimize={"name": "error-rate", "classes": [k]},
        ) for k in range(3)
    ]  # fmt: skip
    assert [code for code, *_ in minimized] == [0, 0, 0]
    assert sum(np.isnan(history["objective"]).all() for *_, history in minimized) == 2
    assert all(
        np.isnan(history["kkt_residual"]).all() == np.isnan(history["objective"]).all() for *_, history in minimized
    )


def test_drawn_rows_end_no_run_early(classes: Path, tmp_path: Path) -> None:
    """By 7 rows the first limit seems met after 2 rounds; by all it is not, and the run goes on."""
    record, stop = {"evaluate_every": 2, "evaluate_rows": 7, "checkpoint_every": 0}, {"feasibility": 0.01}
    code, told, history = ends(classes, tmp_path, record=record, stop=stop)
    assert history["constraint_1"][1] < 0.3 < told["constraint_1"]
    assert (code, told["rounds"], history["round"].tolist()) == (69, 6, [0, 2, 4, 6])
    # so does one that is resumed with more rounds
    code, told, _ = ends(classes, tmp_path, record=record, stop=stop, rounds=9, resume=True)
    assert (code, told["rounds"]) == (69, 9)
    # a limit that is met over all rows ends it, at the round where it is
    code, told, _ = ends(classes, tmp_path, record=record, stop={"feasibility": 0.5}, rounds=12, resume=True)
    assert (code, told["rounds"]) == (0, 9) and told["feasibility"] <= 0.5
