"""The first contact with a GPU, as far as it goes without one: its scripts can be imported, and play on the CPU."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import ROOT

DRILL = ROOT / "benchmarks" / "gpu-drill"


def script(name: str) -> Any:
    """A script of it as a module."""
    spec = importlib.util.spec_from_file_location(f"drill_{name}", DRILL / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(DRILL.glob("*.py")), ids=lambda path: str(path.name))
def test_every_script_is_imported(path: Path) -> None:
    assert callable(script(path.stem).main)


@pytest.mark.parametrize("path", sorted(DRILL.glob("*.sh")), ids=lambda path: str(path.name))
def test_every_script_of_bash_is_one(path: Path) -> None:
    read = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert read.returncode == 0, read.stderr
    words = path.read_text().split()
    named = {word for word in words if word.startswith(("tests/", "benchmarks/")) and ".cache" not in word}
    assert not [word for word in named if not (ROOT / word).exists()]


def test_rounds_are_played_and_timed(tmp_path: Path) -> None:
    probe = script("probe")
    (case, *_) = probe.CASES
    seconds, w = probe.timed(tmp_path, case._replace(clients=3), "cpu", 2)
    assert len(seconds) == 2
    assert w.shape == (784 * 128 + 128 + 128 * 10 + 10,)
    assert np.isfinite(w).all()
    again = probe.timed(tmp_path, case._replace(clients=3), "cpu", 1)[1]
    assert not np.array_equal(w, again)  # a round has changed it
