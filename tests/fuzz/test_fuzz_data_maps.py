"""Damaged and hostile maps: a clean end, and nothing half done."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import CSV, MAP, WORDS, lines, make, written
from fuzzing import examples, mutated, seeds
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.long


@given(seed=seeds, missing=st.sampled_from(["error", "zero"]))
@examples(8)
def test_damaged_maps(tmp_path: Path, seed: int, missing: str) -> None:
    path = written(tmp_path / "map.csv", mutated(MAP, seed))
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
