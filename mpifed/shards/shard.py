"""The rows of a client, in memory or read from its file on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.block import JointColumns, JointRows
from mpifed.core.errors import DataError
from mpifed.core.loops import scale_dense
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.shards.extent import Extent, is_finite
from mpifed.shards.layout import REMEDY
from mpifed.shards.scaling import Scaling, scale_sparse

PIECE_NBYTES = 1 << 24  # of a piece of rows: float32 values, for sparse rows with int32 columns


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
    """The data of a client, on its rank, made by `ShardFolder.shard`; not to be used by two threads at once."""

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
        self.joint: tuple[JointRows, int] | None = None  # see `mpifed.core.block.ClientData`
        self.joint_columns: JointColumns | None = None  # the same
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
        DataError : when the shard's file is shorter than it was.
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
        DataError : when the shard's file is shorter than it was.
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
