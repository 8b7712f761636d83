"""What is wrong with a run whatever its exit code: said by `show`, `compare` and from Python, in the same words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import mpifed
from written_runs import JOB, write_made_run, write_made_sweep

import mpifed as mf
from mpifed import CoCoA
from mpifed.algorithms.cocoa import UNSAFE_SIGMA
from mpifed.maths.objectives import Hinge
from mpifed.maths.problem import Problem
from mpifed.results.choose import choose
from mpifed.results.frames import read
from mpifed.results.run_warnings import run_warnings

Rows = list[dict[str, float | None]]


def falling(first: float | None, last: float | None, name: str = "train_loss", **more: float) -> Rows:
    return [{"round": 0, name: first, **more}, {"round": 7, name: last, **more}]


LIMIT: dict[str, Any] = {"constraint": [{"name": "loss", "limit": 0.1}]}
TRAINED: dict[str, Any] = {"model": {"name": "mlp", "start": "runs/one"}}


@pytest.mark.parametrize(
    ("rows", "job", "said"),
    [
        (falling(0.7, 0.5), {}, None),
        (falling(0.7, 0.7 * (1 + 1e-12)), {}, None),  # rounding
        (falling(0.7, 3.25), {}, "train_loss 3.25, in round 0 0.7"),
        (falling(-1.0, -0.5, "objective"), {}, "objective -0.5, in round 0 -1"),
        (falling(0.7, 0.5, "objective"), {}, None),
        ([{"round": 0, "objective": 1.0, "train_loss": 0.5}, {"round": 9, "objective": 0.9, "train_loss": 0.6}], {},
         None),
        ([{"round": 0, "objective": None, "train_loss": 0.5}, {"round": 9, "objective": 0.9, "train_loss": 0.6}], {},
         "train_loss 0.6, in round 0 0.5"),
        ([{"round": 5, "train_loss": 0.5}, {"round": 9, "train_loss": 0.6}], {}, None),  # the start was not measured
        (falling(0.5, None), {}, None),  # the end was not
        (falling(math.nan, 0.5), {}, None),
        ([{"round": 0, "train_loss": 0.5}], {}, None),
        ([], {}, None),
        # ||w||^2 grows from 0, as it has to: w = 0 breaks the limit; so may what begins at a trained model
        (falling(0.0, 9.0, "objective", constraint_1=0.5), LIMIT | {"minimize": {"name": "norm"}}, None),
        (falling(0.1, 0.2, "objective", constraint_1=0.5), LIMIT | TRAINED, None),
        (falling(0.1, 0.2, "objective", constraint_1=0.1), LIMIT | TRAINED, "objective 0.2, in round 0 0.1"),
        (falling(2.3, 3.5, "objective", constraint_1=0.5), LIMIT, "objective 3.5, in round 0 2.3"),
        (falling(0.0, 9.0, "objective", constraint_1=0.1), LIMIT | {"minimize": {"name": "norm"}},
         "objective 9, in round 0 0"),
    ],
)  # fmt: skip
def test_a_run_that_ends_above_where_it_started(
    tmp_path: Path, rows: Rows, job: dict[str, Any], said: str | None
) -> None:
    for code in (0, 69, 70, 75):
        run = write_made_run(tmp_path / str(code), rows, code, JOB | job)
        expected = [] if said is None else [("ended above where it started", f"{said}; smaller steps may help")]
        assert [tuple(warning) for warning in run_warnings(run)] == expected
    assert run_warnings(write_made_run(tmp_path / "running", rows, None, JOB | job)) == []


@pytest.mark.parametrize(
    ("measured", "returned", "said"),
    [
        ([(2.3, 0.5), (0.4, 0.2), (0.5, 0.09), (0.5, 0.1)], None, None),
        ([(2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.5, 0.1)], None, "objective 0.5, and in round 1 all limits were, with "
         "objective 0.4"),
        ([(2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.403, 0.1)], None, None),  # within noise
        ([(2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.3, 0.11)], None,
         "a limit is not met, and in round 1 all limits were, with objective 0.4"),
        ([(2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.3, 0.11)], 1, None),  # it has returned that model
        ([(2.3, 0.5), (0.4, None), (0.5, 0.2)], None, None),
    ],
)  # fmt: skip
def test_a_run_that_ends_worse_than_a_model_that_met_its_limits(
    tmp_path: Path, measured: list[tuple[float, float | None]], returned: int | None, said: str | None
) -> None:
    rows: Rows = [{"round": r, "objective": value, "constraint_1": level} for r, (value, level) in enumerate(measured)]
    job = JOB | LIMIT | {"algorithm": {"name": "ssca", "batch_size": 4}}
    run = write_made_run(tmp_path / "run", rows, 0, job, **({} if returned is None else {"returned_round": returned}))
    expected = [] if said is None else [
        f'ended worse than a model that met all limits: {said}; [algorithm] returns = "best feasible" gives that model'
    ]  # fmt: skip
    assert [str(warning) for warning in run_warnings(run)] == expected


def test_a_run_that_diverged(tmp_path: Path) -> None:
    failed = write_made_run(tmp_path / "failed", falling(0.7, 0.6), 68)
    infinite = write_made_run(tmp_path / "infinite", falling(0.7, math.inf))
    assert [warning.kind for warning in run_warnings(failed)] == ["diverged"]
    assert [warning.kind for warning in run_warnings(infinite)] == ["diverged", "ended above where it started"]
    box = JOB | {"regularizer": {"name": "box", "low": 0.0}}  # infinite where a model is not allowed, as at the start
    inside = [
        {"round": 0, "objective": math.inf, "train_loss": 0.5},
        {"round": 9, "objective": math.inf, "train_loss": 0.4},
    ]
    assert run_warnings(write_made_run(tmp_path / "box", inside, job=box)) == []
    assert "diverged: a number was not finite, or outside its bound, after round 7" in mpifed("show", failed).output


def test_show_compare_and_python_say_the_same(tmp_path: Path) -> None:
    folder = write_made_sweep(
        tmp_path / "s", {"algorithm.batch_size": [4, 8], "seeds": 2},
        [falling(0.5, 0.4), falling(0.5, 0.75), falling(0.5, 2.0), 68],
    )  # fmt: skip
    text = "ended above where it started: train_loss 0.75, in round 0 0.5; smaller steps may help"
    assert f"{'warning':30} {text}\n" in mpifed("show", folder / "point-0001").output
    assert "\nwarning" not in mpifed("show", folder / "point-0000").output
    assert json.loads(mpifed("show", folder / "point-0001", "--json").output)["warnings"] == [text]
    compare = mpifed("compare", folder).output
    assert "Warning, ended above where it started: point-0001, point-0002 (point-0001: train_loss 0.75, in" in compare
    assert "diverged" not in compare and "numerical trouble" in compare
    runs = json.loads(mpifed("compare", folder, "--json").output)["runs"]
    assert [len(run["warnings"]) for run in runs] == [0, 1, 1, 1] and runs[1]["warnings"] == [text]
    assert choose(read(folder), by="train_loss").notes[0] == f"point-0001: {text}"
    assert f"point-0001: {text}" in mpifed("compare", folder, "--select", "best", "--by", "train_loss").output
    run = mf.load(folder / "point-0001")
    assert run.warnings == (text,) and f"warning: {text}" in repr(run)
    assert "warning" not in repr(mf.load(folder / "point-0000"))
    sweep = mf.Sweep(folder, {"small": [mf.load(folder / f"point-000{k}") for k in (0, 1)]}, (1, 2))
    assert repr(sweep).endswith(f"small; 2 seeds; small, seed 2: {text})")
    pytest.importorskip("pandas")
    assert sweep.summary["warnings"].tolist() == ["", text]


# --- sigma --------------------------------------------------------------------------------------------------------


def cocoa(sigma: float | None, gamma: float = 1.0, clients_per_round: int | None = None) -> list[str]:
    problem = Problem(Hinge(l2=0.1), "rows", np.full(8, 10), 80, 3, 2, clients_per_round=clients_per_round)
    return CoCoA(gamma=gamma, sigma=sigma, problem=problem).warnings()


def test_sigma_below_what_is_safe_for_any_data() -> None:
    """sigma' = gamma K is (Lemma 4), K the number of clients of a round."""
    assert cocoa(None) == cocoa(8.0) == cocoa(9.0) == cocoa(1.0, gamma=1 / 8) == cocoa(2.0, 0.5, 4) == []
    (warning,) = cocoa(7.9)
    assert warning.startswith(f"{UNSAFE_SIGMA}7.9: safe for any data is gamma * (clients per round) = 8; ")
    assert len(cocoa(1.9, 0.5, 4)) == len(cocoa(1.0)) == 1


def dual(*values: float) -> Rows:
    return [{"round": 2 * k, "train_loss": 0.5 - k / 100, "dual": value} for k, value in enumerate(values)]


@pytest.mark.parametrize(
    ("algorithm", "more", "rows", "falls"),
    [
        ({"name": "cocoa", "sigma": 1.0}, {}, dual(0.0, 0.25, 0.125), True),
        ({"name": "cocoa", "sigma": 1.0}, {}, dual(0.0, 0.25, math.nan, 0.125), True),
        ({"name": "cocoa"}, {}, dual(0.0, 0.25, 0.25 * (1 - 1e-7)), False),  # rounding
        ({"name": "hyfdca", "rule": "accelerated"}, {}, dual(0.25, 0.125), False),  # it is not monotone
        ({"name": "bundle"}, {}, dual(0.25, 0.125), False),
    ],
)
def test_a_dual_that_falls(
    tmp_path: Path, algorithm: dict[str, Any], more: dict[str, Any], rows: Rows, falls: bool
) -> None:
    run = write_made_run(tmp_path / "run", rows, job=JOB | {"algorithm": algorithm} | more)
    texts = [str(warning) for warning in run_warnings(run)]
    assert len(texts) == falls
    assert not falls or texts[0].startswith("unsafe sigma: the dual value fell from 0.25 to 0.125 between the rounds ")
