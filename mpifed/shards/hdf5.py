"""How HDF5 files are opened, everywhere in mpifed: without file locks.

HDF5 locks a file that it opens (flock), and fails where the file system has no locks: Lustre mounted without `-o
flock`, some NFS, BeeGFS and GPFS. `best-effort` of HDF5 forgives ENOSYS alone, and not ENOLCK or EOPNOTSUPP. mpifed
needs no locks: a file is written under a name of its own by one process, synced, and renamed when it is whole, and
nobody opens it before; after that it is only read. The environment variable HDF5_USE_FILE_LOCKING, where it is set to
TRUE or BEST_EFFORT, stands above all this, and brings the locks back: `mpifed doctor` says so.

Files are written through Python, since HDF5 does not survive a write that fails: its file cannot be closed any more,
and the process ends in a segmentation fault. Here HDF5 never hears of it; the error is raised when the file is closed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from mpifed.core.io_errors import named_in_errors, regular

_PIECE_BYTES = 2**22  # of a dataset that are read at once
_MODES: dict[str, Literal["w+b", "r+b"]] = {"w": "w+b", "r+": "r+b"}


def open_hdf5(path: str | os.PathLike[str]) -> h5py.File:
    """An HDF5 file to read, without a lock; OSError where it cannot be opened."""
    with named_in_errors(Path(path)):
        return h5py.File(regular(path), "r", locking=False)


@contextmanager
def write_hdf5(path: Path, mode: Literal["w", "r+"] = "w") -> Iterator[h5py.File]:
    """A new HDF5 file, or one that is there, to write to.

    Raises
    ------
    OSError
        at the end, where something could not be written.
    """
    with named_in_errors(path), open(path, _MODES[mode], buffering=0) as opened:
        file = _Unfailing(opened)
        try:
            with h5py.File(file, mode) as hdf5:
                yield hdf5
        finally:
            if file.error is not None:
                raise file.error


class _Unfailing(io.RawIOBase):
    """A file that takes everything, and keeps the first error of those with which it could not be written."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Zeros where nothing could be written."""
        view = memoryview(buffer).cast("B")
        got = self._file.readinto(view) or 0
        view[got:] = bytes(len(view) - got)
        return len(view)

    def write(self, content: Any) -> int:
        view, done = memoryview(content).cast("B"), 0
        try:
            while done < len(view) and self.error is None:
                done += self._file.write(view[done:])
        except BaseException as error:  # a KeyboardInterrupt as well: nothing may pass through HDF5
            self.error = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.error is None:
                self._file.truncate(size)
        except OSError as error:
            self.error = error
        return size or 0

    def flush(self) -> None:
        """Nothing waits here."""


def reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: Any) -> int:
    """Make a contiguous dataset whose place in the file is settled now; its offset there in bytes, 0 if it is empty."""
    settled = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settled.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    settled.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    return int(file.create_dataset(name, shape, dtype, dcpl=settled).id.get_offset() or 0)


def content_sha256(file: h5py.File, without: Collection[str] = ()) -> str:
    """The SHA-256 of what a file holds: names, types, shapes, values and attributes, wherever they lie in it.

    `without` names root attributes and datasets that do not count.
    """
    digest, names = hashlib.sha256(), list[str]()
    file.visit(names.append)
    for name in ("/", *sorted(set(names) - set(without))):
        held = file[name]
        for key in sorted(set(held.attrs) - set(without)):
            digest.update(b"".join(_encoded(f"{name}@{key}", held.attrs[key])))
        if isinstance(held, h5py.Dataset):
            for piece in _pieces(name, held):
                digest.update(piece)
    return digest.hexdigest()


def _pieces(name: str, dataset: h5py.Dataset) -> Iterator[bytes]:
    """What is hashed of a dataset, a few rows at a time."""
    if dataset.ndim == 0 or dataset.dtype.kind == "O":
        yield from _encoded(name, dataset.asstr()[()] if dataset.dtype.kind == "O" else dataset[()])
        return
    yield _head(name, dataset)
    rows = max(1, _PIECE_BYTES // max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:]))))
    for start in range(0, len(dataset), rows):
        yield np.ascontiguousarray(dataset[start : start + rows]).tobytes()


def _encoded(name: str, value: Any) -> tuple[bytes, bytes]:
    """Head and content of a value in memory; texts as JSON."""
    values = np.asarray(value)
    content = json.dumps(values.tolist()).encode() if values.dtype.kind in "OU" else values.tobytes()
    return (f"{name}\0{len(content)}\0".encode() if values.dtype.kind in "OU" else _head(name, values)), content


def _head(name: str, values: Any) -> bytes:
    """What tells arrays of the same bytes apart."""
    return f"{name}\0{values.dtype.str}\0{','.join(map(str, values.shape))}\0".encode()
