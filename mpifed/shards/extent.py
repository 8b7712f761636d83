"""Arrays of items in files, read without HDF5, through a cache of open files."""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.shards.layout import REMEDY

MOST_OPEN = 128  # open files per federation


class Files:
    """A cache of open files: the least recently used is closed for another."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close, self._open)

    def descriptor(self, path: Path) -> int:
        """The descriptor of a file, valid until the next call; DataError if the file cannot be opened."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        while len(self._open) >= MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        try:
            self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise DataError(
                    f"{path}: this process may not open more files; raise the limit (`ulimit -n`) to {2 * MOST_OPEN}"
                ) from error
            raise DataError(f"{path}: cannot be opened ({error.strerror}); {REMEDY}") from error
        return self._open[path]


def _close(files: dict[Path, int]) -> None:
    for descriptor in files.values():
        os.close(descriptor)


class Extent:
    """A contiguous array of items in a file, read without HDF5.

    HDF5 takes 0.03 ms for a slice and far more for a list of rows; `pread` takes 0.001 ms per row. If the file has been
    truncated, it reads less, where access to a mapped file would end the process.
    """

    def __init__(
        self, path: Path, offset: int, shape: tuple[int, ...], dtype: DTypeLike, files: Files | None = None
    ) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, np.dtype(dtype)
        self._item_nbytes = math.prod(shape[1:]) * self.dtype.itemsize
        self.nbytes = shape[0] * self._item_nbytes
        self._files = files or Files()

    def load(self) -> Array:
        return self.part(0, self.shape[0])

    def part(self, start: int, stop: int) -> Array:
        """The items from `start` to `stop`, which must exist."""
        items: Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        if items.size:
            try:
                begin = self.offset + start * self._item_nbytes
                self._read_on(self._files.descriptor(self.path), items.reshape(-1).data.cast("B"), begin)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        return items

    def gather(self, starts: Array, stops: Array, into: Array) -> None:
        """Read the items from starts[i] to stops[i], for all i in order, into the contiguous `into`.

        Adjacent ranges are read in a single call. Raises IndexError for positions that do not exist.
        """
        if not into.size:
            return
        if starts.min() < 0 or stops.max() > self.shape[0]:
            raise IndexError(f"{self.path}: items {starts.min()} to {stops.max() - 1} of {self.shape[0]}")
        first = np.concatenate([[0], np.flatnonzero(starts[1:] != stops[:-1]) + 1])
        last = np.append(first[1:], len(starts)) - 1
        begins = (starts[first] * self._item_nbytes + self.offset).tolist()
        sizes = ((stops[last] - starts[first]) * self._item_nbytes).tolist()
        fd, view, done = self._files.descriptor(self.path), into.data.cast("B"), 0
        try:
            for begin, size in zip(begins, sizes, strict=True):
                target = view[done : done + size]
                if os.preadv(fd, [target], begin) != size:
                    self._read_on(fd, target, begin)
                done += size
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _read_on(self, fd: int, target: memoryview, begin: int) -> None:
        """Read repeatedly, since a call may return less than requested (on Linux, at most 2 GiB)."""
        while target:
            got = os.preadv(fd, [target], begin)
            if not got:
                raise DataError(f"{self.path}: ends at byte {begin}, {len(target)} too early; {REMEDY}")
            target, begin = target[got:], begin + got


def is_finite(values: Array) -> bool:
    """Whether all numbers are finite, without an array of their size."""
    if values.dtype.kind != "f" or not values.size:
        return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))
