"""Damaged data folders: a run that reads them ends cleanly, with checksums compared or not."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaging import other_table, replace
from fuzzing import check, ended, examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st

from mpifed.data.store import About, _identity
from mpifed.files.json_file import read_json
from mpifed.files.schemas import conforming

pytestmark = pytest.mark.long

NAMES = ["dense", "sparse", "regression", "grid"]
JOB = """
name = "small"
rounds = 2
[data]
path = "{data}"
verify = {verify}
memory_gib = {room}
[model]
name = "{objective}"
[algorithm]
{algorithm}
[record]
evaluate_every = 1
"""
RATE = "\n[client_optimizer]\nlearning_rate = {initial = 0.1, exponent = 0.5, offset = 1.0}"
ROWS = 'name = "fedavg"\nbatch_size = 5' + RATE
CELLS = 'name = "hyfem"\nbatch_size = 5\nlocal_steps = 2\nmu = 0.01' + RATE
OBJECTIVES = {"dense": "softmax", "sparse": "softmax", "regression": "least-squares", "grid": "logistic"}


class Made:
    """Data folders that were not damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rng = np.random.default_rng(1)
        lines = (f"{k % 3} " + " ".join(f"{j + 1}:{rng.random():.3f}" for j in range(20) if rng.random() < 0.3)
                 for k in range(60))  # fmt: skip
        (folder / "sparse.svm").write_text("\n".join(lines) + "\n")
        split, held = ["--split", "rows", "--clients", 4], ["--test-fraction", 0.2]
        drawn = ["synthetic", "--samples", 60, "--features", 12]
        self.of(["digits", *split, *held, "--out", "dense"])
        self.of(["svmlight", "sparse.svm", "--sparse", "--task", "classification", *split, *held, "--out", "sparse"])
        self.of([*drawn, "--task", "regression", *split, *held, "--out", "regression"])
        classes = ["--task", "classification", "--classes", 2]
        self.of([*drawn, *classes, "--split", "grid", "--grid", "2x2", "--out", "grid"])

    def of(self, arguments: list[Any]) -> None:
        """Data that are made of these arguments."""
        end = ended(["data", *arguments], self.folder)
        assert end.code == 0, end.text

    def damaged(self, name: str, to: Path, number: int) -> Path:
        """A copy in `to`; the file of it that is to be damaged."""
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir()
        shutil.copytree(self.folder / name, to / name)
        return to / name / ("federation.json" if number % 3 else "federation.h5")

    def run(self, name: str, to: Path, verify: bool, room: float) -> int:
        """The exit code of a run of them."""
        text = JOB.format(
            data=to / name, verify=str(verify).lower(), room=room, objective=OBJECTIVES[name],
            algorithm=CELLS if name == "grid" else ROWS,
        )  # fmt: skip
        (to / "job.toml").write_text(text)
        end = ended(["run", "job.toml", "--out", "run", "--progress", "none"], to)
        check(end)
        return end.code


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "damaged"


names = st.sampled_from(NAMES)
numbers = st.integers(0, 10**6)


@pytest.mark.parametrize("name", NAMES)
def test_data_that_are_not_damaged(made: Made, to: Path, name: str) -> None:
    made.damaged(name, to, 0)
    assert made.run(name, to, True, 1.0) == 0


@examples(8)
@given(name=names, number=numbers, seed=seeds, verify=st.booleans(), room=st.sampled_from([0.0, 1.0]))
def test_bytes(made: Made, to: Path, name: str, number: int, seed: int, verify: bool, room: float) -> None:
    path = made.damaged(name, to, number)
    path.write_bytes(mutated(path.read_bytes(), seed))
    made.run(name, to, verify, room)


@examples(8)
@given(name=names, number=numbers, seed=seeds, verify=st.booleans(), room=st.sampled_from([0.0, 1.0]))
def test_another_index(made: Made, to: Path, name: str, number: int, seed: int, verify: bool, room: float) -> None:
    """Other keys, types and numbers, and digests that fit."""
    path = made.damaged(name, to, 1)
    table = other_table(read_json(path), seed)
    with contextlib.suppress(Exception):
        table["data_sha256"] = _identity(conforming(About, table))
    path.write_text(json.dumps(table))
    made.run(name, to, verify, room)


@examples(8)
@given(name=names, number=numbers, seed=seeds, room=st.sampled_from([0.0, 1.0]))
def test_numbers(made: Made, to: Path, name: str, number: int, seed: int, room: float) -> None:
    """The sizes stay, and checksums are not compared: labels, columns and values are whatever the bytes are."""
    made.damaged(name, to, number)
    path = to / name / "federation.h5"
    rng, stored = np.random.default_rng(seed), bytearray(path.read_bytes())
    for at in rng.integers(0, len(stored), 8).tolist():
        stored[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, rng.bytes(8)])
    path.write_bytes(bytes(stored[: path.stat().st_size]))
    made.run(name, to, False, room)


@examples(4)
@given(name=names, number=numbers, seed=seeds, verify=st.booleans())
def test_what_is_no_file(made: Made, to: Path, name: str, number: int, seed: int, verify: bool) -> None:
    replace(made.damaged(name, to, number), seed)
    made.run(name, to, verify, 1.0)
