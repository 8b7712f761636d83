"""HDF5 files on file systems without locks."""

from __future__ import annotations

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


@pytest.mark.parametrize(("setting", "opens"), [("TRUE", False), ("BEST_EFFORT", False), ("FALSE", True)])
def test_the_variable_of_hdf5_stands_above(tmp_path: Path, setting: str, opens: bool) -> None:
    """So `mpifed doctor` looks at it; HDF5 reads it once, when it is loaded."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    program = f"from mpifed.files.hdf5 import reading_hdf5\nwith reading_hdf5({str(path)!r}, '', ''): pass"
    with no_locks_for_others(path):
        ended = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"HDF5_USE_FILE_LOCKING": setting}, cwd=ROOT,
            capture_output=True, text=True,
        )  # fmt: skip
    assert (ended.returncode == 0) == opens, ended.stderr
    assert opens or "unable to lock file" in ended.stderr
