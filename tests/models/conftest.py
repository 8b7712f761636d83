"""Tests of models of other libraries: `make test-long MODELS=1`, which installs these."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

# of installations without the extra
collect_ignore_glob = [f"test_{name}*.py" for name in ("torch", "jax", "flwr_datasets") if find_spec(name) is None]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.models)
