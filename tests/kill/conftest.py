"""Data that all kill tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from quick import REAL


@pytest.fixture(autouse=True)
def real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is killed has waited for the disk, as runs do."""
    for name, call in REAL.items():
        monkeypatch.setattr(os, name, call)


@pytest.fixture(scope="session")
def packed(shared_path: Path, make_data: Callable[..., Path]) -> Path:
    """8 clients of the digits, three a file."""
    return make_data(shared_path / "packed", "digits", "--split", "rows", "--clients", "8", "--test-fraction", "0.2")
