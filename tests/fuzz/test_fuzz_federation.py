"""Damaged data folders: a run that reads them ends cleanly, with checksums compared or not."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damaging import other_table, replace
from fuzzing import check, ended, examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st

from mpifed.data.store import ABOUT, ARRAYS, About, _identity
from mpifed.files.json_file import read_json
from mpifed.files.schemas import conforming

pytestmark = pytest.mark.long

JOB = """
name = "small"
rounds = 2
data = {{path = "{data}", verify = {verify}, memory_gib = {room}}}
model.name = "{objective}"
record.evaluate_every = 1
algorithm = {{{algorithm}, batch_size = 5}}
client_optimizer.learning_rate = {{initial = 0.1, exponent = 0.5, offset = 1.0}}
"""
ROWS, DRAWN = "--split rows --clients 4 --test-fraction 0.2", "synthetic --samples 60 --features 12 --task"
MADE = {  # by folder: the model of a job, and the words that make the data
    "dense": ("softmax", f"digits {ROWS}"),
    "sparse": ("softmax", f"svmlight sparse.svm --sparse --task classification {ROWS}"),
    "regression": ("least-squares", f"{DRAWN} regression {ROWS}"),
    "grid": ("logistic", f"{DRAWN} classification --classes 2 --split grid --grid 2x2"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(1)
    lines = (f"{k % 3} " + " ".join(f"{j + 1}:{rng.random():.3f}" for j in range(20) if rng.random() < 0.3)
             for k in range(60))  # fmt: skip
    (folder / "sparse.svm").write_text("\n".join(lines) + "\n")
    for name, (_, words) in MADE.items():
        end = ended(["data", *words.split(), "--out", name], folder)
        assert end.code == 0, end.text
    return folder


def some_bytes(folder: Path, seed: int) -> None:
    path = folder / (ABOUT if seed % 3 else ARRAYS)
    path.write_bytes(mutated(path.read_bytes(), seed))


def another_index(folder: Path, seed: int) -> None:
    """Other keys, types and numbers, and digests that fit."""
    table = other_table(read_json(folder / ABOUT), seed)
    with contextlib.suppress(Exception):
        table["data_sha256"] = _identity(conforming(About, table))
    (folder / ABOUT).write_text(json.dumps(table))


def numbers(folder: Path, seed: int) -> None:
    """The sizes stay: labels, columns and values are whatever the bytes are."""
    rng, stored = np.random.default_rng(seed), bytearray((folder / ARRAYS).read_bytes())
    for at in rng.integers(0, len(stored) - 8, 8).tolist():
        stored[at : at + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, rng.bytes(8)])
    (folder / ARRAYS).write_bytes(bytes(stored))


def no_file(folder: Path, seed: int) -> None:
    replace(folder / (ABOUT if seed % 2 else ARRAYS), seed)


@pytest.mark.parametrize("damage", [None, some_bytes, another_index, numbers, no_file])
@examples(8)
@given(name=st.sampled_from([*MADE]), seed=seeds, verify=st.booleans(), room=st.sampled_from([0.0, 1.0]))
def test_a_run_ends_cleanly(
    damage: Callable[[Path, int], None] | None, made: Path, tmp_path_factory: pytest.TempPathFactory, name: str,
    seed: int, verify: bool, room: float,
) -> None:  # fmt: skip
    to = tmp_path_factory.mktemp("damaged")
    shutil.copytree(made / name, to / name)
    if damage is not None:
        damage(to / name, seed)
    algorithm = 'name = "hyfem", local_steps = 2, mu = 0.01' if name == "grid" else 'name = "fedavg"'
    words = {"data": to / name, "verify": str(verify).lower(), "room": room, "objective": MADE[name][0]}
    (to / "job.toml").write_text(JOB.format(algorithm=algorithm, **words))
    end = ended(["run", "job.toml", "--out", "run", "--progress", "none"], to)
    check(end)
    assert damage or end.code == 0, end.text
    shutil.rmtree(to)
