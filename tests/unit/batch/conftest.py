"""A machine without Slurm, or with a make-believe one, and jobs for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import job_table
from pretended import Slurm


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Slurm; the working folder."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def slurm(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A cluster with an empty queue, and no accounting."""
    made = Slurm(nowhere / "bin")
    monkeypatch.setenv("PATH", str(made.folder))
    made.answer("sbatch", "123\n")
    made.answer("sacct", error="Slurm accounting storage is disabled", code=1)
    made.answer("mpifed")
    made.queue()
    return made


@pytest.fixture
def job(nowhere: Path, write_job: Callable[..., Path]) -> Callable[..., Path]:
    """job(**tables): a job file, whose data nobody opens."""
    (nowhere / "data").mkdir(exist_ok=True)

    def job(**tables: Any) -> Path:
        return write_job(nowhere / "job.toml", job_table("data", **{"name": "tried", "rounds": 100} | tables))

    return job
