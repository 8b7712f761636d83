"""HDF5 files on file systems without locks."""

from __future__ import annotations

import ast
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

import mpifed
from mpifed.run.history import read_model, write_model
from mpifed.shards.hdf5 import open_hdf5, write_hdf5

ROOT = Path(mpifed.__file__).parents[1]


@contextmanager
def no_locks_for_others(path: Path) -> Iterator[None]:
    """Nobody can lock a file here, as where the file system has no locks."""
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(number)


pytestmark = pytest.mark.skipif("HDF5_USE_FILE_LOCKING" in os.environ, reason="HDF5_USE_FILE_LOCKING is set")


def test_files_are_opened_without_locks(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with no_locks_for_others(path):
        with pytest.raises(OSError, match="unable to lock file"):
            h5py.File(path, "w")
        with write_hdf5(path) as file:
            file["x"] = np.arange(3)
        with write_hdf5(path, "r+") as file:
            file["y"] = np.arange(2)
        with open_hdf5(path) as file:
            assert sorted(file) == ["x", "y"]


def test_a_model_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    with no_locks_for_others(path.with_name("model.h5.new")):
        write_model(path, {"w": np.arange(4.0)})
    with no_locks_for_others(path):
        assert np.array_equal(read_model(path)["w"], np.arange(4.0))


@pytest.mark.parametrize(("setting", "opens"), [("TRUE", False), ("BEST_EFFORT", False), ("FALSE", True)])
def test_the_variable_of_hdf5_stands_above(tmp_path: Path, setting: str, opens: bool) -> None:
    """So `mpifed doctor` looks at it; HDF5 reads it once, when it is loaded."""
    path = tmp_path / "file.h5"
    with write_hdf5(path) as file:
        file["x"] = np.arange(3)
    program = f"from mpifed.shards.hdf5 import open_hdf5; open_hdf5({str(path)!r})"
    with no_locks_for_others(path):
        ended = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"HDF5_USE_FILE_LOCKING": setting}, cwd=ROOT,
            capture_output=True, text=True,
        )  # fmt: skip
    assert (ended.returncode == 0) == opens, ended.stderr
    assert opens or "unable to lock file" in ended.stderr


def test_there_is_one_place_that_opens_files() -> None:
    package = Path(mpifed.__file__).parent
    for path in package.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        opened = [one for one in calls if ast.unparse(one.func) == "h5py.File"]
        assert len(opened) == 2 * (path == package / "shards/hdf5.py"), path  # to read, and to write
