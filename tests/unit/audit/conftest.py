"""Data that audits share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def synthetic(name: str, options: str) -> Any:
    """A fixture with the folder of synthetic data of some classes."""

    @pytest.fixture(scope="session", name=name)
    def folder(tmp_path_factory: pytest.TempPathFactory, make_data: Callable[..., Path]) -> Path:
        asked = f"synthetic --task classification {options}".split()
        return make_data(tmp_path_factory.mktemp(name) / "data", *asked)

    return folder


alone = synthetic("alone", "--samples 5 --features 6 --classes 2 --clients 5 --split rows")  # one row each
six = synthetic("six", "--samples 120 --features 6 --classes 2 --clients 6 --split rows")
hundred = synthetic("hundred", "--samples 100 --features 64 --classes 10 --clients 5 --split columns")
squares = synthetic("squares", "--samples 24 --features 6 --classes 2 --grid 2x2 --split grid")
