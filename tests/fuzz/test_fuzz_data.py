"""Damaged and hostile data files, and options of `mpifed data`: a clean end, and nothing half done."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from data_files import CSV, WORDS, formats, lines, make, written
from fuzzing import examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st

from mpifed.data import sources

pytestmark = pytest.mark.long

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip
SPLITS = st.sampled_from([
    "rows --clients 2", "columns --clients 2", "grid --grid 2x2", "rows --clients 1 --test-fraction 0.3",
    "rows --clients 2 --partition dirichlet:0.5", "rows --clients 2 --scale standard", "rows --clients 3 --skew 1",
    "rows --clients 2 --scale minmax,unit-rows", "rows --clients 2 --labels even-odd", "rows --clients 2 --scale unit",
    "rows --clients 2 --task regression --scale standard", "rows --clients 2 --task classification",
])  # fmt: skip


CHANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), WORDS), max_size=2)  # (row, column, what is there)


def changed(rows: list[list[str]], changes: list[tuple[int, int, str]]) -> list[list[str]]:
    """A table with other words in some of its cells."""
    rows = [list(row) for row in rows]
    for row, column, word in changes:
        rows[row % len(rows)][column % len(rows[row % len(rows)])] = word
    return rows


@given(
    changes=CHANGES, named=st.booleans(), label=st.sampled_from(["-1", "0", "c", "y"]) | WORDS, split=SPLITS,
    more=st.just([]) | st.lists(WORDS, max_size=5), last=st.integers(2, 14),
)  # fmt: skip
@examples(8)
def test_strange_csv(
    tmp_path: Path, changes: list[tuple[int, int, str]], named: bool, label: str, split: str, more: list[str], last: int
) -> None:
    table = changed([line.split(",") for line in CSV.decode().split()][not named : last], changes)
    table += [more] if more else []
    words = ("csv", written(tmp_path / "a.csv", lines(table)), "--split", *split.split())
    make(tmp_path, *words, f"--label={label.replace(chr(0), '')}")


HUGE = st.sampled_from([
    "0", "1", "2", "3", "-1", "7", "x", "", "1.5", "nan", "inf", "1e300", "1e-300", "1000000000", "1000000000000",
    "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551616", "9" * 400, "9" * 5000,
    "/dev/zero", "/dev/null", "/", "a.csv", "a.svm", "x" * 300, "\udcff", "\x1b[31m",
])  # fmt: skip
OPTIONS = {  # and what each may be, beside that
    "--clients": ["4", "1797"], "--grid": ["100000x100000", "2x3", "0x2", "9" * 21 + "x2", "1x1", "2x" + "9" * 5000],
    "--partition": [
        "iid", "dirichlet:1e-300", "dirichlet:1e308", "dirichlet:inf", "dirichlet:nan", "dirichlet:", "classes:1",
        "classes:1000000000", "classes:2", "classes:" + "9" * 5000, "dirichlet:" + "9" * 5000,
    ],
    "--split": ["rows", "columns", "grid"], "--skew": ["0.1"],
    "--labels": ["below:2", "class:1", "class:x", "even-odd", "all", "class:", "class:\u0663"],
    "--scale": ["unit", "none", "standard,unit,unit-rows", "minmax," * 50, "minmax", "standard", "unit-rows"],
    "--test-fraction": ["0.5", "0.999999", "1e-9", "0.2"], "--seed": ["17"],
}  # fmt: skip
TASKS = {"--task": ["classification", "regression", "auto"]}
TESTS = {"--test": ["a.csv", "a.svm"], **TASKS}
CELLS = {"--separator": [",", ";", "tab"], "--decimal": [",", "."], "--given": ["a.csv", "public.toml"]}
FILLS = ["drop", "mean", "median", "zero"]
SOURCES = {  # and what options each has of its own
    "digits": {}, "csv a.csv --label y": {"--label": ["y", "0", "-1"], **TESTS, **CELLS},
    "csv a.csv t.csv --label y": {"--label": ["y", "0", "-1"], **TESTS, **CELLS},
    "svmlight a.svm": {"--dense": [""], "--sparse": [""], **TESTS},
    "synthetic": {
        "--samples": ["50"], "--features": ["5"], "--noise": ["0", "1e29"], "--classes": ["4"],
        "--dtype": ["uint8", "float32"], **TASKS,
    },
    "mnist .": {}, "csv /dev/zero": TESTS, "svmlight /dev/zero": TESTS, "csv .": TESTS,
    "csv": TESTS,
    "csv t.csv --label ill --by ward": {"--categorical": ["one-hot"], "--missing": FILLS, **TASKS},
    "csv t.csv --label ill --categorical one-hot": {"--by": ["ward", "ill", "0"], "--missing": FILLS, **TESTS},
    "parquet t.parquet --label ill": {
        "--by": ["ward", "x"], "--categorical": ["one-hot"], "--missing": FILLS, **TESTS,
    },
    "npz a.npz": {"--by": ["who", "X"], "--samples": ["X", "y"], "--label": ["y", "who", "X"], **TASKS},
    "leaf a.json": {"--test": ["a.json", "."], **TASKS}, "leaf .": {},
    "idx images": {}, "hdf5 shards": TASKS, "images pictures": {}, "cifar .": {},
}  # fmt: skip


def test_every_source_is_tried_and_described() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/data.md").read_text(encoding="utf-8")
    assert {words.split()[0] for words in SOURCES} == set(sources.SOURCES)
    assert all(f"`{name}" in page or f"mpifed data {name}" in page for name in sources.SOURCES)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A source with one to three options, of which some have values that nobody expects."""
    source = draw(st.sampled_from(list(SOURCES)))
    words = source.split()
    if draw(st.integers(0, 9)):
        words += draw(st.sampled_from(["--split rows --clients 2", "--split grid --grid 2x2"])).split()
    for _ in range(draw(st.integers(0, 3))):
        of_source = draw(st.booleans()) and SOURCES[source]
        options = of_source or OPTIONS
        option = draw(st.sampled_from(list(options)))
        words.append(option)
        if options[option] != [""]:
            words.append(draw(st.sampled_from(options[option]) | HUGE))
    return words


@given(words=command_lines())
@examples(8)
def test_strange_options(tmp_path: Path, words: list[str]) -> None:
    written(tmp_path / "public.toml", b"classes = ['0', '1', '2']\n[columns.a]\nrange = [-9, 9]\nfill = 1\n")
    for name, content in formats().items():
        written(tmp_path / name, content)
    make(tmp_path, *words)


FORMATS = {  # the file that is damaged, of those of `formats`, and the words that read it
    "a.csv": "csv a.csv --label -1 --split rows --clients 2", "a.svm": "svmlight a.svm --split columns --clients 2",
    "t.csv": "csv t.csv --label ill --by ward --categorical one-hot --missing mean",
    "t.parquet": "parquet t.parquet --label ill --by ward --categorical one-hot --missing median",
    "a.npz": "npz a.npz --by who", "a.json": "leaf a.json",
    "images/train-images-idx3-ubyte": "idx images --split rows --clients 2",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@given(seed=seeds, suffix=st.sampled_from(list(PACKERS)), packed=st.booleans(), split=SPLITS)
@examples(6)
def test_damaged_formats(tmp_path: Path, name: str, seed: int, suffix: str, packed: bool, split: str) -> None:
    """Files as they are can be read; one of them is damaged before or after it is packed."""
    for other, content in formats().items():
        written(tmp_path / other, content)
    words = FORMATS[name].split()
    assert make(tmp_path, *words).code == 0
    suffix, content = suffix if name in ("a.csv", "a.svm", "t.csv", "a.json") else "", formats()[name]
    pack = PACKERS[suffix]
    written(tmp_path / f"{name}{suffix}", mutated(pack(content), seed) if packed else pack(mutated(content, seed)))
    more = ("--split", *split.split()) if name[:2] == "a." and "rows" in words else ()
    make(tmp_path, *(f"{word}{suffix}" if word == name else word for word in words), *more)
