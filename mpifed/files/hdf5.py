"""HDF5 files: those of others read, without locks and through no link, and room made in new ones.

HDF5 locks a file that it opens (flock), and fails where the file system has no locks: Lustre mounted without `-o
flock`, some NFS, BeeGFS and GPFS. `best-effort` of HDF5 ignores ENOSYS only, and not ENOLCK or EOPNOTSUPP. The
environment variable HDF5_USE_FILE_LOCKING, set to TRUE or BEST_EFFORT, enables locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import IO

import h5py
import numpy as np

from mpifed.core.io_errors import PathLike
from mpifed.core.record import Array
from mpifed.files.reading import reading
from mpifed.text import shown

# attributes by which netCDF's readers change values, or take them for gaps, unless that is NaN
_OF_NETCDF = ("scale_factor", "add_offset", "_FillValue", "missing_value", "valid_range", "valid_min", "valid_max")
_HEADER = 1 << 13  # bytes that HDF5 needs for an array besides its values, at most
# exceptions of h5py for damaged files
_DAMAGED = (OSError, LookupError, ValueError, TypeError, RuntimeError, ArithmeticError, AttributeError, MemoryError)


@contextmanager
def reading_hdf5(path: PathLike, remedy: str) -> Iterator[h5py.File]:
    """The open file, without a lock; errors of HDF5 become a DataError."""
    with reading(path, remedy, *_DAMAGED):
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError("not a regular file")  # reading a pipe could block forever
        with h5py.File(path, "r", locking=False) as file:
            yield file


def content_of(file: h5py.File, name: str) -> Array:
    """A dataset of numbers or texts, compressed or not; ValueError for links and virtual ones: they lead elsewhere."""
    node = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    if not isinstance(node, h5py.Dataset) or node.is_virtual or node.external:
        there = shown(", ".join(islice(file, 5)), 80)
        raise ValueError(f"{name} is no dataset of this file, which has {there or 'none'}")
    if unread := [key for key in _OF_NETCDF if key in node.attrs and np.all(node.attrs[key] == node.attrs[key])]:
        raise ValueError(f"{name} has {', '.join(unread)}: apply what these say of its values, and write plain numbers")
    texts = h5py.check_string_dtype(node.dtype) is not None
    return np.asarray(node.asstr()[...], str) if texts else np.asarray(node[...])


def reserve(file: IO[bytes], arrays: Mapping[str, Array], alignment: int) -> dict[str, int]:
    """Make an empty file one of HDF5 with room for these arrays, each in one piece; gives their offsets, by name.

    OSError where the disk is full: HDF5 would not survive that, nor would who writes what is mapped.
    """
    nbytes = sum(values.nbytes + _HEADER for values in arrays.values())
    os.posix_fallocate(file.fileno(), 0, nbytes)
    file.truncate(0)  # HDF5 makes its own of what is empty alone, and gives back what it does not need
    early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    early.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(file, "w", alignment_threshold=1, alignment_interval=alignment) as hdf5:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        made = {name: hdf5.create_dataset(name, part.shape, part.dtype, dcpl=early) for name, part in arrays.items()}
        return {name: int(dataset.id.get_offset() or 0) for name, dataset in made.items()}
