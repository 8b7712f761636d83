"""Data that all kill tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def packed(shared_path: Path, make_data: Callable[..., Path]) -> Path:
    """8 clients of the digits, three a file."""
    return make_data(
        shared_path / "packed", "digits", "--split", "rows", "--clients", "8", "--pack", "3", "--test-fraction", "0.2"
    )
