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
from mpifed.testing import Alone, Job


@pytest.fixture(autouse=True)
def double() -> Iterator[Any]:
    """`import cupy` gives the double."""
    with make_believe() as cupy:
        yield cupy


def job(folder: Path, name: str, **more: Any) -> Job:
    algorithm = {"name": "fedavg", "batch_size": 5, "client_optimizer": {"learning_rate": 0.1}}
    objective = {"name": f"own_functions:{name}"}
    return checked(table(folder, algorithm, model=objective, rounds=1, compute={"device": "gpu"}, **more))


@pytest.mark.parametrize("name", ["MLP", "OnTheDevice"])
def test_a_right_class(name: str, digits: Path, tmp_path: Path) -> None:
    run(
        job(digits, name, regularizer={"name": "own_functions:L1"}, record={"evaluate_every": 0}),
        Alone(),
        tmp_path / "run",
    )
    assert not [line for line in read_json(tmp_path / "run" / "run.json")["warnings"] if "own_" in line]


def test_sparse_rows(make_data: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows.svm"
    rows.write_text("".join(f"{i % 3} {i % 7 + 1}:{i % 5 + 1} 9:1.5\n" for i in range(60)))
    data = make_data(tmp_path / "data", "svmlight", str(rows), "--split", "rows", "--clients", "3")
    run(job(data, "OnTheDevice", record={"evaluate_every": 0}), Alone(), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "said"), [("Doubled", "slope at scores["), ("NotAdjoint", "pull()"), ("WrongAxis", "slope at scores[")]
)
def test_a_wrong_class(name: str, said: str, digits: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        run(job(digits, name), Alone(), tmp_path / "run")
    assert said in str(error.value)
