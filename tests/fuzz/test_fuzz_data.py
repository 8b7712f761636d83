"""Damaged and hostile data files and folders, and options of `mpifed data`: a clean end, and nothing half done."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
import pandas as pd
import pytest
from federations import idx, leaf, png
from fuzzing import NO_FILES, Ended, check, ended, examples, mutated, other_table, put
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets, feature_extraction, preprocessing  # noqa: F401 -- here, and not anew in every child

from mpifed.data.command import data
from mpifed.data.shards import shard_of
from mpifed.data.sources import SOURCES
from mpifed.data.store import ABOUT, ARRAYS, About, _identity, open_federation
from mpifed.files.json_file import read_json
from mpifed.files.schemas import conforming

pytestmark = pytest.mark.long

# --- files -----------------------------------------------------------------------------------------------------------

# what cells, names, labels, column numbers, options may be; many of them are fine in some places
STRANGE = [
    "", " ", "0", "1", "-1", "2", "-0", "+1", "007", "1.", ".5", "-2.5e3", "1e-400", "1e38", "3.5e38", "1e39", "-1e308",
    "1e999", "nan", "-nan", "inf", "-Infinity", "1_000", "0x10", "1e", "1,5", "1;2", "9007199254740993", "4294967296",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "2147483648", "16777216", "1000000000000",
    "true", "null", "'", '"', "''", '""', "#", ":", "=", "-", "--", "\u0663", "½", "1\u00a0", "\x1b[31m", "\ufeff1",
    "%s", "../../x", "/dev/zero", "/", "a.csv", "9" * 400, "9" * 5000, "0." + "1" * 400, "x" * 140_000, "a\rb",
    "é" * 300, "\udcff",
]  # fmt: skip
WORDS = st.sampled_from(STRANGE) | st.integers(-(2**70), 2**70).map(str) | st.floats().map(repr)
SPLITS = st.sampled_from([
    "rows --clients 2", "columns --clients 2", "grid --grid 2x2", "rows --clients 1 --test-fraction 0.3",
    "rows --clients 2 --partition dirichlet:0.5", "rows --clients 2 --scale standard", "rows --clients 3 --skew 1",
    "rows --clients 2 --scale minmax,unit-rows", "rows --clients 2 --labels even-odd", "rows --clients 2 --scale unit",
    "rows --clients 2 --task regression --scale standard", "rows --clients 2 --task classification",
]).map(str.split)  # fmt: skip


@cache
def formats() -> dict[str, bytes]:
    """Small files of every format, by name."""
    rng = np.random.default_rng(1)
    rows = np.round(rng.normal(0, 3, (12, 4)), 3).tolist()
    X, y = rng.integers(0, 9, (12, 2, 3), np.uint8), np.arange(12, dtype=np.uint8) % 3
    table = pd.DataFrame({"age": [30.5, np.nan, 60, 20] * 3, "sex": ["m", "f", None] * 4, "ward": [7, 8, 8] * 4,
                          "ill": ["no", "yes"] * 6})  # fmt: skip
    lines = ["a,b,c,d,y", *(",".join(map(str, [*row, i % 3])) for i, row in enumerate(rows))]
    entries = [[f"{j + 1}:{x}" for j, x in enumerate(row) if (i + j) % 3] for i, row in enumerate(rows)]
    users = {name: (X[at::2, 0].tolist(), y[at::2].tolist()) for at, name in enumerate("ab")}
    with h5py.File(shards := io.BytesIO(), "w") as file:
        file["X"], file["y"] = X, y
    np.savez_compressed(arrays := io.BytesIO(), X=X, y=y, who=y.astype(str))
    return {
        "a.csv": "\n".join(lines).encode(),
        "a.svm": "\n".join(f"{i % 2} {' '.join(row)}" for i, row in enumerate(entries)).encode(),
        "t.csv": table.to_csv(index=False).encode(),
        "t.parquet": table.to_parquet(index=False, row_group_size=5),
        "a.npz": arrays.getvalue(),
        "shards/a.h5": shards.getvalue(),
        "pictures/cat/1.png": png(X[0]),
        "pictures/dog/1.png": png(X[1]),
        "a.json": json.dumps(leaf(**users)).encode(),
        "images/train-images-idx3-ubyte": idx(X),
        "images/train-labels-idx1-ubyte": idx(y),
        "public.toml": b"classes = ['0', '1', '2']\n[columns.a]\nrange = [-9, 9]\nfill = 1\n",
    }


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with all of them."""
    for name, content in formats().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def make(folder: Path, *words: str) -> Ended:
    """`mpifed data ... --out out` ended cleanly; what it made can be read, what it did not make is not there."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    words = tuple(word.replace("\0", "") for word in words)
    end = ended(["data", *words, "--out", "out"], folder)
    check(end)
    assert len(end.text) < 3000 + sum(map(len, words)), end.text[:5000]
    assert (folder / "out/federation.h5").exists() == (end.code == 0), end
    if end.code == 0:
        federation = open_federation(folder / "out", verify=True)
        assert (federation.counts > 0).all() and (federation.widths > 0).all()
        for client in range(min(federation.clients, 5)):
            shard = shard_of(federation, client)
            rows = np.arange(min(shard.samples, 20))
            X = np.full((len(rows), shard.features), np.nan)
            if federation.sparse:
                X = shard.take_sparse(rows, np.float64).data
            else:
                shard.take(rows, X)
            assert np.isfinite(X).all() and np.isfinite(shard.y).all()
    return end


@given(
    changes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), WORDS), max_size=2), named=st.booleans(),
    label=st.sampled_from(["-1", "0", "c", "y"]) | WORDS, split=SPLITS, more=st.lists(WORDS, max_size=5),
    last=st.integers(2, 14),
)  # fmt: skip
@examples(8)
def test_strange_cells(
    tmp_path: Path, changes: list[Any], named: bool, label: str, split: list[str], more: list[str], last: int
) -> None:
    table = [line.split(",") for line in formats()["a.csv"].decode().split()][not named : last]
    for row, column, word in changes:
        table[row % len(table)][column] = word
    text = "\n".join(map(",".join, [*table, more] if more else table))
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", errors="replace")
    make(tmp_path, "csv", "a.csv", "--split", *split, f"--label={label}")


GOOD = [  # in some options
    "2", "4", "0.5", "1e-9", "2x3", "0x2", "100000x100000", "iid", "dirichlet:0.5", "dirichlet:inf", "dirichlet:1e-300",
    "classes:2", "classes:1000000000", "rows", "columns", "grid", "below:2", "class:x", "class:\u0663", "even-odd",
    "standard,unit,unit-rows", "minmax," * 50, "minmax", "y", "ill", "who", "X", "ward", ";", "tab", "a.svm", ".",
    "public.toml", "one-hot", "drop", "median", "regression", "uint8", "1e29",
]  # fmt: skip


def options_of(source: str) -> st.SearchStrategy[list[str]]:
    """An option that `mpifed data` has for a source, and what it may be, beside what nobody expects."""
    command = data.get_command(click.Context(data), source)
    assert command is not None
    named = [one for one in command.params if isinstance(one, click.Option) and one.name not in ("out", "force")]

    def given(option: click.Option) -> st.SearchStrategy[list[str]]:
        known = [*option.type.choices] if isinstance(option.type, click.Choice) else GOOD
        values = st.just([]) if option.is_flag else (st.sampled_from(known) | WORDS).map(lambda value: [value])
        return values.map(lambda value: [option.opts[0], *value])

    return st.sampled_from(named).flatmap(given)


TRIED = [
    "digits", "synthetic", "mnist .", "csv /dev/zero", "svmlight /dev/zero", "csv .", "csv", "leaf .", "cifar .",
    "csv a.csv --label y", "csv a.csv t.csv --label y", "svmlight a.svm", "idx images", "hdf5 shards",
    "csv t.csv --label ill --by ward", "csv t.csv --label ill --categorical one-hot", "parquet t.parquet --label ill",
    "npz a.npz", "leaf a.json", "images pictures",
]  # fmt: skip


def test_every_source_is_tried_and_described() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/data.md").read_text(encoding="utf-8")
    assert {words.split()[0] for words in TRIED} == set(SOURCES)
    assert all(f"`{name}" in page or f"mpifed data {name}" in page for name in SOURCES)


@given(tried=st.sampled_from(TRIED), split=SPLITS | st.just([]), drawn=st.data())
@examples(8)
def test_strange_options(files: Path, tried: str, split: list[str], drawn: st.DataObject) -> None:
    words = tried.split()
    options = drawn.draw(st.lists(options_of(words[0]), max_size=3))
    make(files, *words, *(["--split", *split] if split else []), *(word for option in options for word in option))


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip
READ = {  # the file that is damaged, and the words that read it
    "a.csv": "csv a.csv --label -1 --split rows --clients 2", "a.svm": "svmlight a.svm --split columns --clients 2",
    "t.csv": "csv t.csv --label ill --by ward --categorical one-hot --missing mean",
    "t.parquet": "parquet t.parquet --label ill --by ward --categorical one-hot --missing median",
    "a.npz": "npz a.npz --by who", "a.json": "leaf a.json",
    "images/train-images-idx3-ubyte": "idx images --split rows --clients 2",
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
@given(drawn=st.data(), suffix=st.sampled_from([*PACKERS]), packed=st.booleans())
@examples(6)
def test_damaged_formats(files: Path, name: str, drawn: st.DataObject, suffix: str, packed: bool) -> None:
    """Files as they are can be read; one of them is damaged before or after it is packed."""
    content, words = formats()[name], READ[name].split()
    (files / name).write_bytes(content)
    assert make(files, *words).code == 0
    suffix = suffix if name in ("a.csv", "a.svm", "t.csv", "a.json") else ""
    content = content if packed else drawn.draw(mutated(content))
    content = PACKERS[suffix](content)
    (files / f"{name}{suffix}").write_bytes(drawn.draw(mutated(content)) if packed else content)
    make(files, *(f"{word}{suffix}" if word == name else word for word in words))


# --- folders of data -------------------------------------------------------------------------------------------------

JOB = """
name = "small"
rounds = 2
data = {{path = "data", verify = {verify}, memory_gib = {room}}}
model.name = "{model}"
record.evaluate_every = 1
algorithm = {{{algorithm}, batch_size = 5}}
client_optimizer.learning_rate = {{initial = 0.1, exponent = 0.5, offset = 1.0}}
"""
ROWS, DRAWN = "--split rows --clients 4 --test-fraction 0.2", "synthetic --samples 60 --features 12 --task"
AVERAGING, HYBRID = 'name = "fedavg"', 'name = "hyfem", local_steps = 2, mu = 0.01'
MADE = {  # by folder: the model of a job, its algorithm, and the words that make the data
    "dense": ("softmax", AVERAGING, f"digits {ROWS}"),
    "sparse": ("softmax", AVERAGING, f"svmlight sparse.svm --sparse --task classification {ROWS}"),
    "regression": ("least-squares", AVERAGING, f"{DRAWN} regression {ROWS}"),
    "grid": ("logistic", HYBRID, f"{DRAWN} classification --classes 2 --split grid --grid 2x2"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("made"), np.random.default_rng(1)
    rows = ([f"{j + 1}:{rng.random():.3f}" for j in range(20) if rng.random() < 0.3] for _ in range(60))
    (folder / "sparse.svm").write_text("\n".join(f"{k % 3} {' '.join(row)}" for k, row in enumerate(rows)))
    for name, (_, _, words) in MADE.items():
        end = ended(["data", *words.split(), "--out", name], folder)
        assert end.code == 0, end.text
    return folder


@pytest.mark.parametrize("damage", ["none", "bytes", "an index that fits", "numbers", "no file"])
@given(name=st.sampled_from([*MADE]), verify=st.booleans(), room=st.sampled_from([0.0, 1.0]), drawn=st.data())
@examples(8)
def test_a_run_on_a_damaged_folder(
    damage: str, made: Path, tmp_path: Path, name: str, verify: bool, room: float, drawn: st.DataObject
) -> None:
    """It ends cleanly, with checksums compared or not."""
    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder = shutil.copytree(made / name, tmp_path / "data")
    path = folder / drawn.draw(st.sampled_from([ABOUT, ARRAYS]))
    if damage == "bytes":
        path.write_bytes(drawn.draw(mutated(path.read_bytes())))
    elif damage == "no file":
        put(path, drawn.draw(st.sampled_from(NO_FILES)))
    elif damage == "an index that fits":
        table = drawn.draw(other_table(read_json(folder / ABOUT)))
        with contextlib.suppress(Exception):
            table["data_sha256"] = _identity(conforming(About, table))
        (folder / ABOUT).write_text(json.dumps(table))
    elif damage == "numbers":  # the sizes stay: labels, columns and values are whatever the bytes are
        stored = bytearray((folder / ARRAYS).read_bytes())
        for at in drawn.draw(st.lists(st.integers(0, len(stored) - 8), min_size=8, max_size=8)):
            stored[at : at + 8] = drawn.draw(
                st.sampled_from([b"\xff" * 8, b"\0" * 8]) | st.binary(min_size=8, max_size=8)
            )
        (folder / ARRAYS).write_bytes(stored)
    model, algorithm, _ = MADE[name]
    text = JOB.format(verify=str(verify).lower(), room=room, model=model, algorithm=algorithm)
    (tmp_path / "job.toml").write_text(text)
    end = ended(["run", "job.toml", "--out", "run", "--progress", "none"], tmp_path)
    check(end)
    assert damage != "none" or end.code == 0, end.text
