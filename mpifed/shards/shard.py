"""The rows of one client, in memory or read from its file when asked for."""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.loops import scale_dense
from mpifed.core.record import Array
from mpifed.shards.layout import REMEDY
from mpifed.shards.scaling import Scaling, scale_sparse

PIECE_NBYTES = 1 << 24  # of a piece of rows: float32 values, and of sparse rows their int32 columns too
MOST_OPEN = 128  # files of one federation


class Files:
    """Open files, a few at a time: the one that was longest not read from is closed for another."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close, self._open)

    def descriptor(self, path: Path) -> int:
        """Of a file, to be used before the next one is asked for; DataError where it cannot be opened."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
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
    """Items of one size that lie one after the other in a file, read without HDF5.

    HDF5 needs 0.03 ms for a slice and far more for a list of rows; `pread` needs 0.001 ms a row, and where a mapped
    file that was cut off meanwhile would end the process, it just reads less.
    """

    def __init__(self, path: Path, offset: int, shape: tuple[int, ...], dtype: Any, files: Files | None = None) -> None:
        self.path, self.offset, self.shape, self.dtype = path, offset, shape, np.dtype(dtype)
        self._item_nbytes = math.prod(shape[1:]) * self.dtype.itemsize
        self.nbytes = shape[0] * self._item_nbytes
        self._files = files or Files()

    def load(self) -> Array:
        """All items."""
        return self.part(0, self.shape[0])

    def part(self, start: int, stop: int) -> Array:
        """The items from `start` to `stop`, which exist."""
        items: Array = np.empty((stop - start, *self.shape[1:]), self.dtype)
        if items.size:
            try:
                begin = self.offset + start * self._item_nbytes
                self._read_on(self._files.descriptor(self.path), memoryview(items.reshape(-1)).cast("B"), begin)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error
        return items

    def gather(self, starts: Array, stops: Array, into: Array) -> None:
        """Read the items from starts[i] to stops[i], for all i, one after the other into the contiguous `into`.

        Ranges that adjoin are read at once. Raises IndexError for positions that do not exist.
        """
        if not into.size:
            return
        if starts.min() < 0 or stops.max() > self.shape[0]:
            raise IndexError(f"{self.path}: items {starts.min()} to {stops.max() - 1} of {self.shape[0]}")
        first = np.concatenate([[0], np.flatnonzero(starts[1:] != stops[:-1]) + 1])
        last = np.append(first[1:], len(starts)) - 1
        begins = (starts[first] * self._item_nbytes + self.offset).tolist()
        sizes = ((stops[last] - starts[first]) * self._item_nbytes).tolist()
        fd, view, done = self._files.descriptor(self.path), memoryview(into).cast("B"), 0
        try:
            for begin, size in zip(begins, sizes, strict=True):
                target = view[done : done + size]
                if os.preadv(fd, [target], begin) != size:
                    self._read_on(fd, target, begin)
                done += size
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror})") from error

    def _read_on(self, fd: int, target: memoryview, begin: int) -> None:
        """Read in pieces, since one call may give less than there is (on Linux, never more than 2 GiB)."""
        while target:
            got = os.preadv(fd, [target], begin)
            if not got:
                raise DataError(f"{self.path}: ends at byte {begin}, {len(target)} too early; {REMEDY}")
            target, begin = target[got:], begin + got


class DenseRows:
    """Raw values [s, p] in one contiguous dataset."""

    def __init__(self, values: Extent, in_memory: bool, whose: str = "") -> None:
        """`whose` they are, for an error."""
        self.dtype, self._whose = values.dtype, f"{values.path}: {whose}"
        self._values = self._checked(values.load()) if in_memory else values
        self._scratch = np.empty((0, *values.shape[1:]), values.dtype)

    def find(self, at: Array) -> tuple[Array, Array | None]:
        """Values in memory, and where in them the rows `at` [b] are; None: all. The next call may overwrite them."""
        if not isinstance(self._values, Extent):
            return self._values, at
        if len(self._scratch) < len(at):
            self._scratch = np.empty((len(at), *self._scratch.shape[1:]), self.dtype)
        into = self._scratch[: len(at)]
        self._values.gather(at, at + 1, into)
        return self._checked(into), None

    def _checked(self, values: Array) -> Array:
        """The same; DataError where one is not finite."""
        if not is_finite(values):
            raise DataError(f"{self._whose} has a value that is not finite; {REMEDY}")
        return values

    def move(self, into: Array) -> None:
        """Keep the values, which are in memory, in `into` [s, p] from now on."""
        into[:] = self._values
        self._values = into

    @property
    def in_memory(self) -> bool:
        """Whether the values are."""
        return not isinstance(self._values, Extent)

    def cuts(self) -> list[slice]:
        """All rows as pieces of about `PIECE_NBYTES`, a function of the shape [s, p] alone."""
        samples, features = self._values.shape
        size = max(1, PIECE_NBYTES // (4 * features))
        return [slice(start, min(start + size, samples)) for start in range(0, samples, size)]

    def part(self, rows: slice) -> Array:
        """Some rows [b, p]: a view that cannot be written to, or read anew from the file."""
        if not isinstance(self._values, Extent):
            view = self._values[rows]
            view.flags.writeable = False
            return view
        return self._checked(self._values.part(rows.start, rows.stop))


def is_finite(values: Array) -> bool:
    """Whether all numbers are; without a second array of their size."""
    if values.dtype.kind != "f" or not values.size:
        return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))


def _csr(parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_matrix  # as slow to import as all the rest together: only for sparse data

    return csr_matrix(parts, shape=shape)


class SparseRows:
    """Raw values [s, p] as CSR; the row pointers [s + 1] are always in memory."""

    def __init__(
        self, data: Extent, indices: Extent, indptr: Array, features: int, in_memory: bool, whose: str = ""
    ) -> None:
        """`whose` they are, for an error."""
        self._features, self._indptr, self._whose = features, indptr, f"{data.path}: {whose}"
        self._extents = None if in_memory else (data, indices)
        if in_memory:
            self._memory = self._checked((data.load(), indices.load(), indptr))

    def _checked(self, parts: tuple[Array, Array, Array]) -> Any:
        """Rows as CSR; DataError where a value is not finite, or lies in no column: SciPy would not look."""
        data, indices, indptr = parts
        if indices.size and not (indices.min() >= 0 and indices.max() < self._features):
            raise DataError(
                f"{self._whose} has values in columns {indices.min()} to {indices.max()}, expected 0 to "
                f"{self._features - 1}; {REMEDY}"
            )
        if not is_finite(data):
            raise DataError(f"{self._whose} has a value that is not finite; {REMEDY}")
        return _csr(parts, shape=(len(indptr) - 1, self._features))

    def rows(self, at: Array) -> Any:
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
        """Whether the values are."""
        return self._extents is None

    def cuts(self) -> list[slice]:
        """All rows as pieces of about `PIECE_NBYTES`, a function of how many values each row has alone."""
        starts = np.arange(0, max(1, self._indptr[-1]), PIECE_NBYTES // 8)
        bounds = np.unique([*np.searchsorted(self._indptr, starts), len(self._indptr) - 1])
        return list(map(slice, bounds[:-1].tolist(), bounds[1:].tolist()))

    def part(self, rows: slice) -> Any:
        """Some rows as CSR [b, p]: on the same arrays where they are in memory, else read anew from the file."""
        start, stop = self._indptr[[rows.start, rows.stop]].tolist()
        indptr = self._indptr[rows.start : rows.stop + 1] - start
        if self._extents is None:
            parts = self._memory.data[start:stop], self._memory.indices[start:stop], indptr
            return _csr(parts, shape=(len(indptr) - 1, self._features))
        data, indices = (extent.part(start, stop) for extent in self._extents)
        return self._checked((data, indices, indptr))


class Shard:
    """The data of one client; lives on the rank that hosts it, and is not to be used by two threads at once.

    Made by `Federation.shard`.
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
        """`members` gives the numbers of the rows and columns, which are looked up when they are asked for."""
        self.client, self._members = client, members
        self.y = y  # [s] int64 classes or float64 targets
        self.samples, self.features = shape
        self.joint: tuple[Joint, int] | None = None  # see `mpifed.core.block.Shard`
        self.sparse = isinstance(values, SparseRows)
        self._values, self._scaling, self._check = values, scaling, check
        self._factors: dict[Any, tuple[Array | None, Array | None]] = {}
        self._kept: dict[Any, list[tuple[slice, Any]]] = {}  # pieces of sparse rows in memory

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[s] global sample numbers."""
        return self._members("rows")

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """[p] global feature numbers."""
        return self._members("columns")

    def take(self, at: Array, out: Array) -> None:
        """Put the scaled rows `at` into `out`.

        Parameters
        ----------
        at : [b] positions in this shard, from 0 to samples - 1, in any order; one above raises IndexError
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

    def take_sparse(self, at: Array, dtype: Any) -> Any:
        """The scaled rows `at` [b] of a sparse shard as a CSR matrix [b, p] of `dtype`."""
        if not isinstance(self._values, SparseRows):
            raise TypeError(f"the shard of client {self.client} is dense: read it with `take`")
        return scale_sparse(self._values.rows(at), self._factors_in(np.dtype(dtype))[0], dtype)

    def pieces(self, dtype: Any) -> Iterable[tuple[slice, Any]]:
        """All scaled rows in order, piece by piece, to be read only.

        Where the pieces begin and end depends on the shape of the shard, for sparse rows on how many values each has,
        and never on `dtype` or on whether the values are in memory. Values that are in memory, need no scaling and have
        the type asked for are not copied. Others are made piece by piece; but those of sparse rows in memory are made
        once and kept, one value more for each that is stored.

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
        if dtype in self._kept:
            return self._kept[dtype]
        pieces = ((rows, self._part(rows, dtype)) for rows in self._values.cuts())
        if isinstance(self._values, SparseRows) and self._values.in_memory:
            return self._kept.setdefault(dtype, list(pieces))
        return pieces

    def _part(self, rows: slice, dtype: Any) -> Any:
        """Some scaled rows [b, p] of `dtype`, dense or CSR."""
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
        """Compare this client's file with its checksum; raises DataError when they differ."""
        self._check()

    def _factors_in(self, dtype: Any) -> tuple[Array | None, Array | None]:
        if dtype not in self._factors:
            self._factors[dtype] = self._scaling.to(dtype)
        return self._factors[dtype]


class Joint:
    """Dense rows in memory of several clients whose values are of one type and are scaled alike.

    Rows of all of them are taken in one call, where one call for each client takes as long as the rows do.
    """

    def __init__(self, rows: int) -> None:
        """With room for so many rows, which takes memory as it is filled."""
        self._room, self._filled = rows, 0
        self._like: Shard | None = None

    def add(self, shard: Shard) -> None:
        """Let the rows of a shard lie behind those that are there; nothing happens where they are of another kind."""
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
        """Put the scaled rows `at` [b], counted over all who are here, into `out` [b, p]; their labels into `y` [b]."""
        assert self._like is not None
        y[:] = self._y.take(at)
        scale_dense(self._values, *self._like._factors_in(out.dtype), out, at)
