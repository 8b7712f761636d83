"""States of own algorithms: what a checkpoint cannot hold is refused, and what it holds resumes to the bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from own_states import WRONG
from registry import table
from test_resume import same

from mpifed.files.run_folder import summary

pytestmark = pytest.mark.launch


def job_of(name: str, data: Path, write_job: Any, folder: Path) -> Path:
    record = {"evaluate_every": 3, "checkpoint_every": 2}
    own = {"name": f"own_states:{name}", "batch_size": 5}
    job: Path = write_job(folder / f"{name}.toml", table(data, own, rounds=8, record=record))
    return job


@pytest.mark.parametrize("name", WRONG)
def test_a_state_that_no_checkpoint_can_hold(
    name: str, skewed: Path, write_job: Any, launch: Callable[..., Any], tmp_path: Path
) -> None:
    ended = launch(None, "run", job_of(name, skewed, write_job, tmp_path), "--out", tmp_path / "run")
    assert ended.code == 2, ended.text
    assert f'mpifed: error: [algorithm] name = "own_states:{name}": {WRONG[name]}' in ended.text
    assert "Traceback" not in ended.text


def test_the_same_on_every_rank(skewed: Path, write_job: Any, launch: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("BecomesPython", "ClientsBecomeWide"):
        ended = launch(2, "run", job_of(name, skewed, write_job, tmp_path), "--out", tmp_path / name)
        assert ended.code == 2, ended.text
        assert ended.text.count(WRONG[name]) == 1


def test_a_state_that_resumes(skewed: Path, write_job: Any, launch: Callable[..., Any], tmp_path: Path) -> None:
    job = job_of("Adam", skewed, write_job, tmp_path)
    assert launch(None, "run", job, "--out", tmp_path / "whole").code == 0
    interrupted = launch(0, "run", job, "--out", tmp_path / "run", env={"MPIFED_TEST_TROUBLE": "yes"})
    assert interrupted.code == 75, interrupted.text
    resumed = launch(2, "run", job, "--out", tmp_path / "run", "--resume")
    assert resumed.code == 0, resumed.text
    assert summary(tmp_path / "run")["rounds"] == 8
    same(tmp_path / "whole", tmp_path / "run")
