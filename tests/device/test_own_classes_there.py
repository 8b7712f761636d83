"""The user's classes are tried where they are going to compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked
from make_believe import make_believe
from registry import table
from whole_runs import run
from written_files import read_json

from mpifed.core.errors import UsageError
from mpifed.testing import Job, Solo


@pytest.fixture(autouse=True)
def double() -> Iterator[Any]:
    """`import cupy` gives the double."""
    with make_believe() as cupy:
        yield cupy


def job(folder: Path, name: str, **more: Any) -> Job:
    algorithm = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
    objective = {"name": f"own_functions:{name}"}
    return checked(table(folder, algorithm, model=objective, rounds=1, compute={"device": "gpu"}, **more))


def test_a_right_class(digits: Path, tmp_path: Path) -> None:
    more = {"regularizer": {"name": "own_functions:L1"}, "record": {"evaluate_every": 0}}
    run(job(digits, "MLP", **more), Solo(), tmp_path / "run")
    assert not [line for line in read_json(tmp_path / "run" / "run.json")["warnings"] if "own_" in line]


def test_a_class_with_a_wrong_shape(digits: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"own_functions:WrongShape.*has shape"):
        run(job(digits, "WrongShape"), Solo(), tmp_path / "run")
