"""Access to HDF5 files in all of mpifed: without file locks.

HDF5 locks a file that it opens (flock), and fails where the file system has no locks: Lustre mounted without `-o
flock`, some NFS, BeeGFS and GPFS. `best-effort` of HDF5 ignores ENOSYS only, and not ENOLCK or EOPNOTSUPP. mpifed needs
no locks: a file is written under a temporary name by one process, synced, and renamed when complete, and no process
opens it before; afterwards it is only read. The environment variable HDF5_USE_FILE_LOCKING, set to TRUE or BEST_EFFORT,
overrides this and enables locks.

Files are written through Python, since HDF5 does not survive a failed write: its file cannot be closed any more, and
the process ends with a segmentation fault. Here errors are hidden from HDF5, and raised when the file is closed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import Buffer

from mpifed.core.errors import DataError
from mpifed.core.io_errors import named_in_errors
from mpifed.core.record import Array
from mpifed.core.text import shown

# exceptions of h5py for damaged files
_DAMAGED = (OSError, LookupError, ValueError, TypeError, RuntimeError, ArithmeticError, AttributeError, MemoryError)


@contextmanager
def write_hdf5(path: Path, **settings: int) -> Iterator[h5py.File]:
    """A new HDF5 file, opened for writing; OSError at the end, if a write failed. `settings` are those of h5py."""
    with named_in_errors(path), _Unfailing(path, "w+") as file:
        try:
            with h5py.File(file, "w", **settings) as hdf5:
                yield hdf5
        finally:
            if file.error is not None:
                raise file.error


class _Unfailing(io.FileIO):
    """A file whose writes always succeed from the view of HDF5; it stores the first error."""

    error: BaseException | None = None

    def readinto(self, buffer: Buffer) -> int:
        """Fills the buffer, with zeros beyond the end of the file."""
        view = memoryview(buffer).cast("B")
        got = super().readinto(view) or 0
        view[got:] = bytes(len(view) - got)
        return len(view)

    def write(self, content: Buffer) -> int:
        view, done = memoryview(content).cast("B"), 0
        try:
            while done < len(view) and self.error is None:
                done += super().write(view[done:])
        except BaseException as error:  # also KeyboardInterrupt: no exception may pass through HDF5
            self.error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.error is None:
                super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0


@contextmanager
def reading_hdf5(path: str | os.PathLike[str], wrong: str, remedy: str) -> Iterator[h5py.File]:
    """The open file, without a lock; errors of HDF5 become a DataError with the texts `wrong` and `remedy`."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("not a regular file")  # reading a pipe could block forever
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except _DAMAGED as error:
        why = str(error)[:200].encode("utf-8", "backslashreplace").decode()  # names in a file may be invalid text
        raise DataError(f"{path}: {wrong} ({type(error).__name__}: {why}); {remedy}") from error


def content_of(file: h5py.File, name: str) -> Array:
    """A dataset of numbers or texts, compressed or not; ValueError for links and virtual ones: they lead elsewhere."""
    node = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(node, h5py.Dataset) or node.is_virtual or node.external:
        there = shown(", ".join(islice(file, 5)), 80)
        raise ValueError(f"{name} is no dataset of this file, which has {there or 'none'}")
    texts = h5py.check_string_dtype(node.dtype) is not None
    return np.asarray(node.asstr()[...], str) if texts else np.asarray(node[...])


def reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Create a contiguous dataset with space allocated at once; returns its offset in bytes, 0 if it is empty."""
    settled = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settled.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settled.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return int(file.create_dataset(name, shape, dtype, dcpl=settled).id.get_offset() or 0)
