"""Data that audits share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def hundred(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Path:
    """5 clients with 13 or 12 columns each of the same 100 rows, of ten classes."""
    out = tmp_path_factory.mktemp("hundred") / "data"
    asked = ("--samples", "100", "--features", "64", "--task", "classification", "--classes", "10", "--clients", "5")
    return make_data(out, "synthetic", *asked, "--split", "columns")


@pytest.fixture(scope="session")
def six(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Path:
    """Six clients with 20 rows each of two classes."""
    asked = ("--samples", "120", "--features", "6", "--task", "classification", "--classes", "2", "--clients", "6")
    return make_data(tmp_path_factory.mktemp("six") / "data", "synthetic", *asked, "--split", "rows")


@pytest.fixture(scope="session")
def squares(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Path:
    """4 clients with 3 columns each of 12 of 24 rows, of two classes."""
    asked = ("--samples", "24", "--features", "6", "--task", "classification", "--classes", "2", "--grid", "2x2")
    return make_data(tmp_path_factory.mktemp("squares") / "data", "synthetic", *asked, "--split", "grid")
