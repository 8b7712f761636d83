"""How a run is shown: its end, constraints, certificate, costs, and what is wrong with it, also in `compare`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from written_runs import JOB, Rows, mpifed, write_points, write_run

import mpifed as mf
from mpifed.job.job import read_table
from mpifed.results.run_warnings import run_warnings
from mpifed.results.text import toml_text

KKT = {"kkt_residual": 0.00123456, "stationarity": 0.00123456, "feasibility": 0.0, "complementarity": 2e-4}
LIMIT: dict[str, Any] = {"constraint": [{"name": "loss", "limit": 0.1}]}


def shown(run: Path, *options: str) -> str:
    return str(mpifed("show", run, *options).output)


def ended(folder: Path, code: int | None = 0, job: Any = None, about: Any = {}, **columns: Any) -> Path:  # noqa: B006
    """A run whose last measured row has these columns."""
    return write_run(folder, [{"round": 9, **columns}], code, JOB | (job or {}), **about)


def test_what_the_last_model_has_not_is_not_that_of_drawn_rows(tmp_path: Path) -> None:
    """The history's last row is of some rows, by which the limit was not met; run.json is of all, by which it is."""
    job = {"constraint": [{"name": "loss", "limit": 0.5}]}
    late = {"constraint_1": 0.5, "margin_1": 0.0, "slack": 0.3, "duality_gap": None, "feasibility": 0.0}
    drawn = {"constraint_1": 0.9, "margin_1": 0.1, "slack": 0.3, "duality_gap": 0.25, "feasibility": 0.8}
    run = ended(tmp_path / "run", job=job, about=late, objective=1.0, **drawn)
    text, found = shown(run), json.loads(shown(run, "--json"))
    assert "0.5, limit 0.5: met" in text and "contradict" not in text and "duality gap" not in text
    assert found["duality_gap"] is None and found["constraint_values"] == [0.5]


@pytest.mark.parametrize("value", [1, -2.5, 1e300, float("inf"), True, 'a "q" \\ p', [1.0, ["a", 2]], {"x.y": [1]}])
def test_values_can_be_pasted(value: Any, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("")
    assert read_table(tmp_path / "job.toml", [f"algorithm.x={toml_text(value)}"]) == {"algorithm": {"x": value}}


MET = [  # value, margin, what is said
    (0.1287, 0.0011, "0.1287 +- 0.0011, limit 0.13: met"), (0.13, None, "0.13, limit 0.13: met"),
    (0.1295, 0.0011,
     "0.1295 +- 0.0011, limit 0.13: met on the training rows; so near the limit that it may not be on new samples"),
    (0.1304, 0.0011, "0.1304 +- 0.0011, limit 0.13: NOT met, by 0.0004"),
    (0.13 + 1e-12, None, "0.13, limit 0.13: NOT met, by 1e-12"),
]  # fmt: skip


def test_constraints_and_the_certificate_of_a_run(tmp_path: Path) -> None:
    """Where there are limits, or where something was asked for."""
    limits = [{"name": "loss", "limit": 0.13}, {"name": "error-rate", "classes": [0, 7], "limit": 0.5}]
    for number, (value, margin, said) in enumerate(MET):
        columns = {"constraint_1": value, "constraint_2": 0.25, "margin_1": margin, "margin_2": 0.01}
        lines = shown(ended(tmp_path / str(number), job={"constraint": limits}, **columns)).splitlines()
        assert f"{'constraint 1 (loss)':30} {said}" in lines
        assert "constraint 2 (error-rate of classes 0, 7) 0.25 +- 0.01, limit 0.5: met" in lines
    asked = shown(ended(tmp_path / "asked", 69, {"stop": {"reached": ["kkt_residual<=1e-3"]}}, **KKT))
    assert f"{'KKT residual':30} 0.00123456\n" in asked and f"{'  complementarity':30} 0.0002\n" in asked
    assert "a limit is not met, or what [stop] asks for not reached (exit 69)" in asked
    assert "KKT residual                   0.00123456\n" in shown(ended(tmp_path / "run", job=LIMIT, **KKT))
    assert "KKT" not in shown(ended(tmp_path / "none", **KKT))


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """Its run.json is as at the start: the last measured row tells how far it has come."""
    begun = {"rounds": 0, "elapsed_s": 0.0, "up_bytes": 0, "down_bytes": 0, "seconds_per_round": None}
    row = {"train_loss": 0.25, "elapsed_s": 3.0, "up_bytes": 64, "down_bytes": 32}
    run = ended(tmp_path / "run", None, about=begun, **row)
    assert json.loads(shown(run, "--json")).items() >= {"rounds": 9, **row}.items()
    said = "killed or still running after round 9; resume it with --resume if it is not running"
    assert shown(run).splitlines()[0].split(maxsplit=1)[1] == said


# --- warnings -------------------------------------------------------------------------------------------------------


def rows(first: float | None, last: float | None, name: str = "train_loss", **more: float) -> Rows:
    return [{"round": 0, name: first, **more}, {"round": 7, name: last, **more}]


def limited(*measured: tuple[float, float | None]) -> Rows:
    return [{"round": r, "objective": value, "constraint_1": level} for r, (value, level) in enumerate(measured)]


ABOVE, WORSE = "ended above where it started: ", "ended worse than a model that met all limits: "
SSCA = LIMIT | {"algorithm": {"name": "ssca", "batch_size": 4}}
NORM, TRAINED = LIMIT | {"minimize": {"name": "norm"}}, LIMIT | {"model": {"name": "mlp", "start": "runs/one"}}
NOISY, NOT_LOCAL = {"privacy": {"trust": "local"}}, {"privacy": {"trust": "distributed"}}
BOTH: list[Rows] = [
    [{"round": 0, "objective": first, "train_loss": 0.5}, {"round": 9, "objective": 0.9, "train_loss": 0.6}]
    for first in (1.0, None)
]


@pytest.mark.parametrize(
    ("measured", "job", "said"),
    [
        (rows(0.7, 0.5), {}, None), (rows(0.7, 0.7 * (1 + 1e-12)), {}, None),  # rounding
        (rows(0.7, 3.25), {}, f"{ABOVE}train_loss 3.25, in round 0 0.7"),
        (rows(-1.0, -0.5, "objective"), {}, f"{ABOVE}objective -0.5, in round 0 -1"),
        (BOTH[0], {}, None), (BOTH[1], {}, f"{ABOVE}train_loss 0.6, in round 0 0.5"),
        ([{"round": 5, "train_loss": 0.5}, {"round": 9, "train_loss": 0.6}], {}, None),  # the start was not measured
        (rows(0.5, None), {}, None), (rows(math.nan, 0.5), {}, None), ([], {}, None),
        # ||w||^2 grows from 0, as it has to: w = 0 breaks the limit; so may what begins at a trained model
        (rows(0.0, 9.0, "objective", constraint_1=0.5), NORM, None),
        (rows(0.1, 0.2, "objective", constraint_1=0.5), TRAINED, None),
        (rows(0.1, 0.2, "objective", constraint_1=0.1), TRAINED, f"{ABOVE}objective 0.2, in round 0 0.1"),
        (rows(2.3, 3.5, "objective", constraint_1=0.5), LIMIT, f"{ABOVE}objective 3.5, in round 0 2.3"),
        (rows(0.1, 0.125, "test_accuracy"), NOISY,
         "noise hides what was learnt: test_accuracy 12.50%, at first 10.00%; [privacy] trust = "),
        (rows(0.1, 0.5, "test_accuracy"), NOISY, None), (rows(0.1, 0.125, "test_accuracy"), NOT_LOCAL, None),
        (limited((2.3, 0.5), (0.4, 0.2), (0.5, 0.09), (0.5, 0.1)), SSCA, None),
        (limited((2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.5, 0.1)), SSCA,
         f"{WORSE}objective 0.5, and in round 1 all limits were, with objective 0.4; [algorithm] returns = "),
        (limited((2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.403, 0.1)), SSCA, None),  # within noise
        (limited((2.3, 0.5), (0.4, 0.1), (0.5, 0.09), (0.3, 0.11)), SSCA, f"{WORSE}a limit is not met, and in round 1"),
        (limited((2.3, 0.5), (0.4, None), (0.5, 0.2)), SSCA, None),
    ],
)  # fmt: skip
def test_a_run_that_ends_above_its_start_or_worse_than_before(
    tmp_path: Path, measured: Rows, job: dict[str, Any], said: str | None
) -> None:
    for code in (0, 69, 75):
        texts = list(map(str, run_warnings(write_run(tmp_path / str(code), measured, code, JOB | job))))
        assert len(texts) == (said is not None) and all(text.startswith(str(said)) for text in texts), texts
    assert run_warnings(write_run(tmp_path / "running", measured, None, JOB | job)) == []
    if said is not None and said.startswith(WORSE):
        assert run_warnings(write_run(tmp_path / "best", measured, 0, JOB | job, returned_round=1)) == []


def test_a_run_that_diverged(tmp_path: Path) -> None:
    """A regularizer may be infinite where a model is not allowed, as at the start."""
    box = JOB | {"regularizer": {"name": "box", "low": 0.0}}
    inside: Rows = [{"round": r, "objective": math.inf, "train_loss": 0.5 - r / 99} for r in (0, 9)]
    for name, measured, code, job, kinds in (
        ("failed", rows(0.7, 0.6), 68, JOB, ["diverged"]), ("box", inside, 0, box, []),
        ("infinite", rows(0.7, math.inf), 0, JOB, ["diverged", "ended above where it started"]),
    ):  # fmt: skip
        run = write_run(tmp_path / name, measured, code, job)
        assert [warning.kind for warning in run_warnings(run)] == kinds
    assert "diverged: a number was not finite, or outside its bound, after round 7" in shown(tmp_path / "failed")


def test_show_compare_and_python_say_the_same(tmp_path: Path) -> None:
    ends = [rows(0.5, 0.4), rows(0.5, 0.75), rows(0.5, 2.0), 68]
    folder = write_points(tmp_path / "s", {"algorithm.batch_size": [4, 8], "seeds": 2}, ends)
    text = "ended above where it started: train_loss 0.75, in round 0 0.5; smaller steps may help"
    assert f"{'warning':30} {text}\n" in shown(folder / "point-0001")
    assert json.loads(shown(folder / "point-0001", "--json"))["warnings"] == [text]
    compare = mpifed("compare", folder).output
    assert "Warning, ended above where it started: point-0001, point-0002 (point-0001: train_loss 0.75, in" in compare
    runs = json.loads(mpifed("compare", folder, "--json").output)["runs"]
    assert [len(run["warnings"]) for run in runs] == [0, 1, 1, 1] and runs[1]["warnings"] == [text]
    assert f"point-0001: {text}" in mpifed("compare", folder, "--best", "--by", "train_loss").output
    run = mf.load(folder / "point-0001")
    assert run.warnings == (text,) and f"warning: {text}" in repr(run)
    sweep = mf.Sweep(folder, {"small": [mf.load(folder / f"point-000{k}") for k in (0, 1)]}, (1, 2))
    assert repr(sweep).endswith(f"small; 2 seeds; small, seed 2: {text})")
    assert sweep.summary["warnings"].tolist() == ["", text]
