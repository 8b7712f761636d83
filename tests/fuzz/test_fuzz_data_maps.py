"""Damaged and hostile maps: a clean end, and nothing half done."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import CSV, MAP, make, written
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
