"""`mpifed submit` on a make-believe cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pretended import Slurm
from written_files import write_json

from mpifed.batch import record
from mpifed.batch.script import options_of
from mpifed.cli import main
from mpifed.files.scratch import this_process
from mpifed.job.job import read_table
from mpifed.job.sweep import points
from mpifed.testing import Job

pytestmark = pytest.mark.usefixtures("scripts")
Write = Callable[..., Path]


def call(*arguments: object) -> tuple[int, str]:
    ended = CliRunner().invoke(main, ["submit", *map(str, arguments)])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.output
    return ended.exit_code, ended.output


def ok(*arguments: object) -> str:
    code, text = call(*arguments)
    assert code == 0, text
    return text


def refused(*arguments: object) -> str:
    code, text = call(*arguments)
    assert code == 2, text
    return text


def leave(run_dir: Path, job: Job, code: int | None, **run: Any) -> None:
    """What a run leaves behind."""
    run_dir.mkdir(parents=True)
    (run_dir / "job.toml").write_text(job.text())
    write_json(run_dir / "run.json", {"rounds": 0, "exit": code, **run})


# --- one run -----------------------------------------------------------------------------------------------------


def test_a_run(slurm: Slurm, job: Write, tmp_path: Path) -> None:
    text = ok(
        job(), "--out", "runs/a", "--nodes", 2, "--ntasks-per-node", 4, "--time", "1:00:00", "--account", "me",
        "--set", "rounds=50", "--", "--qos=high",
    )  # fmt: skip
    assert slurm.asked("sbatch") == ["--test-only", "--parsable runs/a.sbatch"]
    script = (tmp_path / "runs/a.sbatch").read_text()
    assert options_of(script) == {
        "job-name": "tried", "nodes": "2", "ntasks-per-node": "4", "time": "1:00:00", "signal": "B:USR1@120",
        "requeue": None, "account": "me", "qos": "high", "output": "runs/a-%j.log",
    }  # fmt: skip
    assert f"set -- {tmp_path}/job.toml runs/a --set rounds=50\n" in script
    assert "submitted job 123: runs/a\n" in text
    for command in (
        "squeue --jobs=123", "tail -F runs/a-123.log", "mpifed status runs/a", "scancel --signal=USR1 --batch 123",
        "scancel 123",
    ):  # fmt: skip
        assert f"  {command}  " in text
    (one,) = (record.read(Path("runs/a")) or pytest.fail("no record")).submissions
    assert (one.id, one.script, one.log, one.points) == ("123", "runs/a.sbatch", "runs/a-%j.log", None)


def test_a_script_is_written_through_no_link(slurm: Slurm, job: Write, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "runs").mkdir()
    for name in ("a.sbatch", "a.sbatch.new", "a.submitted.json", "a.submitted.json.new"):
        (tmp_path / "runs" / name).symlink_to(tmp_path / "victim")
    record.path_of(Path("runs/a")).unlink()
    ok(job(), "--time", 30, "--out", "runs/a")
    assert (tmp_path / "victim").read_text() == "mine"
    assert "#SBATCH" in (tmp_path / "runs/a.sbatch").read_text() and not (tmp_path / "runs/a.sbatch").is_symlink()


def test_a_dry_run_changes_nothing(slurm: Slurm, job: Write) -> None:
    text = ok(job(), "--time", 30, "--nodes", 2, "--dry-run")
    assert "would be written to runs/tried.sbatch and given to sbatch" in text and "#SBATCH --nodes=2\n" in text
    assert text.index("dry run   ") < text.index("#!/bin/bash")
    assert slurm.asked("sbatch") == ["--test-only"] and not Path("runs").exists()


def test_a_dry_run_gives_a_script_that_runs(slurm: Slurm, job: Write, tmp_path: Path) -> None:
    """What is found goes to the standard error, so that > makes a script of the rest."""
    ended = CliRunner().invoke(main, ["submit", str(job()), "--time", "30", "--dry-run"])
    assert ended.exit_code == 0 and ended.stdout.startswith("#!/bin/bash\n") and ended.stdout.endswith("\n")
    assert "dry run  " in ended.stderr and "dry run  " not in ended.stdout
    (tmp_path / "script.sh").write_text(ended.stdout)
    assert subprocess.run(["/bin/bash", "-n", str(tmp_path / "script.sh")]).returncode == 0
    ok(job(), "--time", 30)
    assert ended.stdout == Path("runs/tried.sbatch").read_text()


def test_a_job_that_the_cluster_does_not_take(slurm: Slurm, job: Write) -> None:
    """In Slurm's words: of `--test-only` a warning, since nodes that are down may come back; sbatch itself refuses."""
    words = "allocation failure: Requested node configuration is not available"
    slurm.answer("sbatch", error=words, code=1)
    text = ok(job(), "--time", 30, "--dry-run")
    assert f"warning   sbatch failed: {words}" in text and "#SBATCH --nodes=1\n" in text
    code, text = call(Path("job.toml"), "--time", 30)
    assert code == 1 and words in text
    assert slurm.asked("sbatch") == ["--test-only", "--test-only", "--parsable runs/tried.sbatch"]
    assert not Path("runs/tried.submitted.json").exists()


@pytest.mark.parametrize("value", ["NONE", "nil", "PATH,HOME"])
def test_the_job_has_the_environment_of_the_shell(
    slurm: Slurm, job: Write, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"--export={value} (or SBATCH_EXPORT): the job needs the environment from which it is submitted" in refused(
        job(), "--time", 30, "--", f"--export={value}"
    )
    monkeypatch.setenv("SBATCH_EXPORT", value)
    assert "the job needs the environment" in refused(job(), "--time", 30)
    ok(job(), "--time", 30, "--", "--export=ALL,NAME=1")
    assert options_of(Path("runs/tried.sbatch").read_text())["export"] == "ALL,NAME=1"


# --- time, memory, ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--time", "30", "--", "--signal=USR2@60"], "--signal=USR2@60: expected --signal=B:USR1@SECONDS"),
        (["--time", "30", "--", "--nodes=3"], "--nodes=3: give it to mpifed submit itself, as --nodes, before --"),
        (["--time", "30", "--", "-p", "gpu"], "-p: give it to mpifed submit itself, as --partition, before --"),
        (["--time", "30", "--", "--no-requeue"], "--no-requeue: not with mpifed submit: a job resumes"),
        ([], "Missing option '--time'"),
        (["--time", "30", "--gpus-per-node", 2, "--ntasks-per-node", 4], "--gpus-per-node 2: each rank uses one GPU"),
        (["--time", "30", "--array"], "has no [sweep], so it is one run; leave --array out, or add a sweep"),
        (["--time", "30", "--throttle", 2], "--throttle needs --array"),
    ],
)
def test_what_is_refused(slurm: Slurm, job: Write, arguments: list[object], said: str) -> None:
    assert said in refused(job(), *arguments)
    assert slurm.asked("sbatch") == [] and not Path("runs").exists()


def dry(job: Path, *arguments: object) -> tuple[dict[str, str | None], str]:
    text = ok(job, "--dry-run", *arguments)
    return options_of(text), text


# --- again -------------------------------------------------------------------------------------------------------


def test_not_twice(slurm: Slurm, job: Write) -> None:
    ok(job(), "--time", 30)
    slurm.queue("123|123|PENDING|Resources|")
    said = refused(job(), "--time", 30)
    assert "runs/tried: it is queued already (job 123)" in said and "`scancel 123`" in said
    slurm.queue("123|123|RUNNING|None|n1")
    assert "it is running already (job 123)" in refused(job(), "--time", 30)
    slurm.queue()  # cancelled before it began
    slurm.answer("sbatch", "124\n")
    ok(job(), "--time", 30)
    found = json.loads(Path("runs/tried.submitted.json").read_text())
    assert [one["id"] for one in found["submissions"]] == ["123", "124"]


def test_not_when_slurm_does_not_answer(slurm: Slurm, job: Write) -> None:
    ok(job(), "--time", 30)
    slurm.answer("squeue", error="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    code, text = call(job(), "--time", 30)
    assert code == 1 and "squeue does not respond, so job 123 may still be queued or running" in text
    assert len(slurm.asked("sbatch")) == 2


def test_not_beside_a_process_of_this_machine(slurm: Slurm, job: Write) -> None:
    leave(Path("runs/tried"), Job.read(job()), None, process=this_process())
    said = refused(job(), "--time", 30)
    assert "runs/tried: it is running already (in a process on this machine); see `mpifed status runs/tried`\n" in said


@pytest.mark.parametrize("code", [0, 69, 70])
def test_not_what_is_finished(slurm: Slurm, job: Write, code: int) -> None:
    leave(Path("runs/tried"), Job.read(job()), code)
    assert "give --set rounds=... for more rounds" in refused(job(), "--time", 30)
    ok(job(), "--time", 30, "--set", "rounds=200")


def test_not_what_fails_every_time(slurm: Slurm, job: Write) -> None:
    leave(Path("runs/tried"), Job.read(job()), 68)
    assert "failed numerically, and would fail the same way again" in refused(job(), "--time", 30)


def test_not_another_job_in_its_folder(slurm: Slurm, job: Write) -> None:
    leave(Path("runs/tried"), Job.read(job()), 75)
    assert "--resume with another job (seed: 1 before, 2 now)" in refused(job(), "--time", 30, "--set", "seed=2")
    sweep = job(sweep={"seeds": 3})
    assert "--out runs/tried: holds a run; choose another folder" in refused(sweep, "--time", 30)
    ok(sweep, "--time", 30, "--out", "runs/sweep")


# --- sweeps ------------------------------------------------------------------------------------------------------


def test_an_array(slurm: Slurm, job: Write) -> None:
    text = ok(job(sweep={"algorithm.batch_size": [2, 4], "seeds": 3}), "--array", "--throttle", 2, "--time", 30)
    script = Path("runs/tried.sbatch").read_text()
    options = options_of(script)
    assert (options["array"], options["output"]) == ("0-5%2", "runs/tried-%A_%a.log")
    assert "submitted job 123, 6 of 6 points: runs/tried" in text and "tail -F runs/tried-123_0.log" in text


def test_a_sweep_in_one_job(slurm: Slurm, job: Write) -> None:
    text = ok(job(sweep={"seeds": 3}), "--time", 30)
    assert "array" not in options_of(Path("runs/tried.sbatch").read_text())
    assert "3 points, one after the other in one job" in text


def test_only_the_points_that_are_left(slurm: Slurm, job: Write) -> None:
    path = job(sweep={"seeds": 8})
    jobs = [point.job for point in points(read_table(path), "job")]
    for number, code in {0: 0, 1: 75, 2: 68, 3: 1, 4: 69}.items():
        leave(Path(f"runs/tried/point-{number:04d}"), jobs[number], code)
    options, _ = dry(path, "--array", "--time", 30)
    assert options["array"] == "1,3,5-7"
    ok(path, "--array", "--time", 30)
    slurm.queue("123_1|124|RUNNING|None|n1", "123_3|125|RUNNING|None|n1", "123_6|123|PENDING|Resources|")
    options, _ = dry(path, "--array", "--time", 30)
    assert options["array"] == "5,7"  # as far as Slurm says these have been cancelled
    assert "3 of 8 points are queued or running already (job 123)" in refused(path, "--time", 30)
    slurm.queue(*(f"123_{k}|{124 + k}|PENDING|Resources|" for k in (1, 3, 5, 6, 7)))
    assert "5 of 8 points are queued or running already (job 123)" in refused(path, "--array", "--time", 30)
