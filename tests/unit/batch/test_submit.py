"""`mpifed submit` on a make-believe cluster."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import Slurm, leave
from written_files import read_json

import mpifed as mf
from mpifed.batch.submit import SCRIPT
from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.testing import Job

Write = Callable[..., Path]


def call(code: int, *arguments: object) -> str:
    """What `mpifed submit` says, ending with this code."""
    ended = CliRunner().invoke(main, ["submit", *map(str, arguments)])
    assert ended.exit_code == code, ended.output
    return ended.output


def test_a_run(slurm: Slurm, job: Write, tmp_path: Path) -> None:
    """All options that are not its own go to sbatch, as they were typed; its record is written through no link."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/a.submitted.json.new").symlink_to(tmp_path / "victim")
    text = call(0, job(), "--out", "runs/a", "--nodes=2", "--time=1:00:00", "--set", "rounds=50", "--qos", "high")
    words = "--job-name=tried --output=runs/a-%j.log --ntasks-per-node=1 --nodes=2 --time=1:00:00 --qos high"
    words += f" {SCRIPT} {tmp_path}/job.toml runs/a --set rounds=50"
    assert slurm.asked("sbatch") == [f"{how} {words}" for how in ("--test-only", "--parsable")]
    for said in (
        "submitted job 123: runs/a\n", "squeue --jobs=123 ", "tail -F runs/a-123.log ", "mpifed show runs/a ",
        "scancel --signal=USR1 --batch 123 ", "scancel 123 ",
    ):  # fmt: skip
        assert said in text
    (one,) = read_json(tmp_path / "runs/a.submitted.json")["submissions"]
    assert (one["id"], one["log"], one["points"]) == ("123", "runs/a-%j.log", None)
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_dry_run_gives_a_command(slurm: Slurm, job: Write) -> None:
    """What is found goes to the standard error; nothing is written, and no Slurm is needed."""
    slurm.answer("sbatch", error="allocation failure: not available", code=1)
    ended = CliRunner().invoke(main, ["submit", str(job()), "--nodes=2", "--dry-run"])
    words = [
        "sbatch",
        "--job-name=tried",
        "--output=runs/tried-%j.log",
        "--ntasks-per-node=1",
        "--nodes=2",
        str(SCRIPT),
    ]
    assert ended.exit_code == 0 and shlex.split(ended.stdout)[:6] == words  # also in a folder with a space
    assert "warning   sbatch failed: allocation failure: not available" in ended.stderr
    assert len(slurm.asked("sbatch")) == 1 and not Path("runs").exists()
    assert "not available" in call(1, job(), "--nodes=2") and not Path("runs/tried.submitted.json").exists()
    (slurm.folder / "sbatch").unlink()
    call(0, job(), "--dry-run")
    assert "no sbatch on PATH" in call(2, job())


REFUSED: list[tuple[list[object], str]] = [
    (["--array"], "has no [sweep], so it is one run; leave --array out, or add a sweep"),
    (["--throttle", 2], "--throttle needs --array"),
    (["--export=NONE"], "--export=NONE (or SBATCH_EXPORT): the job needs the environment from which it is submitted"),
    (["--export=PATH,HOME"], "leave it out, or give --export=ALL,NAME=VALUE"),
    (["--comment=a\nb"], "since it is a word of sbatch's command"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_what_is_refused(slurm: Slurm, job: Write, arguments: list[object], said: str) -> None:
    assert said in call(2, job(), *arguments)
    assert slurm.asked("sbatch") == [] and not Path("runs").exists()
    call(0, job(), "--export=ALL,NAME=1")


def test_not_twice(slurm: Slurm, job: Write) -> None:
    """Nor while Slurm does not answer; again where it was cancelled before it began."""
    call(0, job())
    for line, what in (("123|123|PENDING|Resources|", "queued"), ("123|123|RUNNING|None|n1", "running")):
        slurm.queue(line)
        assert f"runs/tried: it is {what} already (job 123)" in call(2, job())
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    assert "squeue does not respond, so job 123 may still be queued or running" in call(1, job())
    slurm.queue()
    slurm.answer("sbatch", "124\n", code=3)
    assert "job 124 has ended with code 3" in call(1, job(), "--wait")
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
    slurm: Slurm, job: Write, code: int | None, about: dict[str, Any], changes: list[str], said: str
) -> None:
    leave("runs/tried", Job.read(job()), code, **about)
    assert said in call(2, job(), *changes)
    if code is not None:
        call(0, job(), "--set", "rounds=200")
    if "holds a run" in said:
        assert "3 points, one after the other in one job" in call(0, job(), *changes, "--out", "runs/sweep")


def test_only_the_points_that_are_left(slurm: Slurm, job: Write) -> None:
    path = job(sweep={"seeds": 8})
    made = points(read_table(path), "job")
    for number, code in {0: 0, 1: 75, 2: 68, 3: 1, 4: 69}.items():
        leave(Path("runs/tried") / made[number].name, made[number].job, code)
    assert "submitted job 123, 5 of 8 points: runs/tried" in call(0, path, "--array", "--throttle", 2)
    assert " --nodes=1 --ntasks-per-node=1 --array=0-4%2 " in slurm.asked("sbatch")[-1]
    slurm.queue("123_0|124|RUNNING|None|n1", "123_1|125|RUNNING|None|n1", "123_3|123|PENDING|Resources|")
    names = " ".join(made[k].name.removeprefix("point-") for k in (5, 7))  # Slurm says that these have been cancelled
    said = call(0, path, "--array", "--dry-run")
    assert said.startswith(f"env 'MPIFED_POINTS={names}' sbatch ") and " --array=0-1 " in said
    assert "3 of 8 points are queued or running already (job 123)" in call(2, path)
    slurm.queue(*(f"123_{k}|{124 + k}|PENDING|Resources|" for k in range(5)))
    assert "5 of 8 points are queued or running already (job 123)" in call(2, path, "--array")
    grown = job(sweep={"seeds": 9})  # a point is the same, whatever number it has
    assert "submitted job 123, 1 of 9 points" in call(0, grown, "--array")


def test_from_python(slurm: Slurm, job: Write, digits: Path) -> None:
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
    with pytest.raises(mf.UsageError, match=r"job\.toml' is taken for the path of a whole job, .* without rounds"):
        mf.submit(job(), out="runs/c", sbatch={}, rounds=9)
