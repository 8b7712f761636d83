"""HDF5 files on file systems without locks."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from limits import soft_limit

import mpifed
from mpifed.files.hdf5 import array_of, reading_hdf5, write_hdf5

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
        with reading_hdf5(path, "wrong", "remedy") as file:
            assert sorted(file) == ["x"]


def test_a_disk_that_becomes_full_ends_in_its_own_error(tmp_path: Path) -> None:
    """And not in HDF5's, which would end the process; what fitted had been written in parts."""
    path, full = tmp_path / "file.h5", pytest.raises(OSError, match="File too large")
    with soft_limit(resource.RLIMIT_FSIZE, 10_000), full as caught, write_hdf5(path) as file:
        file["x"] = np.arange(10_000)
    assert caught.value.filename == str(path)
    assert path.stat().st_size == 10_000


@pytest.mark.parametrize(("setting", "opens"), [("TRUE", False), ("BEST_EFFORT", False), ("FALSE", True)])
def test_the_variable_of_hdf5_stands_above(tmp_path: Path, setting: str, opens: bool) -> None:
    """So `mpifed doctor` looks at it; HDF5 reads it once, when it is loaded."""
    path = tmp_path / "file.h5"
    with write_hdf5(path) as file:
        file["x"] = np.arange(3)
    program = f"from mpifed.files.model_file import read_model; read_model({str(path)!r})"
    with no_locks_for_others(path):
        ended = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"HDF5_USE_FILE_LOCKING": setting}, cwd=ROOT,
            capture_output=True, text=True,
        )  # fmt: skip
    assert (ended.returncode == 0) == opens, ended.stderr
    assert opens or "unable to lock file" in ended.stderr


def virtual(file: Any, name: str, beside: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[...] = h5py.VirtualSource(str(beside), "x", (4,))
    file.create_virtual_dataset(name, layout)


# (file, name, another file with "x") -> what stands there
NOT_HERE: list[Callable[[Any, str, Path], Any]] = [
    virtual,
    lambda file, name, beside: file.__setitem__(name, h5py.ExternalLink(str(beside), "x")),
    lambda file, name, beside: file.update({"there": np.zeros(4), name: h5py.SoftLink("/there")}),
    lambda file, name, beside: file.create_dataset(name, (4,), "f8", external=[(str(beside), 0, 32)]),
    lambda file, name, beside: file.create_dataset(name, data=np.zeros(2**22), chunks=(2**22,), compression="gzip"),
    lambda file, name, beside: file.create_dataset(name, (2**40,), "f8", chunks=(1024,), compression="gzip"),
    lambda file, name, beside: file.create_dataset(name, (2**60,), "u1"),
    lambda file, name, beside: file.__setitem__(name, np.zeros(3, "i4,f8")),
]


@pytest.mark.parametrize("make_it", NOT_HERE)
def test_only_what_is_in_the_file_is_read(tmp_path: Path, make_it: Callable[[Any, str, Path], None]) -> None:
    with h5py.File(tmp_path / "beside.h5", "w") as file:
        file["x"] = np.arange(4.0)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        make_it(file, "group/x", tmp_path / "beside.h5")
        file["group/y"] = np.arange(3)
    with reading_hdf5(tmp_path / "made.h5", "wrong", "remedy") as file:
        with pytest.raises(ValueError, match="group/x"):
            array_of(file, "group/x")
        assert array_of(file, "group/y").tolist() == [0, 1, 2]
