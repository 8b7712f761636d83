"""`mpifed show`: what files, processes and a make-believe Slurm say of runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import Slurm, leave
from written_files import write_json

from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.results.points import write_sweep
from mpifed.testing import Job

Write = Callable[..., Path]
LATER = "; checkpoint at round 20"


def show(folder: object, *options: str) -> str:
    return str(CliRunner().invoke(main, ["show", str(folder), *options]).output)


def status(folder: str = "runs") -> dict[str, Any]:
    """What `mpifed show` says of the only run, or sweep, below a folder."""
    (found,) = json.loads(show(folder, "--json"))
    return dict(found)


def run_of(folder: str = "runs") -> tuple[str, str]:
    (point,) = status(folder)["points"]
    return point["state"], point["why"]


def submitted(out: str, id: str, array: list[str] | None = None, names: list[str] | None = None) -> None:
    Path(out).parent.mkdir(exist_ok=True)
    log = f"{out}-%A_%a.log" if array is not None else f"{out}-%j.log"
    one = {"id": id, "when": "2026-01-01T00:00:00+00:00", "command": ["submit", "job.toml"], "log": log}
    record = {"job": "job.toml", "points": names or [], "submissions": [{**one, "points": array}]}
    write_json(Path(f"{out}.submitted.json"), record)


@pytest.fixture
def made(job: Write) -> Job:
    return Job.read(job())


ENDS = [
    (0, "done", "done"), (69, "done", "a limit is not met, or what [stop] asks for not reached; its result is valid"),
    (70, "done", "the privacy budget is reached; its result is valid"), (75, "resumable", f"interrupted{LATER}"),
    (1, "failed", "exit 1, error"), (68, "failed", "exit 68, numerical trouble: it would fail the same way again"),
    (139, "failed", "exit 139, signal 11"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "state", "why"), ENDS)
def test_how_a_run_ended(nowhere: Path, made: Job, code: int, state: str, why: str) -> None:
    leave("runs/a", made, code, rounds=30, saved=20)
    (point,) = status()["points"]
    assert [point[name] for name in ("state", "why", "exit")] == [state, why, code]
    assert [point[name] for name in ("round", "rounds", "checkpoint")] == [30, 100, 20]
    assert point["objective"] == pytest.approx(1 / 31)


def test_without_slurm_the_process_decides(nowhere: Path, made: Job) -> None:
    if not (dead := os.fork()):
        os._exit(0)
    os.waitpid(dead, 0)
    here = this_process()
    for name, process, saved, expected in (
        ("alive", here, 0, ("running", "in a process on this machine")),
        ("dead", here | {"pid": dead}, 20, ("resumable", f"killed{LATER}")),
        ("early", here | {"pid": dead}, 0, ("resumable", "killed; no checkpoint: it starts over")),
        ("later", here | {"started": 1}, 20, ("resumable", f"killed{LATER}")),  # another has the number
        ("elsewhere", here | {"host": "another"}, 20, ("unknown", "killed or still running")),
        ("old", None, 20, ("unknown", "killed or still running")),  # of an older version
    ):
        leave(f"{name}/a", made, rounds=30, saved=saved, **({"process": process} if process else {}))
        assert run_of(name) == expected, name


STATES: list[tuple[list[str], str | None, int | None, tuple[str, str]]] = [
    # in the queue, of accounting, the exit code in run.json (-1: there is none), state and why
    (["7|7|PENDING|Resources|"], None, -1, ("queued", "pending, Resources")),
    (["7|7|RUNNING|None|n[1-4]"], None, -1, ("running", "on n[1-4]")),
    (["7|7|RUNNING|None|n1"], None, 75, ("running", "on n1")),  # queued again, it has not written yet
    (["7|7|PENDING|BeginTime|"], None, 75, ("queued", "pending, BeginTime")),
    (["7|7|COMPLETING|None|n1"], None, 0, ("done", "done")),
    ([], "7|7|TIMEOUT|0:9|n3\n", None, ("resumable", f"killed (TIMEOUT on n3){LATER}")),
    ([], "7|7|NODE_FAIL|0:9|n3\n", None, ("resumable", f"killed (NODE_FAIL on n3){LATER}")),
    (["unknown"], "7|7|TIMEOUT|0:9|n3\n", None, ("unknown", "killed or still running")),
    ([], None, -1, ("waiting", "not begun")),  # and nobody remembers it
    ([], "7|7|CANCELLED by 0|0:0|None assigned\n", -1, ("waiting", "never begun (CANCELLED on None assigned)")),
    ([], "7|7|FAILED|3:0|n1\n", -1,
     ("failed", "exit 3, data: a file is missing or damaged: data/federation.h5: no such file")),
]  # fmt: skip


@pytest.mark.parametrize(("queue", "ended", "code", "expected"), STATES)
def test_what_slurm_says(
    slurm: Slurm, made: Job, queue: list[str], ended: str | None, code: int | None, expected: tuple[str, str]
) -> None:
    submitted("runs/a", "7")
    Path("runs/a-7.log").write_text(
        "mpifed: warning: x\nmpifed: error: data/federation.h5: no such file\nsrun: error: n1\n"
    )
    if code != -1:
        leave("runs/a", made, code, rounds=30, saved=20, slurm_job="7")
    if ended is not None:
        slurm.answer("sacct", ended)
    if queue == ["unknown"]:
        slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    else:
        slurm.queue(*queue)
    state, why = expected
    assert run_of() == (state, f"{why}: data/federation.h5: no such file" if "killed" in why else why)
    assert status()["slurm"] == (queue != ["unknown"])
    assert (status()["next"] == "squeue --jobs=7") == (state in ("queued", "running"))
    if code in (0, 75):  # of a run alone the results, and what is next where it has not ended
        text = show("runs/a")
        assert ("next: squeue --jobs=7" in text) == (code == 75) and ("done (exit 0)" in text) == (code == 0)


def test_last_words(nowhere: Path, made: Job) -> None:
    leave("runs/a", made, 1)
    for log, said in (
        ("all is well\nround 3\n", ""),
        ("slurmstepd: error: Detected 1 oom_kill event\nround 5\n", ": slurmstepd: error: Detected 1 oom_kill event"),
        ("mpifed: interrupted after round 5, whose checkpoint is written\nmpifed: note: queued again: job 7\n", ""),
        ("Traceback (most recent call last):\n  File\nKeyError: 1\n", ": KeyError: 1"),
        ("x\n" * 100000 + "mpifed: error: at the end\n", ": at the end"),
    ):
        Path("runs/a/failure.txt").write_text(log)
        assert run_of() == ("failed", f"exit 1, error{said}")


# --- sweeps ---------------------------------------------------------------------------------------------------------


def sweep(job: Write, *ends: tuple[int | None, dict[str, Any]] | None) -> list[str]:
    """The names of the points of a sweep whose runs have ended so; None: not begun."""
    found = points(read_table(job(sweep={"seeds": len(ends)})), "job")
    found = [point._replace(name=f"point-{number:04d}") for number, point in enumerate(found)]
    for point, end in zip(found, ends, strict=True):
        if end is not None:
            leave(f"runs/sw/{point.name}", point.job, end[0], **end[1])
    Path("runs/sw").mkdir(exist_ok=True, parents=True)
    write_sweep(Path("runs/sw"), found)
    return [point.name for point in found]


def test_a_sweep(slurm: Slurm, job: Write) -> None:
    """As an array; then in one job, which runs one point after the other."""
    names = sweep(
        job, (0, {"rounds": 100}), (75, {"rounds": 30, "saved": 20, "slurm_job": "101"}),
        (None, {"rounds": 10, "slurm_job": "102"}), (68, {}), (None, {"rounds": 40, "saved": 30, "slurm_job": "104"}),
        None, None,
    )  # fmt: skip
    submitted("runs/sw", "100", names[:6], names)
    slurm.queue("100_2|102|RUNNING|None|n1", "100_5|100|PENDING|JobArrayTaskLimit|")
    slurm.answer("sacct", "100_1|101|COMPLETED|0:0|n1\n100_4|104|NODE_FAIL|0:9|n2\n100_2|102|RUNNING|0:0|n1\n")
    found = status()
    states = ["done", "resumable", "running", "failed", "resumable", "queued", "waiting"]
    assert [point["state"] for point in found["points"]] == states
    assert found["points"][4]["why"] == "killed (NODE_FAIL on n2); checkpoint at round 30"
    assert found["points"][5]["job"] == "100_5" and found["next"] == "mpifed submit job.toml"
    text = show("runs").splitlines()
    assert text[1].split()[:3] == ["runs/sw/point-0000", "done", "100/100"]
    assert text[8:] == ["1 done, 1 running, 1 queued, 2 resumable, 1 waiting, 1 failed", "next: mpifed submit job.toml"]


def test_a_sweep_in_one_job(slurm: Slurm, job: Write) -> None:
    ends = ((0, "8"), (1, "8"), (None, "8"), (None, "7"))  # 7: an earlier job, which was killed
    names = sweep(job, *((code, {"slurm_job": number}) for code, number in ends), None)
    submitted("runs/sw", "8", None, names)
    for line, third in (("8|8|RUNNING|None|n1", "running"), ("8|8|PENDING|BeginTime|", "queued")):
        slurm.queue(line)
        assert [point["state"] for point in status()["points"]] == ["done", "failed", third, "queued", "queued"]


@pytest.mark.parametrize(("codes", "record", "said"), [
    ((0, 0), True, "mpifed compare runs/sw"), ((0, 75), True, "mpifed submit job.toml"),
    ((0, 75), False, "mpirun -n P mpifed run JOB.toml --out runs/sw --resume"),
    ((0, 68), True, "mpifed compare runs/sw"),
])  # fmt: skip
def test_what_to_do_next(nowhere: Path, job: Write, codes: tuple[int, ...], record: bool, said: str) -> None:
    names = sweep(job, *((code, {}) for code in codes))
    if record:
        submitted("runs/sw", "100", names, names)
    assert status()["next"] == said


def test_all_runs_below_a_folder(nowhere: Path, made: Job) -> None:
    """What is only submitted too; no link is followed."""
    leave("runs/done", made, 0, rounds=100)
    leave("runs/2026/bad", made, 68, rounds=10).joinpath("failure.txt").write_text("mpifed: error: round 7: not finite")
    leave("elsewhere/linked", made, 0)
    Path("runs/link").symlink_to(Path("elsewhere").resolve())
    submitted("runs/soon", "7")
    leave("runs/.old.overwritten-here-1", made, 0)
    text = show("runs").splitlines()
    found = [line.split()[:2] for line in text[1:4]]
    assert found == [["runs/2026/bad", "failed"], ["runs/done", "done"], ["runs/soon", "waiting"]]
    assert "not finite" in text[1] and text[4] == "1 done, 1 waiting, 1 failed" and len(text) == 8
    assert "nobody: no such folder" in show("nobody")
