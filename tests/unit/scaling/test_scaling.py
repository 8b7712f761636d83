"""`mpifed scale`: which points, what is fitted, a whole study, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import fedavg, job_table
from written_files import read_json

from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.forecast import scale as forecast_scale
from mpifed.scaling import command, figures
from mpifed.scaling.launch import cores, launcher, refuse_oversubscription
from mpifed.scaling.results import PARTS, Measured, Series, parts_of
from mpifed.scaling.study import ScalingPoint, plan

ONE_RANK = "env RANKS={ranks}"  # a launcher that starts one process, whatever it is asked for


def test_the_points() -> None:
    found = plan(["strong", "weak"], [1, 2, 4], [], [], 10)
    assert [point.name for point in found] == [
        "strong-r0001", "strong-r0002", "strong-r0004", "weak-r0001-c2", "weak-r0002-c4", "weak-r0004-c8",
    ]  # fmt: skip
    assert len({point.series for point in found}) == 2
    assert [point.label for point in found[::3]] == ["the job", "2 clients a rank"]
    found = plan(["strong"], [1, 2], [100, 200], [16, 32], 10)
    assert len(found) == 8
    assert len({point.series for point in found}) == 4
    assert found[-1].label == "200 clients, model size 32"


def line(kind: str, times: dict[int, float], crowded: tuple[int, ...] = ()) -> Series:
    points = [Measured(ScalingPoint(kind, p), (t,), dict.fromkeys(PARTS, 0.0), p in crowded) for p, t in times.items()]
    return Series(kind, "the job", tuple(points))


def test_amdahl_and_gustafson_are_found_again() -> None:
    strong = line("strong", {p: 3.0 * (0.2 + 0.8 / p) for p in (1, 2, 4, 16)})
    assert strong.serial == pytest.approx(0.2)
    assert strong.speed_up(strong.points[-1]) == pytest.approx(4.0)
    assert strong.efficiency(strong.points[-1]) == pytest.approx(0.25)
    weak = line("weak", {p: p / (p - 0.1 * (p - 1)) for p in (1, 2, 8)})
    assert weak.serial == pytest.approx(0.1)
    assert weak.efficiency(weak.points[-1]) == pytest.approx(weak.first.median_s / weak.points[-1].median_s)
    assert line("strong", {1: 1.0}).serial is None


def test_ranks_that_share_cores_are_not_fitted() -> None:
    assert line("strong", {1: 1.0, 2: 0.5, 4: 9.0}, (4,)).serial == 0
    assert line("strong", {1: 1.0, 4: 9.0}, (4,)).serial is None


def test_a_series_that_begins_with_several_ranks() -> None:
    found = line("strong", {2: 4.0, 8: 1.0})
    assert found.speed_up(found.points[1]) == 4
    assert found.efficiency(found.points[1]) == 1


def test_parts_add_up_to_the_mean_round() -> None:
    account = {"played": 10, "work_s": 5.0, "idle_s": 1.0, "sum_s": 2.0, "wait_s": 0.9, "tell_s": 0.5, "server_s": 0.3}
    keys = dict.fromkeys(account, 100.0) | {"played": 0}
    found = parts_of({"rounds": 10, "elapsed_s": 9.0, "exchanges": {"keys": keys, "one": account}})
    assert tuple(found) == tuple(PARTS)
    assert sum(found.values()) == pytest.approx(0.9)
    assert found["answer_s"] == pytest.approx(0.4)
    assert found["reduce_s"] == pytest.approx(0.2)


def test_launchers() -> None:
    assert launcher("mpirun --bind-to core", {}) == "mpirun --bind-to core -n {ranks}"
    assert launcher("x -np {ranks} --", {}) == "x -np {ranks} --"
    assert launcher(None, {"MPIEXEC": "mine"}) == "mine -n {ranks}"
    assert cores({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "48"}) == 48
    with pytest.raises(UsageError, match=r"there are 2 cores.*--ranks 1,2,.*--oversubscribe"):
        refuse_oversubscription([1, 2, 4], 2, False)
    refuse_oversubscription([1, 2, 4], 2, True)


def test_srun_within_an_allocation(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    there = {"SLURM_JOB_ID": "7", "PATH": str(tmp_path), "MPIFED_MPI": "pmi2"}
    assert launcher(None, there).startswith("srun --mpi=pmi2 ")
    assert launcher(None, there | {"MPIFED_LAUNCHER": "mpiexec", "MPIEXEC": "m"}) == "m -n {ranks}"


@pytest.fixture
def job(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Path:
    tables = {"model": {"name": "mlp", "bias": False, "hidden": 5}, "participation": {"clients_per_round": 4}}
    return write_job(tmp_path / "job.toml", job_table(digits, name="t", algorithm=fedavg(20), **tables))


def scaled(job: Path, out: Path, *more: str) -> Any:
    given = ["scale", str(job), "--out", str(out), "--launcher", ONE_RANK, "--repeat", "1", *more]
    return CliRunner().invoke(main, given)


@pytest.mark.long
def test_a_whole_study_that_goes_on_where_it_was(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cores", lambda: 1)
    monkeypatch.setattr(forecast_scale, "_TRIES", 1)
    assert figures.FORMATS == ("png", "pdf")
    monkeypatch.setattr(figures, "FORMATS", ("png",))  # each takes a second
    out = tmp_path / "study"
    ended = scaled(job, out, "--ranks", "1")
    assert ended.exit_code == 0, ended.output
    runs = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/00/run.json")}
    assert [path.parts[-3] for path in sorted(runs)] == ["strong-r0001", "weak-r0001-c8"]
    assert read_json(next(iter(runs)))["rounds"] == 3
    told = json.loads((out / "scaling.json").read_text())
    assert set(told["predicted"]) == {"strong", "weak"}
    assert "**Predicted, not measured**" in (out / "report.md").read_text()
    again = scaled(job, out, "--ranks", "1", "--no-predict")
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/00/run.json")} == runs
    rows = list(csv.DictReader((out / "scaling.csv").read_text().splitlines()))
    assert [(row["kind"], row["ranks"], row["runs"]) for row in rows] == [("strong", "1", "1"), ("weak", "1", "1")]
    told = json.loads((out / "scaling.json").read_text())
    assert told["oversubscribed"] == []
    assert told["predicted"] == {}
    assert told["points"][0]["seconds_per_round"] == pytest.approx(
        read_json(out / "runs/strong-r0001/00/run.json")["seconds_per_round"]
    )
    text = (out / "report.md").read_text()
    assert "Predicted" not in text
    assert "Amdahl" not in text  # one point is no fit
    for name in ("strong", "weak", "breakdown"):
        assert (out / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    other = scaled(job, out, "--ranks", "1", "--set", "seed=5")
    assert other.exit_code == 2
    assert "holds a study of another job" in other.output


def test_what_is_refused(job: Path, tmp_path: Path, columns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cores", lambda: 2)
    out = tmp_path / "study"
    assert "there are 2 cores" in scaled(job, out, "--ranks", "1,4").output
    change = "--set", 'model={name="softmax"}'
    assert "[model] hidden" in scaled(job, out, "--ranks", "1", "--model-size", "4", *change).output
    change = "--set", "model.hidden=[5, 4]"
    assert "[model] hidden is a list" in scaled(job, out, "--ranks", "1", "--model-size", "4", *change).output
    assert not out.exists()
    assert "--json needs --predict" in scaled(job, out, "--ranks", "1", "--json").output
    vertical = "--set", f"data.path={columns}"
    for more in ((), ("--model-size", "4")):  # which the model has
        assert "is split by columns" in scaled(job, out, "--ranks", "1", "--weak", *vertical, *more).output
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    assert "is not empty" in scaled(job, tmp_path / "full", "--ranks", "1").output


def test_a_run_that_fails_is_told(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cores", lambda: 1)
    found = scaled(
        job,
        tmp_path / "study",
        "--ranks",
        "1",
        "--strong",
        "--set",
        "algorithm.local_steps=2",
        "--set",
        "algorithm.local_epochs=2",
    )
    assert found.exit_code == 1
    assert "strong-r0001 ended with 2" in found.output
    assert "[algorithm] local_steps and local_epochs" in found.output
    small = "--set", f"aggregation.bounds.changes={2.0**-30}"  # so that any answer is outside
    found = scaled(job, tmp_path / "weak", "--ranks", "1", "--weak", *small)
    assert found.exit_code == 1
    assert "weak-r0001-c8 ended with 4" in found.output and "outside the bound" in found.output
    assert "learning rates may be too large" in found.output and "--strong" in found.output


def test_own_classes_that_are_not_to_be_tried(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cores", lambda: 1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_of_scaling.py").write_text(
        "from mpifed.maths import objectives\n\n\nclass Wrong(objectives.Softmax):\n"
        "    def slope(self, head, scores, y, weights):\n"
        "        found = super().slope(head, scores, y, weights)\n"
        "        return found._replace(scores=0 * found.scores)\n"
    )
    own = "--set", "model={name = 'mine_of_scaling:Wrong'}", "--ranks", "1", "--strong", "--repeat", "1"
    found = scaled(job, tmp_path / "study", *own)
    assert found.exit_code == 1
    assert "strong-r0001 ended with 2" in found.output and "slope at scores" in found.output
    found = scaled(job, tmp_path / "study", *own, "--no-check", "--no-predict")
    assert found.exit_code == 0, found.output
