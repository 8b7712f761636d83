"""`mpifed status`: what files, processes and a make-believe Slurm say of runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import Slurm, killed
from written_files import write_json

from mpifed.batch.record import BatchRecord, Submission, last_words, write
from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.results.points import write_sweep
from mpifed.testing import Job

Write = Callable[..., Path]
HEADER = "round,elapsed_s,train_loss,test_accuracy,objective,up_bytes,down_bytes,epsilon\n"


def status(*folders: object) -> list[dict[str, Any]]:
    ended = CliRunner().invoke(main, ["status", *map(str, folders), "--json"])
    assert ended.exit_code == 0, ended.output
    found: list[dict[str, Any]] = json.loads(ended.output)
    return found


def run_of(folder: object) -> dict[str, Any]:
    (point,) = status(folder)[0]["points"]
    assert isinstance(point, dict)
    return point


def leave(run_dir: Path, job: Job, code: int | None = None, rounds: int = 0, saved: int = 0, **run: Any) -> Path:
    """What a run leaves behind: measured and checkpointed so far."""
    run_dir.mkdir(parents=True)
    (run_dir / "job.toml").write_text(job.text())
    write_json(run_dir / "run.json", {"rounds": rounds if code is not None else 0, "exit": code, **run})
    rows = [f"{k},0.5,0.25,,{1 / (k + 1)},1,1,\n" for k in range(0, rounds + 1, 10)]
    (run_dir / "history.csv").write_text(HEADER + "".join(rows))
    if saved:
        (run_dir / "checkpoint" / f"round-{saved:08d}").mkdir(parents=True)
    return run_dir


def submitted(out: Path, *ids: str, array: list[int] | None = None, names: tuple[str, ...] = ()) -> None:
    log = f"{out}-%A_%a.log" if array is not None else f"{out}-%j.log"
    again = ["submit", "job.toml", "--time", "1:00:00"]
    one = [Submission(id, "2026-01-01T00:00:00+00:00", again, f"{out}.sbatch", log, array) for id in ids]
    write(out, BatchRecord("job.toml", list(names), one))


@pytest.fixture
def made(job: Write) -> Job:
    return Job.read(job())


# --- without Slurm -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "state", "why"),
    [
        (0, "done", "done"),
        (69, "done", "a limit is not met, or what [stop] asks for not reached; its result is valid"),
        (70, "done", "the privacy budget is reached; its result is valid"),
        (75, "resumable", "interrupted; checkpoint at round 20"),
        (1, "failed", "exit 1, error"),
        (3, "failed", "exit 3, data: a file is missing or damaged"),
        (68, "failed", "exit 68, numerical trouble: it would fail the same way again"),
        (139, "failed", "exit 139, signal 11"),
    ],
)
def test_how_a_run_ended(nowhere: Path, made: Job, code: int, state: str, why: str) -> None:
    found = run_of(leave(Path("runs/a"), made, code, rounds=30, saved=20))
    assert (found["state"], found["why"], found["exit"]) == (state, why, code)
    assert (found["round"], found["rounds"], found["checkpoint"]) == (30, 100, 20)
    assert found["objective"] == pytest.approx(1 / 31) and found["changed"].startswith("20")


def test_a_killed_run_and_a_running_one(nowhere: Path, made: Job) -> None:
    here = this_process()
    assert run_of(leave(Path("alive"), made, process=here))["state"] == "running"
    dead = here | {"pid": killed()}
    found = run_of(leave(Path("dead"), made, process=dead, rounds=30, saved=20))
    assert (found["state"], found["why"]) == ("resumable", "killed; checkpoint at round 20")
    assert run_of(leave(Path("early"), made, process=dead))["why"] == "killed; no checkpoint: it starts over"
    found = run_of(leave(Path("later"), made, process=here | {"started": 1}))  # another process has the number now
    assert found["state"] == "resumable"


def test_nobody_can_tell(nowhere: Path, made: Job) -> None:
    elsewhere = {"host": "another", "pid": os.getpid(), "started": 1}
    found = run_of(leave(Path("a"), made, process=elsewhere, rounds=30, saved=20))
    assert (found["state"], found["why"]) == ("unknown", "killed or still running; checkpoint at round 20")
    assert run_of(leave(Path("b"), made))["state"] == "unknown"  # of an older version
    assert status("a")[0]["slurm"] is False


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_folders_that_are_none_beside_others(nowhere: Path, made: Job, form: list[str]) -> None:
    for name in ("a", "b"):
        leave(Path(name), made, 0, rounds=30)
    ended = CliRunner().invoke(main, ["status", "nobody", "a", "nowhere", "b", *form])
    assert ended.exit_code == 3
    assert [name for name in ("nobody", "nowhere") if f"{name}: no such" in ended.stderr] == ["nobody", "nowhere"]
    if form:
        assert [one["folder"] for one in json.loads(ended.stdout)] == ["a", "b"]
    else:
        assert ended.stdout.index("a: run: done") < ended.stdout.index("b: run: done")


# --- with Slurm --------------------------------------------------------------------------------------------------


def test_a_queued_run(slurm: Slurm, made: Job) -> None:
    submitted(Path("runs/a"), "7")
    slurm.queue("7|7|PENDING|Resources|")
    found = run_of("runs/a")
    assert (found["state"], found["why"], found["job"]) == ("queued", "pending, Resources", "7")
    assert status("runs/a")[0]["next"] == "squeue --jobs=7"
    leave(Path("runs/a"), made, 75, rounds=30, saved=20, slurm_job="7")
    slurm.queue("7|7|PENDING|BeginTime|")
    assert run_of("runs/a")["why"] == "pending, BeginTime; it resumes after round 20"


def test_a_running_run(slurm: Slurm, made: Job) -> None:
    submitted(Path("a"), "7")
    slurm.queue("7|7|RUNNING|None|n[1-4]")
    assert run_of("a")["why"] == "on n[1-4]"
    leave(Path("a"), made, 75, rounds=30, slurm_job="7")  # it was queued again, and has not written yet
    assert run_of("a")["state"] == "running"
    (Path("a") / "run.json").unlink()
    assert run_of("a")["state"] == "running"
    slurm.queue("7|7|COMPLETING|None|n1")
    assert run_of(leave(Path("over"), made, 0, slurm_job="7"))["state"] == "done"


def test_a_job_that_nobody_recorded(slurm: Slurm, made: Job) -> None:
    """Submitted by sbatch itself: run.json has its number."""
    folder = leave(Path("a"), made, slurm_job="9", rounds=30, saved=20)
    slurm.queue("9|9|RUNNING|None|n2")
    assert run_of(folder)["state"] == "running"
    slurm.queue()
    found = run_of(folder)
    assert (found["state"], found["why"]) == ("resumable", "killed; checkpoint at round 20")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("TIMEOUT", "killed (TIMEOUT on n3)"),
        ("OUT_OF_MEMORY", "killed (OUT_OF_MEMORY on n3)"),
        ("NODE_FAIL", "killed (NODE_FAIL on n3)"),
        ("CANCELLED by 1000", "killed (CANCELLED on n3)"),
        ("COMPLETED", "killed"),
    ],
)
def test_why_a_job_ended(slurm: Slurm, made: Job, state: str, said: str) -> None:
    submitted(Path("a"), "7")
    leave(Path("a"), made, slurm_job="7", rounds=30, saved=20)
    slurm.answer("sacct", f"7|7|{state}|0:9|n3\n")
    found = run_of("a")
    assert (found["state"], found["why"]) == ("resumable", f"{said}; checkpoint at round 20")
    assert slurm.asked("sacct") == ["-nPX --jobs=7 --format=JobID,JobIDRaw,State,ExitCode,NodeList"]
    slurm.answer("sacct", error="Slurm accounting storage is disabled", code=1)
    word = state.partition(" ")[0]
    line = f"JobId=7 JobName=a UserId=root(0) JobState={word} Reason=None ExitCode=0:9 NodeList=n3 NumNodes=1"
    slurm.answer("scontrol", line + "\n")
    assert run_of("a")["why"] == found["why"]


def test_a_slurm_that_does_not_answer(slurm: Slurm, made: Job) -> None:
    submitted(Path("a"), "7")
    leave(Path("a"), made, slurm_job="7")
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert run_of("a")["state"] == "unknown" and status("a")[0]["slurm"] is False


def test_a_job_that_never_began(slurm: Slurm, made: Job) -> None:
    submitted(Path("a"), "7")
    assert run_of("a")["state"] == "waiting"  # and nobody remembers it
    slurm.answer("sacct", "7|7|CANCELLED by 0|0:0|None assigned\n")
    found = run_of("a")
    assert (found["state"], found["why"]) == ("waiting", "never begun (CANCELLED)")
    slurm.answer("sacct", "7|7|FAILED|3:0|n1\n")
    Path("a-7.log").write_text("mpifed: warning: x\nmpifed: error: data/federation.h5: no such file\nsrun: error: n1\n")
    found = run_of("a")
    why = "exit 3, data: a file is missing or damaged: data/federation.h5: no such file (FAILED on n1)"
    assert (found["state"], found["exit"], found["why"]) == ("failed", 3, why)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("all is well\nround 3\n", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\nround 5\n", "slurmstepd: error: Detected 1 oom"),
        ("mpifed: interrupted after round 5, whose checkpoint is written\nmpifed: note: queued again: job 7\n", None),
        ("mpifed: note: a: new run; no checkpoint to resume\n", None),
        ("Traceback (most recent call last):\n  File\nKeyError: 1\n", "KeyError: 1"),
        ("x\n" * 100000 + "mpifed: error: at the end\n", "mpifed: error: at the end"),
    ],
)
def test_last_words(tmp_path: Path, log: str, said: str | None) -> None:
    (tmp_path / "log").write_text(log)
    found = last_words(tmp_path / "log")
    assert found is None if said is None else str(found).startswith(said)
    assert last_words(tmp_path / "none") is None


# --- sweeps ------------------------------------------------------------------------------------------------------


def sweep(job: Write, count: int) -> list[Job]:
    found = points(read_table(job(sweep={"seeds": count})), "job")
    Path("sw").mkdir()
    write_sweep(Path("sw"), found)
    return [point.job for point in found]


def states(folder: str = "sw") -> list[str]:
    return [point["state"] for point in status(folder)[0]["points"]]


def test_a_sweep(slurm: Slurm, job: Write) -> None:
    jobs = sweep(job, 7)
    leave(Path("sw/point-0000"), jobs[0], 0, rounds=100)
    leave(Path("sw/point-0001"), jobs[1], 75, rounds=30, saved=20, slurm_job="101")
    leave(Path("sw/point-0002"), jobs[2], None, rounds=10, slurm_job="102")
    leave(Path("sw/point-0003"), jobs[3], 68)
    leave(Path("sw/point-0004"), jobs[4], None, rounds=40, saved=30, slurm_job="104")
    submitted(Path("sw"), "100", array=[0, 1, 2, 3, 4, 5], names=tuple(f"point-{k:04d}" for k in range(7)))
    slurm.queue("100_2|102|RUNNING|None|n1", "100_5|100|PENDING|JobArrayTaskLimit|")
    slurm.answer("sacct", "100_1|101|COMPLETED|0:0|n1\n100_4|104|NODE_FAIL|0:9|n2\n100_2|102|RUNNING|0:0|n1\n")
    assert states() == ["done", "resumable", "running", "failed", "resumable", "queued", "waiting"]
    (found,) = status("sw")
    assert found["points"][4]["why"] == "killed (NODE_FAIL on n2); checkpoint at round 30"
    assert found["points"][2]["settings"] == {"seed": 3} and found["points"][5]["job"] == "100_5"
    assert found["counts"]["resumable"] == 2 and found["next"] == "mpifed submit job.toml --time 1:00:00"
    assert slurm.asked("squeue")[0].startswith("--noheader --array --jobs=100 ")
    text = CliRunner().invoke(main, ["status", "sw"]).output.splitlines()
    assert text[0] == "sw: sweep of 7 points: 1 done, 1 running, 1 queued, 2 resumable, 1 waiting, 1 failed"
    assert text[2].split()[:4] == ["point-0000", "seed=1", "done", "100/100"]
    assert len(text) == 2 + 7 + 1 and text[-1] == "next: mpifed submit job.toml --time 1:00:00"


def test_a_sweep_in_one_job(slurm: Slurm, job: Write) -> None:
    jobs = sweep(job, 5)
    leave(Path("sw/point-0000"), jobs[0], 0, slurm_job="100")
    leave(Path("sw/point-0001"), jobs[1], 1, slurm_job="100")
    leave(Path("sw/point-0002"), jobs[2], None, slurm_job="100")
    leave(Path("sw/point-0003"), jobs[3], None, slurm_job="90")  # of an earlier job, which was killed
    submitted(Path("sw"), "100", names=tuple(f"point-{k:04d}" for k in range(5)))
    slurm.queue("100|100|RUNNING|None|n1")
    assert states() == ["done", "failed", "running", "queued", "queued"]
    slurm.queue("100|100|PENDING|BeginTime|")
    assert states() == ["done", "failed", "queued", "queued", "queued"]


@pytest.mark.parametrize(
    ("codes", "record", "said"),
    [
        ((0, 0), True, "mpifed compare sw"),
        ((0, 75), True, "mpifed submit job.toml --time 1:00:00"),
        ((0, 75), False, "mpirun -n P mpifed run JOB.toml --out sw --resume"),
        ((0, 68), True, "mpifed compare sw"),
    ],
)
def test_what_to_do_next(nowhere: Path, job: Write, codes: tuple[int, ...], record: bool, said: str) -> None:
    jobs = sweep(job, 2)
    for number, code in enumerate(codes):
        leave(Path(f"sw/point-{number:04d}"), jobs[number], code)
    if record:
        submitted(Path("sw"), "100", array=[0, 1], names=("point-0000", "point-0001"))
    assert status("sw")[0]["next"] == said


# --- all runs below a folder -------------------------------------------------------------------------------------


def test_all_runs_below_a_folder(nowhere: Path, job: Write, made: Job) -> None:
    leave(Path("runs/done"), made, 0, rounds=100)
    leave(Path("runs/2026/cut off"), made, 75, rounds=30, saved=20)
    failed = leave(Path("runs/2026/bad"), made, 68, rounds=10)
    (failed / "failure.txt").write_text("mpifed: error: round 7: not finite\n")
    jobs = sweep(job, 2)
    Path("runs/2026/deep").mkdir()
    Path("sw").rename("runs/2026/deep/sw")
    leave(Path("runs/2026/deep/sw/point-0001"), jobs[1], process=this_process(), rounds=40)
    Path("runs/data/shards").mkdir(parents=True)
    leave(Path("runs/.old.overwritten-here-1"), made, 0)
    text = CliRunner().invoke(main, ["status", "runs"]).output.splitlines()
    assert text[0] == "runs: 5 runs: 1 done, 1 running, 1 resumable, 1 waiting, 1 failed"
    assert text[1].split() == ["run", "state", "round", "objective", "accuracy", "changed"]
    rows = [re.split(r" {2,}", line.strip()) for line in text[2:7]]
    assert [row[:4] for row in rows] == [
        ["2026/bad", "failed (68)", "10/100", "0.0909091"],
        ["2026/cut off", "resumable", "30/100", "0.0322581"],
        ["2026/deep/sw/point-0000", "waiting"],
        ["2026/deep/sw/point-0001", "running", "40/100", "0.0243902"],
        ["done", "done", "100/100", "0.00990099"],
    ]
    assert rows[0][-1].endswith(" ago")
    assert text[7].startswith("runs/2026/bad: failed: exit 68, numerical trouble") and "not finite" in text[7]
    assert text[8] == "runs/2026/cut off: resumable: interrupted; checkpoint at round 20"
    assert text[9:] == ["next: mpifed status runs/2026/bad"]
