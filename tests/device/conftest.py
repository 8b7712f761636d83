"""Tests of the arithmetic on devices: with a double of CuPy everywhere, on a real device when asked to (`-m gpu`)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "laws")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The double runs kernels by the host's compiler."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        for item in items:
            if HERE in item.path.parents and not item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no C++ compiler here: install g++, or name one in $CXX"))


@pytest.fixture
def cupy() -> Iterator[Any]:
    """The double."""
    from make_believe import make_believe

    with make_believe() as double:
        yield double
