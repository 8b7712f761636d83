"""A machine without Slurm, or with a make-believe one, jobs for it, and what runs leave behind."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import job_table
from written_files import History, write_json

from mpifed.testing import Job


class Slurm:
    """Commands that write down what they were asked, and answer what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.answer("sbatch", "123\n")
        self.answer("sacct", error="Slurm accounting storage is disabled", code=1)
        self.answer("mpifed")
        self.queue()

    def answer(self, command: str, text: str = "", error: str = "", code: int = 0) -> None:
        """From now on `command` says this."""
        path = self.folder / command
        said = f"printf %s {shlex.quote(text)}; printf %s {shlex.quote(error)} >&2; exit {code}"
        path.write_text(f'#!/bin/sh\necho "$@" >>{self.folder}/.asked-{command}\n{said}\n')
        path.chmod(0o755)

    def asked(self, command: str) -> list[str]:
        """The arguments of each call."""
        path = self.folder / f".asked-{command}"
        return path.read_text().splitlines() if path.exists() else []

    def queue(self, *lines: str) -> None:
        """What is in the queue: id|number|state|reason|nodes."""
        none = "slurm_load_jobs error: Invalid job id specified"
        self.answer("squeue", "".join(f"{line}\n" for line in lines), "" if lines else none, 0 if lines else 1)


@pytest.fixture
def nowhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Slurm; the working folder."""
    monkeypatch.setenv("PATH", str(here / "none"))
    return here


@pytest.fixture
def slurm(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A cluster with an empty queue, and no accounting."""
    monkeypatch.setenv("PATH", str(nowhere / "bin"))
    return Slurm(nowhere / "bin")


@pytest.fixture
def job(here: Path, write_job: Callable[..., Path]) -> Callable[..., Path]:
    """job(**tables): a job file, whose data nobody opens."""
    (here / "data").mkdir(exist_ok=True)
    return lambda **tables: write_job(here / "job.toml", job_table("data", **{"name": "tried", "rounds": 100} | tables))


@pytest.fixture
def leave(here: Path) -> Callable[..., Path]:
    """leave(run, job, code): what a run leaves behind, measured and checkpointed so far."""

    def leave(run: Any, job: Job, code: int | None = None, rounds: int = 0, saved: int = 0, **about: Any) -> Path:
        folder = Path(run)
        folder.mkdir(parents=True)
        (folder / "job.toml").write_text(job.text())
        write_json(folder / "run.json", {"rounds": rounds if code is not None else 0, "exit": code, **about})
        history = History(folder)
        for k in range(0, rounds + 1, 10):
            history.append({"round": k, "objective": 1 / (k + 1), "elapsed_s": 0.5, "up_bytes": 1, "down_bytes": 1})
        if saved:
            (folder / "checkpoint" / f"round-{saved:08d}").mkdir(parents=True)
        return folder

    return leave
