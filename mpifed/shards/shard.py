"""The rows of a client, in memory or read from its file on demand."""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.errors import DataError
from mpifed.core.loops import scale_dense
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.shards.layout import REMEDY
from mpifed.shards.scaling import Scaling, scale_sparse

PIECE_NBYTES = 1 << 24  # of a piece of rows: float32 values, for sparse rows with int32 columns
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


class DenseRows:
    """Raw values [s, p] in one contiguous dataset."""

    def __init__(self, values: Extent, in_memory: bool, whose: str = "") -> None:
        self.dtype, self._whose = values.dtype, f"{values.path}: {whose}"
        self._values = self._checked(values.load()) if in_memory else values
        self._scratch = np.empty((0, *values.shape[1:]), values.dtype)

    def find(self, at: Array) -> tuple[Array, Array | None]:
        """(values in memory, indices of the rows `at` [b] in them; None: all in order), valid until the next call."""
        if not isinstance(self._values, Extent):
            return self._values, at
        if len(self._scratch) < len(at):
            self._scratch = np.empty((len(at), *self._scratch.shape[1:]), self.dtype)
        into = self._scratch[: len(at)]
        self._values.gather(at, at + 1, into)
        return self._checked(into), None

    def _checked(self, values: Array) -> Array:
        """`values`; DataError if any is not finite."""
        if not is_finite(values):
            raise DataError(f"{self._whose} has a value that is not finite; {REMEDY}")
        return values

    def move(self, into: Array) -> None:
        """Move the values, which must be in memory, to `into` [s, p]."""
        into[:] = self._values
        self._values = into

    @property
    def in_memory(self) -> bool:
        return not isinstance(self._values, Extent)

    def cuts(self) -> list[slice]:
        """All rows as slices of about `PIECE_NBYTES`, which depend on the shape [s, p] only."""
        samples, features = self._values.shape
        size = max(1, PIECE_NBYTES // (4 * features))
        return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]

    def part(self, rows: slice) -> Array:
        """The rows [b, p] of a slice: a read-only view, or read from the file."""
        if not isinstance(self._values, Extent):
            view = self._values[rows]
            view.flags.writeable = False
            return view
        return self._checked(self._values.part(rows.start, rows.stop))


def is_finite(values: Array) -> bool:
    """Whether all numbers are finite, without an array of their size."""
    if values.dtype.kind != "f" or not values.size:
        return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))


def _csr(parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> Piece:
    from scipy.sparse import csr_matrix  # slow to import, and needed for sparse data only

    return csr_matrix(parts, shape=shape)


class SparseRows:
    """Raw values [s, p] as CSR; the row pointers [s + 1] are always in memory."""

    def __init__(
        self, data: Extent, indices: Extent, indptr: Array, features: int, in_memory: bool, whose: str = ""
    ) -> None:
        self._features, self._indptr, self._whose = features, indptr, f"{data.path}: {whose}"
        self._extents = None if in_memory else (data, indices)
        if in_memory:
            self._memory = self._checked((data.load(), indices.load(), indptr))

    def _checked(self, parts: tuple[Array, Array, Array]) -> Piece:
        """The rows as CSR; DataError if a value is not finite, or a column out of range (SciPy does not check)."""
        data, indices, indptr = parts
        if indices.size and not (indices.min() >= 0 and indices.max() < self._features):
            raise DataError(
                f"{self._whose} has values in columns {indices.min()} to {indices.max()}, expected 0 to "
                f"{self._features - 1}; {REMEDY}"
            )
        if not is_finite(data):
            raise DataError(f"{self._whose} has a value that is not finite; {REMEDY}")
        return _csr(parts, shape=(len(indptr) - 1, self._features))

    def rows(self, at: Array) -> Piece:
        """The rows `at` [b] as CSR [b, p]."""
        if self._extents is None:
            return self._memory[at]
        starts, stops = self._indptr[at], self._indptr[at + 1]
        indptr = np.concatenate([[0], np.cumsum(stops - starts)])
        data, indices = (np.empty(indptr[-1], extent.dtype) for extent in self._extents)
        for extent, part in zip(self._extents, (data, indices), strict=True):
            extent.gather(starts, stops, part)
        return self._checked((data, indices, indptr))

    @property
    def in_memory(self) -> bool:
        return self._extents is None

    def cuts(self) -> list[slice]:
        """All rows as slices of about `PIECE_NBYTES`, which depend on the numbers of values of the rows only."""
        starts = np.arange(0, max(1, self._indptr[-1]), PIECE_NBYTES // 8)
        bounds = np.unique([*np.searchsorted(self._indptr, starts), len(self._indptr) - 1])
        return list(map(slice, bounds[:-1].tolist(), bounds[1:].tolist()))

    def part(self, rows: slice) -> Piece:
        """The rows of a slice as CSR [b, p]: views of the values in memory, or read from the file."""
        start, stop = self._indptr[[rows.start, rows.stop]].tolist()
        indptr = self._indptr[rows.start : rows.stop + 1] - start
        if self._extents is None:
            parts = self._memory.data[start:stop], self._memory.indices[start:stop], indptr
            return _csr(parts, shape=(len(indptr) - 1, self._features))
        data, indices = (extent.part(start, stop) for extent in self._extents)
        return self._checked((data, indices, indptr))


class Shard:
    """The data of a client, on the rank that hosts it; not to be used by two threads at once.

    Created by `FederatedDataset.shard`.
    """

    def __init__(
        self,
        client: int,
        members: Callable[[str], NDArray[np.int64]],
        shape: tuple[int, int],
        y: Array,
        values: DenseRows | SparseRows,
        scaling: Scaling,
        check: Callable[[], None],
    ) -> None:
        """`members` returns the global indices of the "rows" or "columns", and is called on demand."""
        self.client, self._members = client, members
        self.y = y  # [s] int64 classes or float64 targets
        self.samples, self.features = shape
        self.joint: tuple[Joint, int] | None = None  # see `mpifed.core.block.ClientData`
        self.sparse = isinstance(values, SparseRows)
        self._values, self._scaling, self._check = values, scaling, check
        self._factors: dict[object, tuple[Array | None, Array | None]] = {}
        self._cached: dict[object, list[tuple[slice, Piece]]] = {}  # pieces of sparse rows in memory

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[s] global indices of the samples."""
        return self._members("rows")

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """[p] global indices of the features."""
        return self._members("columns")

    def take(self, at: Array, out: Array) -> None:
        """Write the scaled rows `at` to `out`.

        Parameters
        ----------
        at : [b] positions in this shard, from 0 to samples - 1, in any order; others raise IndexError
        out : [b, p] float32 or float64

        Raises
        ------
        DataError
            When the shard's file is shorter than it was.
        """
        if isinstance(self._values, SparseRows):
            self.take_sparse(at, out.dtype).toarray(out=out)
            return
        raw, rows = self._values.find(at)
        scale_dense(raw, *self._factors_in(out.dtype), out, rows)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> Piece:
        """The scaled rows `at` [b] of a sparse shard as a CSR matrix [b, p] of `dtype`."""
        if not isinstance(self._values, SparseRows):
            raise TypeError(f"the shard of client {self.client} is dense: read it with `take`")
        return scale_sparse(self._values.rows(at), self._factors_in(np.dtype(dtype))[0], dtype)

    def pieces(self, dtype: DTypeLike) -> Iterable[tuple[slice, Piece]]:
        """All scaled rows in order, piece by piece, to be read only.

        The bounds of the pieces depend on the shape of the shard, for sparse rows on the number of values of each row,
        and not on `dtype` or on whether the values are in memory. Values in memory that need no scaling and have the
        requested dtype are not copied. Others are computed piece by piece; pieces of sparse rows in memory are cached,
        which doubles the memory of the values.

        Parameters
        ----------
        dtype : float32 or float64

        Returns
        -------
        Pairs of positions in this shard, as a slice, and the rows there [b, p], dense or CSR

        Raises
        ------
        DataError
            When the shard's file is shorter than it was.
        """
        dtype = np.dtype(dtype)
        if dtype in self._cached:
            return self._cached[dtype]
        pieces = ((rows, self._part(rows, dtype)) for rows in self._values.cuts())
        if isinstance(self._values, SparseRows) and self._values.in_memory:
            return self._cached.setdefault(dtype, list(pieces))
        return pieces

    def _part(self, rows: slice, dtype: DTypeLike) -> Piece:
        """The scaled rows [b, p] of a slice in `dtype`, dense or CSR."""
        scale, shift = self._factors_in(dtype)
        raw = self._values.part(rows)
        if raw.dtype == dtype and scale is None and shift is None:
            return raw
        if self.sparse:
            return scale_sparse(raw, scale, dtype)
        out = np.empty(raw.shape, dtype)
        scale_dense(raw, scale, shift, out)
        return out

    def verify(self) -> None:
        """Compare the client's file with its checksum; raises DataError if they differ."""
        self._check()

    def _factors_in(self, dtype: DTypeLike) -> tuple[Array | None, Array | None]:
        if dtype not in self._factors:
            self._factors[dtype] = self._scaling.to(dtype)
        return self._factors[dtype]


class Joint:
    """Dense rows in memory of several clients, with the same dtype and scaling, in a common array.

    Rows of all these clients are copied in a single call, since a call per client takes as long as the copy itself.
    """

    def __init__(self, rows: int) -> None:
        """`rows` is the capacity; memory is taken as it is filled."""
        self._room, self._filled = rows, 0
        self._like: Shard | None = None

    def add(self, shard: Shard) -> None:
        """Append the rows of a shard, unless their dtype, width or scaling differs."""
        rows = shard._values
        if isinstance(rows, SparseRows) or not rows.in_memory:
            return
        if self._like is None:
            self._like = shard
            self._values = np.empty((self._room, shard.features), rows.dtype)
            self._y = np.empty(self._room, shard.y.dtype)
        like, start, stop = self._like, self._filled, self._filled + shard.samples
        if (shard.features, rows.dtype, shard.y.dtype) != (like.features, self._values.dtype, self._y.dtype):
            return
        if shard._scaling is not like._scaling or stop > self._room:
            return
        rows.move(self._values[start:stop])
        self._y[start:stop] = shard.y
        shard.y, shard.joint, self._filled = self._y[start:stop], (self, start), stop

    def take(self, at: Array, out: Array, y: Array) -> None:
        """Write the scaled rows `at` [b] of the common array to `out` [b, p], and their labels to `y` [b]."""
        assert self._like is not None
        y[:] = self._y.take(at)
        scale_dense(self._values, *self._like._factors_in(out.dtype), out, at)
