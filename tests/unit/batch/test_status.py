"""`mpifed show`: what files, processes and a make-believe Slurm say of runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import Slurm, killed
from written_files import write_json

from mpifed.batch.states import Submission, Submissions, found_in, last_words, status_of, write_record
from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.results.points import write_sweep
from mpifed.testing import Job

Write = Callable[..., Path]
HEADER = "round,elapsed_s,train_loss,test_accuracy,objective,up_bytes,down_bytes,epsilon\n"


def status(folder: object) -> list[dict[str, Any]]:
    return [status_of(found).table() for found in found_in(Path(str(folder)))]


def run_of(folder: object) -> tuple[str, str]:
    (point,) = status(folder)[0]["points"]
    return point["state"], point["why"]


def leave(run_dir: Path, job: Job, code: int | None = None, rounds: int = 0, saved: int = 0, **run: Any) -> Path:
    """What a run leaves behind: measured and checkpointed so far."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "job.toml").write_text(job.text())
    write_json(run_dir / "run.json", {"rounds": rounds if code is not None else 0, "exit": code, **run})
    rows = [f"{k},0.5,0.25,,{1 / (k + 1)},1,1,\n" for k in range(0, rounds + 1, 10)]
    (run_dir / "history.csv").write_text(HEADER + "".join(rows))
    if saved:
        (run_dir / "checkpoint" / f"round-{saved:08d}").mkdir(parents=True)
    return run_dir


def submitted(out: Path, id: str, array: list[int] | None = None, count: int = 0) -> None:
    log = f"{out}-%A_%a.log" if array is not None else f"{out}-%j.log"
    tasks = None if array is None else [f"point-{k:04d}" for k in array]
    one = Submission(id=id, when="2026-01-01T00:00:00+00:00", command=["submit", "job.toml"], log=log, points=tasks)
    write_record(out, Submissions(job="job.toml", points=[f"point-{k:04d}" for k in range(count)], submissions=[one]))


@pytest.fixture
def made(job: Write) -> Job:
    return Job.read(job())


ENDS = [
    (0, "done", "done"), (69, "done", "a limit is not met, or what [stop] asks for not reached; its result is valid"),
    (70, "done", "the privacy budget is reached; its result is valid"),
    (75, "resumable", "interrupted; checkpoint at round 20"), (1, "failed", "exit 1, error"),
    (68, "failed", "exit 68, numerical trouble: it would fail the same way again"),
    (139, "failed", "exit 139, signal 11"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "state", "why"), ENDS)
def test_how_a_run_ended(nowhere: Path, made: Job, code: int, state: str, why: str) -> None:
    (point,) = status(leave(Path("runs/a"), made, code, rounds=30, saved=20))[0]["points"]
    assert [point[name] for name in ("state", "why", "exit")] == [state, why, code]
    assert [point[name] for name in ("round", "rounds", "checkpoint")] == [30, 100, 20]
    assert point["objective"] == pytest.approx(1 / 31)


def test_without_slurm_the_process_decides(nowhere: Path, made: Job) -> None:
    here = this_process()
    dead, elsewhere = here | {"pid": killed()}, {"host": "another", "pid": os.getpid(), "started": 1}
    for name, process, saved, expected in (
        ("alive", here, 0, ("running", "in a process on this machine")),
        ("dead", dead, 20, ("resumable", "killed; checkpoint at round 20")),
        ("early", dead, 0, ("resumable", "killed; no checkpoint: it starts over")),
        ("later", here | {"started": 1}, 20, ("resumable", "killed; checkpoint at round 20")),  # another has the number
        ("elsewhere", elsewhere, 20, ("unknown", "killed or still running")),
        ("old", None, 20, ("unknown", "killed or still running")),  # of an older version
    ):
        run = leave(Path(name), made, rounds=30, saved=saved, **({"process": process} if process else {}))
        assert run_of(run) == expected, name


# --- with Slurm -----------------------------------------------------------------------------------------------------


def test_a_job_in_the_queue(slurm: Slurm, made: Job) -> None:
    submitted(Path("a"), "7")
    slurm.queue("7|7|PENDING|Resources|")
    assert run_of("a") == ("queued", "pending, Resources") and status("a")[0]["next"] == "squeue --jobs=7"
    slurm.queue("7|7|RUNNING|None|n[1-4]")
    assert run_of("a") == ("running", "on n[1-4]")
    leave(Path("a"), made, 75, rounds=30, saved=20, slurm_job="7")  # it was queued again, and has not written yet
    assert run_of("a")[0] == "running"
    slurm.queue("7|7|PENDING|BeginTime|")
    assert run_of("a") == ("queued", "pending, BeginTime")
    leave(Path("a"), made, 0, rounds=30, slurm_job="7")
    slurm.queue("7|7|COMPLETING|None|n1")
    assert run_of("a")[0] == "done"
    folder = leave(Path("b"), made, slurm_job="9", rounds=30, saved=20)  # submitted by sbatch itself
    slurm.queue("9|9|RUNNING|None|n2")
    assert run_of(folder)[0] == "running"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("TIMEOUT", "killed (TIMEOUT on n3)"), ("OUT_OF_MEMORY", "killed (OUT_OF_MEMORY on n3)"),
        ("CANCELLED by 1000", "killed (CANCELLED on n3)"), ("COMPLETED", "killed"),
    ],
)  # fmt: skip
def test_why_a_job_ended(slurm: Slurm, made: Job, state: str, said: str) -> None:
    submitted(Path("a"), "7")
    leave(Path("a"), made, slurm_job="7", rounds=30, saved=20)
    slurm.answer("sacct", f"7|7|{state}|0:9|n3\n")
    assert run_of("a") == ("resumable", f"{said}; checkpoint at round 20")
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    assert run_of("a")[0] == "unknown" and status("a")[0]["slurm"] is False


def test_a_job_that_never_began(slurm: Slurm) -> None:
    submitted(Path("a"), "7")
    assert run_of("a") == ("waiting", "not begun")  # and nobody remembers it
    slurm.answer("sacct", "7|7|CANCELLED by 0|0:0|None assigned\n")
    assert run_of("a")[0] == "waiting" and "CANCELLED" in run_of("a")[1]
    slurm.answer("sacct", "7|7|FAILED|3:0|n1\n")
    Path("a-7.log").write_text("mpifed: warning: x\nmpifed: error: data/federation.h5: no such file\nsrun: error: n1\n")
    assert run_of("a") == ("failed", "exit 3, data: a file is missing or damaged: data/federation.h5: no such file")


def test_last_words(tmp_path: Path) -> None:
    for log, said in (
        ("all is well\nround 3\n", ""),
        ("slurmstepd: error: Detected 1 oom_kill event\nround 5\n", "slurmstepd: error: Detected 1 oom_kill event"),
        ("mpifed: interrupted after round 5, whose checkpoint is written\nmpifed: note: queued again: job 7\n", ""),
        ("Traceback (most recent call last):\n  File\nKeyError: 1\n", "KeyError: 1"),
        ("x\n" * 100000 + "mpifed: error: at the end\n", "at the end"),
    ):
        (tmp_path / "log").write_text(log)
        assert last_words(tmp_path / "log") == said
    assert last_words(tmp_path / "none") == ""


# --- sweeps ---------------------------------------------------------------------------------------------------------


def sweep(job: Write, count: int) -> list[Job]:
    found = points(read_table(job(sweep={"seeds": count})), "job")
    found = [point._replace(name=f"point-{number:04d}") for number, point in enumerate(found)]
    Path("sw").mkdir()
    write_sweep(Path("sw"), found)
    return [point.job for point in found]


def states() -> list[str]:
    return [point["state"] for point in status("sw")[0]["points"]]


def test_a_sweep(slurm: Slurm, job: Write) -> None:
    jobs = sweep(job, 7)
    leave(Path("sw/point-0000"), jobs[0], 0, rounds=100)
    leave(Path("sw/point-0001"), jobs[1], 75, rounds=30, saved=20, slurm_job="101")
    leave(Path("sw/point-0002"), jobs[2], None, rounds=10, slurm_job="102")
    leave(Path("sw/point-0003"), jobs[3], 68)
    leave(Path("sw/point-0004"), jobs[4], None, rounds=40, saved=30, slurm_job="104")
    submitted(Path("sw"), "100", [0, 1, 2, 3, 4, 5], 7)
    slurm.queue("100_2|102|RUNNING|None|n1", "100_5|100|PENDING|JobArrayTaskLimit|")
    slurm.answer("sacct", "100_1|101|COMPLETED|0:0|n1\n100_4|104|NODE_FAIL|0:9|n2\n100_2|102|RUNNING|0:0|n1\n")
    assert states() == ["done", "resumable", "running", "failed", "resumable", "queued", "waiting"]
    (found,) = status("sw")
    assert found["points"][4]["why"] == "killed (NODE_FAIL on n2); checkpoint at round 30"
    assert found["points"][5]["job"] == "100_5" and found["next"] == "mpifed submit job.toml"
    text = CliRunner().invoke(main, ["show", "sw"]).output.splitlines()
    assert text[1].split()[:3] == ["sw/point-0000", "done", "100/100"]
    assert text[8:] == ["1 done, 1 running, 1 queued, 2 resumable, 1 waiting, 1 failed", "next: mpifed submit job.toml"]


def test_a_sweep_in_one_job(slurm: Slurm, job: Write) -> None:
    jobs = sweep(job, 5)
    for number, code, slurm_job in ((0, 0, "100"), (1, 1, "100"), (2, None, "100"), (3, None, "90")):
        leave(
            Path(f"sw/point-{number:04d}"), jobs[number], code, slurm_job=slurm_job
        )  # 90: an earlier, which was killed
    submitted(Path("sw"), "100", None, 5)
    slurm.queue("100|100|RUNNING|None|n1")
    assert states() == ["done", "failed", "running", "queued", "queued"]
    slurm.queue("100|100|PENDING|BeginTime|")
    assert states() == ["done", "failed", "queued", "queued", "queued"]


@pytest.mark.parametrize(
    ("codes", "record", "said"),
    [
        ((0, 0), True, "mpifed compare sw"), ((0, 75), True, "mpifed submit job.toml"),
        ((0, 75), False, "mpirun -n P mpifed run JOB.toml --out sw --resume"), ((0, 68), True, "mpifed compare sw"),
    ],
)  # fmt: skip
def test_what_to_do_next(nowhere: Path, job: Write, codes: tuple[int, ...], record: bool, said: str) -> None:
    jobs = sweep(job, 2)
    for number, code in enumerate(codes):
        leave(Path(f"sw/point-{number:04d}"), jobs[number], code)
    if record:
        submitted(Path("sw"), "100", [0, 1], 2)
    assert status("sw")[0]["next"] == said


def test_all_runs_below_a_folder(nowhere: Path, job: Write, made: Job) -> None:
    """What is only submitted too; no link is followed."""
    leave(Path("runs/done"), made, 0, rounds=100)
    (leave(Path("runs/2026/bad"), made, 68, rounds=10) / "failure.txt").write_text(
        "mpifed: error: round 7: not finite\n"
    )
    leave(Path("elsewhere/linked"), made, 0)
    Path("runs/link").symlink_to(Path("elsewhere").resolve())
    submitted(Path("runs/soon"), "7")
    leave(Path("runs/.old.overwritten-here-1"), made, 0)
    text = CliRunner().invoke(main, ["show", "runs"]).output.splitlines()
    assert [line.split()[:2] for line in text[1:4]] == [
        ["runs/2026/bad", "failed"], ["runs/done", "done"], ["runs/soon", "waiting"]
    ]  # fmt: skip
    assert "not finite" in text[1] and text[4] == "1 done, 1 waiting, 1 failed" and len(text) == 8
    ended = CliRunner().invoke(main, ["show", "nobody"])
    assert ended.exit_code == 3 and "nobody: no such folder" in ended.stderr


def test_a_run_that_has_not_ended_says_what_is_next(slurm: Slurm, made: Job) -> None:
    submitted(Path("a"), "7")
    slurm.queue("7|7|RUNNING|None|n1")
    for code, said in ((75, "next: squeue --jobs=7"), (0, "done (exit 0)")):
        leave(Path("a"), made, code, rounds=30)
        ended = CliRunner().invoke(main, ["show", "a"])
        assert ended.exit_code == 0 and said in ended.output and ("next: " in ended.output) == (code == 75)
