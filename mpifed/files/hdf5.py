"""HDF5 files of others, read without locks, through no link.

HDF5 locks a file that it opens (flock), and fails where the file system has no locks: Lustre mounted without `-o
flock`, some NFS, BeeGFS and GPFS. `best-effort` of HDF5 ignores ENOSYS only, and not ENOLCK or EOPNOTSUPP. The
environment variable HDF5_USE_FILE_LOCKING, set to TRUE or BEST_EFFORT, enables locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import h5py
import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.core.text import shown

# exceptions of h5py for damaged files
_DAMAGED = (OSError, LookupError, ValueError, TypeError, RuntimeError, ArithmeticError, AttributeError, MemoryError)


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
