"""Damaged and hostile maps: a clean end, and nothing half done."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import CSV, MAP, WORDS, lines, make, written
from fuzzing import examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st

TOML = b"""[[client]]
rows = ["0-3", "8-11"]
columns = "all"
[[client]]
number = 2
rows = "4-7"
columns = ["0-1", 3]
[[client]]
number = 1
rows = ["4-7"]
columns = [2]
"""


@pytest.mark.parametrize("suffix", [".csv", ".toml"])
@given(seed=seeds, missing=st.sampled_from(["error", "zero"]))
@examples(8)
def test_damaged_maps(tmp_path: Path, suffix: str, seed: int, missing: str) -> None:
    path = written(tmp_path / f"map{suffix}", mutated(MAP if suffix == ".csv" else TOML, seed))
    words = ("--split", "grid", "--map", path, "--missing", missing)
    make(tmp_path, "csv", written(tmp_path / "a.csv", CSV), *words)


RANGES = st.one_of(
    st.sampled_from(["all", "0-11", "1", "0-4000000000", "4000000000", "-", "0-", "-3", "3-1", "0-1-2", "1 1 1", ""]),
    st.tuples(st.integers(0, 13), st.integers(0, 13)).map(lambda pair: f"{min(pair)}-{max(pair)}"),
    WORDS, st.lists(st.integers(0, 12).map(str), max_size=5).map(" ".join),
)  # fmt: skip
CLIENTS = st.one_of(
    st.integers(0, 5).map(str), st.sampled_from(["4000000000", "9" * 18, "9" * 19, "9" * 5000, "-1", "x"])
)


@given(
    entries=st.lists(st.tuples(CLIENTS, RANGES, RANGES), max_size=5), ordered=st.booleans(),
    missing=st.sampled_from(["error", "zero"]),
)  # fmt: skip
@examples(8)
def test_strange_csv_maps(tmp_path: Path, entries: list[tuple[str, str, str]], ordered: bool, missing: str) -> None:
    if ordered and entries:  # the first holds every row of some columns, so that few things are wrong
        entries[0] = "0", "all", entries[0][2]
    rows = ((str(place) if ordered else client, *held) for place, (client, *held) in enumerate(entries))
    path = written(tmp_path / "map.csv", lines([["client", "rows", "columns"], *rows]))
    words = ("--split", "grid", "--map", path, "--missing", missing)
    make(tmp_path, "csv", written(tmp_path / "a.csv", CSV), *words)


VALUES = st.one_of(
    st.sampled_from([
        '"all"', "0", "[0]", '["0-11"]', "[]", "{}", "true", "nan", "1e400", "1979-05-27", "-1", "[[0]]", "4000000000",
        "0x" + "f" * 6000, "[0x" + "f" * 6000 + "]", "9" * 400, "9" * 5000, "[" * 2000 + "]" * 2000, '"0-4000000000"',
        '"\\u0000"', '"\\u001b[31m"', "'''\n'''", "[1, [2, {a = 0x" + "f" * 5000 + "}]]",
    ]),
    st.lists(st.integers(-1, 12).map(str) | st.just('"3-5"'), max_size=4).map(lambda items: f"[{', '.join(items)}]"),
)  # fmt: skip
KEYS = st.sampled_from(["rows", "columns", "number", "client", "x" * 5000, '"\\u0007"', "rows.a"])


@given(
    tables=st.lists(st.lists(st.tuples(KEYS, VALUES), max_size=3, unique_by=lambda pair: pair[0]), max_size=4),
    head=st.sampled_from(["[[client]]", "[client]", "[[clients]]"]) | st.just("[[client]]"),
    full=st.booleans(),
)  # fmt: skip
@examples(8)
def test_strange_toml_maps(tmp_path: Path, tables: list[list[tuple[str, str]]], head: str, full: bool) -> None:
    texts = []
    for pairs in tables:
        given_keys = {key for key, _ in pairs}
        pairs = pairs + [(key, '"all"') for key in ("rows", "columns") if full and key not in given_keys]
        texts.append(head + "\n" + "".join(f"{key} = {value}\n" for key, value in pairs))
    path = written(tmp_path / "map.toml", "".join(texts).encode())
    make(tmp_path, "csv", written(tmp_path / "a.csv", CSV), "--split", "grid", "--map", path)
