"""`mpifed submit` on a make-believe cluster, and what `mpifed show` makes of files, processes and Slurm."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from written_files import read_json, write_json

import mpifed as mf
from mpifed.batch.submit import SCRIPT
from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.results.points import write_sweep
from mpifed.testing import Job

Write = Callable[..., Path]


def submit(code: int, *arguments: object) -> str:
    """What `mpifed submit` says, ending with this code."""
    ended = CliRunner().invoke(main, ["submit", *map(str, arguments)])
    assert ended.exit_code == code, ended.output
    return ended.output


def test_a_run(slurm: Any, job: Write, here: Path) -> None:
    """All options that are not its own go to sbatch, as they were typed; its record is written through no link."""
    (here / "victim").write_text("mine")
    (here / "runs").mkdir()
    (here / "runs/a.submitted.json.new").symlink_to(here / "victim")
    text = submit(0, job(), "--out", "runs/a", "--nodes=2", "--time=1:00:00", "--set", "rounds=50", "--qos", "high")
    words = "--job-name=tried --output=runs/a-%j.log --ntasks-per-node=1 --nodes=2 --time=1:00:00 --qos high"
    words += f" {SCRIPT} {here}/job.toml runs/a --set rounds=50"
    assert slurm.asked("sbatch") == [f"{how} {words}" for how in ("--test-only", "--parsable")]
    for said in (
        "submitted job 123: runs/a\n", "squeue --jobs=123 ", "tail -F runs/a-123.log ", "mpifed show runs/a ",
        "scancel --signal=USR1 --batch 123 ", "scancel 123 ",
    ):  # fmt: skip
        assert said in text
    (one,) = read_json(here / "runs/a.submitted.json")["submissions"]
    assert (one["id"], one["log"], one["points"]) == ("123", "runs/a-%j.log", None)
    assert (here / "victim").read_text() == "mine"


def test_a_dry_run_gives_a_command(slurm: Any, job: Write) -> None:
    """What is found goes to the standard error; nothing is written, and no Slurm is needed."""
    slurm.answer("sbatch", error="allocation failure: not available", code=1)
    ended = CliRunner().invoke(main, ["submit", str(job()), "--nodes=2", "--dry-run"])
    words = ["sbatch", "--job-name=tried", "--output=runs/tried-%j.log", "--ntasks-per-node=1", "--nodes=2"]
    assert ended.exit_code == 0 and shlex.split(ended.stdout)[:6] == [*words, str(SCRIPT)]  # in a folder with a space
    assert "warning   sbatch failed: allocation failure: not available" in ended.stderr
    assert len(slurm.asked("sbatch")) == 1 and not Path("runs").exists()
    assert "not available" in submit(1, job(), "--nodes=2") and not Path("runs/tried.submitted.json").exists()
    (slurm.folder / "sbatch").unlink()
    submit(0, job(), "--dry-run")
    assert "no sbatch on PATH" in submit(2, job())


REFUSED: list[tuple[list[object], str]] = [
    (["--array"], "has no [sweep], so it is one run; leave --array out, or add a sweep"),
    (["--throttle", 2], "--throttle needs --array"),
    (["--export=NONE"], "--export=NONE (or SBATCH_EXPORT): the job needs the environment from which it is submitted"),
    (["--export=PATH,HOME"], "leave it out, or give --export=ALL,NAME=VALUE"),
    (["--comment=a\nb"], "since it is a word of sbatch's command"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_is_refused(slurm: Any, job: Write, arguments: list[object], said: str) -> None:
    assert said in submit(2, job(), *arguments)
    assert slurm.asked("sbatch") == [] and not Path("runs").exists()
    submit(0, job(), "--export=ALL,NAME=1")


def test_not_twice(slurm: Any, job: Write) -> None:
    """Nor while Slurm does not answer; again where it was cancelled before it began."""
    submit(0, job())
    for line, what in (("123|123|PENDING|Resources|", "queued"), ("123|123|RUNNING|None|n1", "running")):
        slurm.queue(line)
        assert f"runs/tried: it is {what} already (job 123)" in submit(2, job())
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    assert "squeue does not respond, so job 123 may still be queued or running" in submit(1, job())
    slurm.queue()
    slurm.answer("sbatch", "124\n", code=3)
    assert "job 124 has ended with code 3" in submit(1, job(), "--wait")
    assert slurm.asked("sbatch")[-1].startswith("--parsable --wait ")
    assert [one["id"] for one in read_json(Path("runs/tried.submitted.json"))["submissions"]] == ["123", "124"]


@pytest.mark.parametrize(("code", "about", "changes", "said"), [
    (None, {"process": this_process()}, [], "tried: it is running already (in a process on this machine); see `mpifed"),
    *((code, {}, [], "give --set rounds=... for more rounds") for code in (0, 69, 70)),
    (68, {}, [], "failed numerically, and would fail the same way again"),
    (75, {}, ["--set", "seed=2"], "--resume with another job (seed: 1 before, 2 now)"),
    (75, {}, ["--set", "sweep.seeds=3"], "--out runs/tried: holds a run; choose another folder"),
])  # fmt: skip
def test_not_what_runs_has_ended_or_is_another(
    slurm: Any, job: Write, leave: Write, code: int | None, about: dict[str, Any], changes: list[str], said: str
) -> None:
    leave("runs/tried", Job.read(job()), code, **about)
    assert said in submit(2, job(), *changes)
    if code is not None:
        submit(0, job(), "--set", "rounds=200")


def test_only_the_points_that_are_left(slurm: Any, job: Write, leave: Write) -> None:
    path = job(sweep={"seeds": 8})
    made = points(read_table(path), "job")
    for number, code in {0: 0, 1: 75, 2: 68, 3: 1, 4: 69}.items():
        leave(Path("runs/tried") / made[number].name, made[number].job, code)
    assert "submitted job 123, 5 of 8 points: runs/tried" in submit(0, path, "--array", "--throttle", 2)
    assert " --nodes=1 --ntasks-per-node=1 --array=0-4%2 " in slurm.asked("sbatch")[-1]
    slurm.queue("123_0|124|RUNNING|None|n1", "123_1|125|RUNNING|None|n1", "123_3|123|PENDING|Resources|")
    names = " ".join(made[k].name.removeprefix("point-") for k in (5, 7))  # Slurm says that these have been cancelled
    said = submit(0, path, "--array", "--dry-run")
    assert said.startswith(f"env 'MPIFED_POINTS={names}' sbatch ") and " --array=0-1 " in said
    assert "3 of 8 points are queued or running already (job 123)" in submit(2, path)
    slurm.queue(*(f"123_{k}|{124 + k}|PENDING|Resources|" for k in range(5)))
    assert "5 of 8 points are queued or running already (job 123)" in submit(2, path, "--array")
    grown = job(sweep={"seeds": 9})  # a point is the same, whatever number it has
    assert "submitted job 123, 1 of 9 points" in submit(0, grown, "--array")


def test_from_python(slurm: Any, job: Write, leave: Write, digits: Path) -> None:
    """The same command, from a file or from objects, written as a job beside the run; then what has become of it."""
    submitted = mf.submit(job(), out="runs/a", sbatch={"nodes": 2, "time": 30})
    assert "--nodes=2 --time=30 " in slurm.asked("sbatch")[-1]
    method = mf.FedAvg(batch_size=8, client_optimizer=mf.SGD(0.1))
    mf.submit(method, digits, mf.Softmax(), rounds=9, out="runs/b", sbatch={})
    assert Job.read(Path("runs/b.toml")).rounds == 9 and slurm.asked("sbatch")[-1].endswith("runs/b.toml runs/b")
    with pytest.raises(mf.MpifedError, match=r"runs/a: a is waiting: not begun; next: `mpifed submit .*job.toml --out"):
        submitted.result()
    leave("runs/a", Job.read(job()), 0)
    done = submitted.result()
    assert isinstance(done, mf.Run) and done.exit == 0


# --- what has become of them ----------------------------------------------------------------------------------------

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
    (68, "failed", "exit 68, numerical trouble: it would fail the same way again"),
    (139, "failed", "exit 139, signal 11"), (1, "failed", "exit 1, error: KeyError: 1"),
]  # fmt: skip


def test_how_a_run_ended_and_without_slurm_the_process_decides(nowhere: Path, made: Job, leave: Write) -> None:
    for code, state, why in ENDS:
        folder = leave(f"{code}/a", made, code, rounds=30, saved=20)
        (folder / "failure.txt").write_text("Traceback (most recent call last):\n  File\nKeyError: 1\n" * (code == 1))
        (point,) = status(str(code))["points"]
        assert [point[name] for name in ("state", "why", "exit")] == [state, why, code]
        assert [point[name] for name in ("round", "rounds", "checkpoint")] == [30, 100, 20]
    if not (dead := os.fork()):
        os._exit(0)
    os.waitpid(dead, 0)
    alive = this_process()
    for name, process, saved, expected in (
        ("alive", alive, 0, ("running", "in a process on this machine")),
        ("dead", alive | {"pid": dead}, 20, ("resumable", f"killed{LATER}")),
        ("early", alive | {"pid": dead}, 0, ("resumable", "killed; no checkpoint: it starts over")),
        ("later", alive | {"started": 1}, 20, ("resumable", f"killed{LATER}")),  # another has the number
        ("elsewhere", alive | {"host": "another"}, 20, ("unknown", "killed or still running")),
    ):
        leave(f"{name}/a", made, rounds=30, saved=saved, process=process)
        assert run_of(name) == expected, name


STATES: list[tuple[list[str], str | None, int | None, tuple[str, str]]] = [
    # in the queue, of accounting, the exit code in run.json (-1: there is none), state and why
    (["7|7|PENDING|Resources|"], None, -1, ("queued", "pending, Resources")),
    (["7|7|RUNNING|None|n[1-4]"], None, -1, ("running", "on n[1-4]")),
    (["7|7|RUNNING|None|n1"], None, 75, ("running", "on n1")),  # queued again, it has not written yet
    (["7|7|COMPLETING|None|n1"], None, 0, ("done", "done")),
    ([], "7|7|TIMEOUT|0:9|n3\n", None, ("resumable", f"killed (TIMEOUT on n3){LATER}")),
    (["unknown"], "7|7|TIMEOUT|0:9|n3\n", None, ("unknown", "killed or still running")),
    ([], None, -1, ("waiting", "not begun")),  # and nobody remembers it
    ([], "7|7|CANCELLED by 0|0:0|None assigned\n", -1, ("waiting", "never begun (CANCELLED on None assigned)")),
    ([], "7|7|FAILED|3:0|n1\n", -1,
     ("failed", "exit 3, data: a file is missing or damaged: data/federation.h5: no such file")),
]  # fmt: skip


@pytest.mark.parametrize(("queue", "ended", "code", "expected"), STATES)
def test_what_slurm_says(
    slurm: Any, made: Job, leave: Write, queue: list[str], ended: Any, code: int | None, expected: tuple[str, str]
) -> None:
    submitted("runs/a", "7")
    log = "mpifed: warning: x\nmpifed: error: data/federation.h5: no such file\nsrun: error: n1\n"
    Path("runs/a-7.log").write_text(log)
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


Ends = list[tuple[int | None, dict[str, Any]] | None]


def sweep(job: Write, leave: Write, ends: Ends) -> list[str]:
    """The names of the points of a sweep whose runs have ended so; None: not begun."""
    found = points(read_table(job(sweep={"seeds": len(ends)})), "job")
    found = [point._replace(name=f"point-{number:04d}") for number, point in enumerate(found)]
    for point, end in zip(found, ends, strict=True):
        if end is not None:
            leave(f"runs/sw/{point.name}", point.job, end[0], **end[1])
    write_sweep(Path("runs/sw"), found)
    return [point.name for point in found]


def test_a_sweep_as_an_array(slurm: Any, job: Write, leave: Write) -> None:
    ends: Ends = [
        (0, {"rounds": 100}), (75, {"rounds": 30, "saved": 20, "slurm_job": "101"}),
        (None, {"rounds": 10, "slurm_job": "102"}), (68, {}), (None, {"rounds": 40, "saved": 30, "slurm_job": "104"}),
        None, None,
    ]  # fmt: skip
    names = sweep(job, leave, ends)
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


@pytest.mark.parametrize(("codes", "record", "said"), [
    ((0, 0), True, "mpifed compare runs/sw"), ((0, 75), True, "mpifed submit job.toml"),
    ((0, 75), False, "mpirun -n P mpifed run JOB.toml --out runs/sw --resume"),
    ((0, 68), True, "mpifed compare runs/sw"),
])  # fmt: skip
def test_what_to_do_next(
    nowhere: Path, job: Write, leave: Write, codes: tuple[int, ...], record: bool, said: str
) -> None:
    names = sweep(job, leave, [(code, {}) for code in codes])
    if record:
        submitted("runs/sw", "100", names, names)
    assert status()["next"] == said


def test_all_runs_below_a_folder(nowhere: Path, made: Job, leave: Write) -> None:
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
