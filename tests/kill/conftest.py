"""What is killed has waited for the disk, as runs do."""

from __future__ import annotations

import os

import pytest
from quick import REAL


@pytest.fixture(autouse=True)
def real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own calls."""
    for name, call in REAL.items():
        monkeypatch.setattr(os, name, call)
