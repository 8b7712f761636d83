"""Job arrays over sweeps, and mpifed submit and show, on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Job, command, until

import mpifed as mf
from mpifed.job.job import read_table
from mpifed.job.sweep import points as sweep_points

SWEEP = {"sweep": {"client_optimizer.learning_rate": [0.1, 0.05, 0.2]}}
ON_ONE = ("--nodes=1", "--ntasks-per-node=2")

_IN_ORDER: list[tuple[int, str]] = []

Start = Callable[..., Job]
Make = Callable[..., Path]


def mpifed(*words: object) -> subprocess.CompletedProcess[str]:
    """An mpifed command, ended."""
    return subprocess.run([sys.executable, "-m", "mpifed", *map(str, words)], capture_output=True, text=True)


def points(sweep: Path) -> list[tuple[int, str]]:
    """(exit code, model) of the points of a sweep."""
    return [(one["exit"], one["model_sha256"]) for one in json.loads(mpifed("compare", sweep, "--json").stdout)["runs"]]


def names(path: Path) -> list[str]:
    """The points of a sweep."""
    return [point.name for point in sweep_points(read_table(path), str(path))]


def known(path: Path) -> str:
    """The variable by which the script knows which task of an array runs which point."""
    return " ".join(name.removeprefix("point-") for name in names(path))


@pytest.fixture
def in_order(job: Make, tmp_path: Path) -> list[tuple[int, str]]:
    """The points as one process runs them one after the other, once for all tests."""
    if not _IN_ORDER:
        done = mpifed("run", job("in-order", table=SWEEP), "--out", tmp_path / "in-order")
        assert done.returncode == 0, done.stderr
        _IN_ORDER.extend(points(tmp_path / "in-order"))
    return _IN_ORDER


def wait_all(array: Job, limit_s: float = 90) -> None:
    until(lambda: not command("squeue", "--noheader"), lambda: f"{command('squeue')}\n{array.text}", limit_s)


def test_an_array(start: Start, job: Make, in_order: list[Any]) -> None:
    """Two tasks at a time; one of them is signalled in its middle, and goes on by itself, and it alone."""
    options = (*ON_ONE, "--array=0-2%2", "--job-name=array")
    path = job(table=SWEEP, pause_s=0.1)
    array = start(path, options=options, MPIFED_POINTS=known(path))
    running = "--states=RUNNING", "--format=%i"
    first = Job(f"{array.number}_0", array.log, array.run / names(path)[0])
    first.wait_round(5)
    assert len(command("squeue", "--noheader", "--array", *running).split()) <= 2
    command("scancel", "--signal=USR1", "--batch", first.number)
    wait_all(array)
    assert points(array.run) == in_order
    assert [Job(f"{array.number}_{k}", array.log, array.run).show()["Restarts"] for k in range(3)] == ["1", "0", "0"]
    assert "learning_rate" in (array.run / "sweep.csv").read_text(encoding="utf-8")


def test_a_point_that_is_not_there(start: Start, job: Make) -> None:
    path = job(table=SWEEP)
    array = start(path, options=(*ON_ONE, "--array=7"), MPIFED_POINTS=known(path))
    wait_all(array)
    assert Job(f"{array.number}_7", array.log, array.run).show()["ExitCode"] == "2:0"
    assert "--point point-: there are 3 points" in array.text


def test_a_sweep_in_one_job(start: Start, job: Make, in_order: list[Any]) -> None:
    """Without an array its points run one after the other, over a requeue too."""
    path = job(table=SWEEP, pause_s=0.1)
    run = start(path, options=ON_ONE)
    Job(run.number, run.log, run.run / names(path)[1]).wait_round(5)
    command("scancel", "--signal=USR1", "--batch", run.number)
    assert run.wait_end()["ExitCode"] == "0:0" and run.show()["Restarts"] == "1", str(run)
    assert points(run.run) == in_order


def test_submit_and_status(job: Make, tmp_path: Path, in_order: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "submit", job(table=SWEEP, pause_s=0.1), "--array", "--throttle", 2, "--time=10",
        "--out", tmp_path / "sweep",
    )  # fmt: skip
    done = mpifed(*words)
    assert done.returncode == 0, done.stderr
    again = mpifed(*words)
    assert again.returncode == 2 and "already" in again.stderr
    until(lambda: not command("squeue", "--noheader"), lambda: command("squeue"), 90)
    assert points(tmp_path / "sweep") == in_order
    (found,) = json.loads(mpifed("show", tmp_path / "sweep", "--json").stdout)
    assert [one["state"] for one in found["points"]] == ["done"] * 3, found
    grown = {"sweep": {"client_optimizer.learning_rate": [0.3, 0.1, 0.05, 0.2]}}  # the same file has more points
    job(table=grown, pause_s=0.1)
    done = mpifed(*words, "--wait")
    assert done.returncode == 0 and "1 of 4 points" in done.stdout, done.stderr
    assert points(tmp_path / "sweep")[1:] == in_order and len(points(tmp_path / "sweep")) == 4


def test_tuning_is_an_array_for_each_rung(job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = job(table={"tune": {"trials": 3, "space": {"client_optimizer.learning_rate": {"log": [0.05, 0.2]}}}})
    for count in (3, 1):
        done = mpifed("submit", path, "--array", "--wait", *ON_ONE, "--time=10", "--out", tmp_path / "tuned")
        assert done.returncode == 0 and f"{count} of {count} points" in done.stdout, done.stderr
    for folder, options in (("tuned", ("--resume",)), ("alone", ())):
        done = mpifed("tune", path, "--out", tmp_path / folder, *options)
        assert done.returncode == 0 and "best" in done.stdout, done.stderr
    assert (tmp_path / "tuned" / "tune.csv").read_text() == (tmp_path / "alone" / "tune.csv").read_text()


def test_from_python(job: Make, tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, whose bits are those of this process, and objects; not twice."""
    monkeypatch.chdir(tmp_path)
    options = {"nodes": 2, "ntasks-per-node": 2, "time": 10}
    method = mf.FedAvg(batch_size=10, local_steps=2, client_optimizer=mf.SGD(0.1))
    submitted = mf.submit(method, digits, mf.Softmax(), rounds=5, out="python", sbatch=options)
    with pytest.raises(mf.UsageError, match="already"):
        mf.submit("python.toml", out="python", sbatch=options)
    done = submitted.result(every_s=0.5)
    alone = mf.run("python.toml", progress="none")
    assert isinstance(done, mf.Run) and done.summary["model_sha256"] == alone.summary["model_sha256"]
    swept = mf.submit(job(table=SWEEP), out="swept", array=True, sbatch=options).result(every_s=0.5)
    assert isinstance(swept, list) and [run.exit for run in swept] == [0] * 3
