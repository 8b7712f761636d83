"""Whatever cannot be written, by any command: one sentence, and exit code 3."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import fedavg, job_table
from whole_runs import run

from mpifed.cli import main
from mpifed.testing import Job, Solo

FULL = Path("/dev/full")
AUDITED = fedavg(batch_size=1)


@pytest.fixture(scope="module")
def made(digits: Path, write_job: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with job.toml and its run."""
    folder = tmp_path_factory.mktemp("made")
    job = write_job(folder / "job.toml", job_table(digits, rounds=2, algorithm=AUDITED, record={"evaluate_every": 1}))
    run(Job.read(job), Solo(), folder / "run")
    for kind in ("svg", "png"):  # what draws is imported here, not by each process that is forked
        main.main(["plot", str(folder / "run"), "--out", str(folder / f"figure.{kind}")], standalone_mode=False)
    return folder


def ended(words: Sequence[object], output: Path | None, most: int | None = None) -> tuple[int, list[str]]:
    """(exit code, lines of its standard error) of a command in a process of its own, whose files have `most` bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(output or os.devnull, os.O_WRONLY), 1)
        os.dup2(writer, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        code = 99
        try:
            if most is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            main.main(list(map(str, words)), "mpifed")
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.splitlines()


PRINTING = (
    "--help", "--version", "check {job}", "show {run} --json", "compare {run}", "explain fedavg", "new",
    "audit {job}", "doctor", "plot {run} --out {there}/figure.svg", "run {job} --out {there}/run",
    "data digits --split rows --clients 3 --out {there}/data",
    "submit {job} --out {there}/run --time 1:00:00 --dry-run",
)  # fmt: skip
WRITING = (
    "new {there}/job.toml", "plot {run} --out {there}/figure.svg", "plot {run} --out {there}/figure.png",
    "audit {job} --out {there}/audit", "data digits --split rows --clients 3 --out {there}/data",
    "run {job} --out {there}/run",
)  # fmt: skip


def words_of(command: str, made: Path, there: Path) -> list[str]:
    return command.format(job=made / "job.toml", run=made / "run", there=there).split()


@pytest.mark.skipif(not FULL.exists(), reason="no device here that is always full")
@pytest.mark.parametrize("command", PRINTING)
def test_output_to_a_full_disk(command: str, made: Path, tmp_path: Path) -> None:
    code, lines = ended(words_of(command, made, tmp_path), FULL)
    assert code == 3 and [line.startswith("mpifed: error: ") for line in lines].count(True) == 1, lines
    assert "No space left on device; make room" in lines[-1]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("command", WRITING)
def test_files_that_cannot_be_written(command: str, made: Path, tmp_path: Path) -> None:
    """A disk that is full at once, a folder that is a file, and one in which nobody may make anything."""
    (tmp_path / "file").touch()
    for there, most in ((tmp_path, 0), (tmp_path / "file", None), (Path("/proc/1/nowhere"), None)):
        code, lines = ended(words_of(command, made, there), None, most)
        lines = [line for line in lines if not line.startswith("mpifed: warning")]
        assert (code, len(lines)) == (3, 1), lines
        assert lines[0].startswith("mpifed: error: ") and ("; " in lines[0] or "Errno" in lines[0])


@pytest.mark.skipif(not FULL.exists(), reason="no device here that is always full")
def test_python_says_nothing_more_at_its_end(made: Path) -> None:
    with FULL.open("w") as full:
        for stderr in (full, subprocess.PIPE):
            words = [sys.executable, "-m", "mpifed", "show", made / "run"]
            done = subprocess.run(words, stdout=full, stderr=stderr, check=False)
            assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
