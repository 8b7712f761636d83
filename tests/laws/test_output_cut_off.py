"""`mpifed run JOB | head`: who reads the output leaves, and the run goes on to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import environment
from registry import table

from mpifed.files.run_folder import summary

pytestmark = pytest.mark.launch


def unread(*arguments: object) -> tuple[int, str]:
    """(exit code, standard error) of a command whose output nobody reads."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "mpifed", *map(str, arguments)],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        env=environment({}),
        check=False,
    )
    os.close(write)
    return ended.returncode, ended.stderr


def test_a_run_goes_on(skewed: Path, write_job: Any, tmp_path: Path) -> None:
    fedavg = {"name": "fedavg", "batch_size": 5, "local_steps": 1, "client_optimizer": {"learning_rate": 0.1}}
    job = write_job(tmp_path / "job.toml", table(skewed, fedavg))
    assert unread("run", job, "--out", tmp_path / "run") == (0, "")
    found = summary(tmp_path / "run")
    assert (found["exit"], found["rounds"]) == (0, 4)
    code, said = unread("show", tmp_path / "run")  # as other programs do, which have nothing else to do
    assert code == 1 and not said
