"""How HDF5 files are opened, everywhere in mpifed: without file locks.

HDF5 locks a file that it opens (flock), and fails where the file system has no locks: Lustre mounted without `-o
flock`, some NFS, BeeGFS and GPFS. `best-effort` of HDF5 forgives ENOSYS alone, and not ENOLCK or EOPNOTSUPP. mpifed
needs no locks: a file is written under a name of its own by one process, synced, and renamed when it is whole, and
nobody opens it before; after that it is only read. The environment variable HDF5_USE_FILE_LOCKING, where it is set to
TRUE or BEST_EFFORT, stands above all this, and brings the locks back: `mpifed doctor` says so.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import h5py


def open_hdf5(path: str | os.PathLike[str], mode: Literal["r", "w", "a", "r+"]) -> h5py.File:
    """An open HDF5 file, without a lock; OSError where it cannot be opened."""
    return h5py.File(path, mode, locking=False)


def reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: Any) -> int:
    """Make a contiguous dataset whose place in the file is settled now; its offset there in bytes, 0 if it is empty."""
    settled = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settled.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settled.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return int(file.create_dataset(name, shape, dtype, dcpl=settled).id.get_offset() or 0)
