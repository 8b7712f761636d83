"""The rows of a rank's clients: one array, loaded where it fits into memory and mapped where it does not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, cached_property, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.errors import DataError
from mpifed.core.loops import scale_columns
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.data.block import Block, Joint
from mpifed.data.roster import Roster
from mpifed.data.scaling import scale_sparse
from mpifed.data.store import REMEDY, TESTS, Federation

PIECE_NBYTES = 1 << 24  # of a piece of rows: float32 values, for sparse rows with int32 columns
SHARD_NBYTES = 2048  # of an open shard beside its arrays

# (scale, shift) of columns in a dtype, as `Scaling.to` gives them
Factors: TypeAlias = Callable[[Hashable], tuple[Array | None, Array | None]]


class Shard:
    """The data of a client, on its rank; not to be used by two threads at once."""

    joint: tuple[Joint, int] | None = None  # see `mpifed.data.block.ClientData`

    def __init__(
        self,
        client: int,
        held: Callable[[], tuple[NDArray[np.int64], NDArray[np.int64]]],
        y: Array,
        values: Piece,
        factors: Factors,
        mapped: bool = False,
    ) -> None:
        """`held` gives the global indices of the rows [s] and columns [p] of the raw `values` [s, p], dense or CSR."""
        self.client, self._held = client, held
        self.y = y  # [s] int64 classes or float64 targets
        self.samples, self.features = values.shape
        self.sparse, self.factors = not isinstance(values, np.ndarray), factors
        self.values, self._mapped = values, mapped
        self._cached: dict[object, list[tuple[slice, Piece]]] = {}  # pieces of sparse rows in memory

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[s] global indices of the samples."""
        return self._held()[0]

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """[p] global indices of the features."""
        return self._held()[1]

    def take(self, at: Array, out: Array) -> None:
        """Write the scaled rows `at` to `out`.

        Parameters
        ----------
        at : [b] positions in this shard, from 0 to samples - 1, in any order; others raise IndexError
        out : [b, p] float32 or float64
        """
        if self.sparse:
            self.take_sparse(at, out.dtype).toarray(out=out)
        else:
            scale_columns(self.values, *self.factors(out.dtype), (out,), at)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> Piece:
        """The scaled rows `at` [b] of a sparse shard as a CSR matrix [b, p] of `dtype`."""
        if not self.sparse:
            raise TypeError(f"the shard of client {self.client} is dense: read it with `take`")
        return scale_sparse(self.values[at], self.factors(np.dtype(dtype))[0], dtype)

    def pieces(self, dtype: DTypeLike) -> Iterable[tuple[slice, Piece]]:
        """All scaled rows in order, piece by piece, to be read only.

        The bounds of the pieces depend on the shape of the shard, for sparse rows on the number of values of each row,
        and not on `dtype` or on whether the values are mapped. Values that need no scaling and have the requested dtype
        are not copied. Others are computed piece by piece; pieces of sparse rows in memory are kept, which doubles the
        memory of the values.

        Parameters
        ----------
        dtype : float32 or float64

        Returns
        -------
        Pairs of positions in this shard, as a slice, and the rows there [b, p], dense or CSR
        """
        dtype = np.dtype(dtype)
        if dtype in self._cached:
            return self._cached[dtype]
        pieces = ((rows, self._part(rows, dtype)) for rows in self._cuts())
        if self.sparse and not self._mapped:
            return self._cached.setdefault(dtype, list(pieces))
        return pieces

    def _cuts(self) -> list[slice]:
        """All rows as slices of about `PIECE_NBYTES`."""
        if not self.sparse:
            size = max(1, PIECE_NBYTES // (4 * self.features))
            return [slice(start, min(start + size, self.samples)) for start in range(0, self.samples, size)]
        indptr = self.values.indptr
        starts = np.arange(0, max(1, indptr[-1]), PIECE_NBYTES // 8)
        bounds = np.unique([*np.searchsorted(indptr, starts), self.samples])
        return list(map(slice, bounds[:-1].tolist(), bounds[1:].tolist()))

    def _part(self, rows: slice, dtype: DTypeLike) -> Piece:
        """The scaled rows [b, p] of a slice in `dtype`, dense or CSR."""
        scale, shift = self.factors(np.dtype(dtype))
        if self.sparse:
            raw = _csr((self.values.data, self.values.indices, self.values.indptr), rows, self.features)
            return raw if raw.dtype == dtype and scale is None else scale_sparse(raw, scale, dtype)
        raw = self.values[rows]
        if raw.dtype == dtype and scale is None and shift is None:
            raw.flags.writeable = False
            return raw
        out = np.empty(raw.shape, dtype)
        scale_columns(raw, scale, shift, (out,))
        return out


class JointShards:
    """Dense values of several clients in one array, of which one call takes rows of all of them.

    One client's rows stand below the other's, or the columns of `side_by_side` clients with the same rows beside each
    other: by client, the time would go to lines of few bytes.
    """

    def __init__(self, values: Array, y: Array, factors: Factors, side_by_side: int = 0) -> None:
        self._values, self.y, self._factors, self.side_by_side = values, y, factors, side_by_side

    def take(self, at: Array, outs: Sequence[Array]) -> None:
        """Write the scaled rows `at` [b] to `outs`: one array [b, p] of all columns, or [b, p_i] of each client's."""
        scale_columns(self._values, *self._factors(outs[0].dtype), outs, at)


def hosted_blocks(
    data: Federation, clients: range, bounds: NDArray[np.int64], dtype: str, room: float, tests: bool = False
) -> Roster:
    """The blocks of consecutive clients: their rows are one array, of which each client has a part.

    Parameters
    ----------
    clients, bounds : block i has clients[bounds[i]:bounds[i + 1]]
    dtype : of their rows
    room : bytes of values to keep in memory; if they need more, all are mapped, and read when they are used
    tests : of the rows with which the clients test, in place of those with which they train

    Raises
    ------
    DataError : when values are damaged.
    """
    if not clients:
        return Roster.of([])
    hosted = _Hosted(data, clients, room, tests)
    return Roster(np.array(clients), bounds, cache(lambda i: hosted.block(range(*bounds[i : i + 2].tolist()), dtype)))


class _Hosted:
    """The rows of a rank's clients."""

    def __init__(self, data: Federation, clients: range, room: float, tests: bool) -> None:
        self._data, self._clients = data, clients
        numbers, prefix = np.array(clients), TESTS if tests else ""
        self._mapped = float(data.nbytes(prefix)[numbers].sum()) > room
        places = data.places(numbers, prefix)
        at = {name: (int(starts.min()), int(stops.max())) for name, (starts, stops) in places.items()}
        rows = "indptr" if data.sparse else "X"
        self._labels = places["y"][0] - at["y"][0]  # [n] where the labels of each client begin
        self._begins = self._labels  # [n] where the rows of each begin, or its values
        if places[rows] is not places["y"]:
            self._begins = places[rows][0] - at[rows][0]
        self._y = data.labels(prefix, *at["y"])
        self._values = data.values(prefix, at, not self._mapped)
        self._counts = (data.test_counts if tests else data.counts)[clients.start : clients.stop]
        self._factors = cache(self._factors_of)
        self._rows = None
        if data.whole and not data.sparse:
            self._rows = JointShards(self._values[0], self._y, self._factors(0))

    def _factors_of(self, *groups: int) -> Factors:
        """Of the columns of these groups, one group after the other."""
        data = self._data
        if not data.scaling.by_column:
            return cache(data.scaling.to)
        return cache(data.scaling.part(np.concatenate([data.group("columns", group) for group in groups])).to)

    def block(self, numbers: range, dtype: str) -> Block:
        """The clients of these numbers."""
        shards = [self.shard(n) for n in numbers]
        if self._data.split == "columns" and len(shards) > 1 and self._gains(shards):
            # pieces of values that are read as they are would be views, and no part of an array is one
            values = np.concatenate([shard.values for shard in shards], axis=1)
            groups = self._data.holds[[shard.client for shard in shards], 1].tolist()
            joint, start = JointShards(values, shards[0].y, self._factors(*groups), len(shards)), 0
            for shard in shards:
                shard.joint = joint, start
                shard.values = values[:, start : start + shard.features]
                start += shard.features
        return Block(tuple(shards), dtype)

    def _gains(self, shards: list[Shard]) -> bool:
        """Whether columns are copied side by side."""
        values = shards[0].values
        scaled = values.dtype.kind != "f" or any(
            factor is not None for shard in shards for factor in shard.factors(values.dtype)
        )
        return not self._mapped and not shards[0].sparse and scaled

    def shard(self, n: int) -> Shard:
        """The data of the rank's client number n."""
        data, client = self._data, self._clients[n]
        count, width, begin = int(self._counts[n]), int(data.widths[client]), int(self._begins[n])
        values: Piece
        if data.sparse:
            values = _checked(data, self._values, slice(begin, begin + count), width, f"client {client}")
        elif data.whole:
            values = self._values[0][begin : begin + count]
        else:
            values = self._values[0][begin : begin + count * width].reshape(count, width)
        y, factors = self._y[self._labels[n] : self._labels[n] + count], self._factors(int(data.holds[client, 1]))
        shard = Shard(client, partial(data.held, client), y, values, factors, self._mapped)
        if self._rows is not None:
            shard.joint = self._rows, begin
        return shard


def shard_of(data: Federation, client: int, tests: bool = False) -> Shard:
    """The data of a client, mapped; or the rows with which it tests."""
    return _Hosted(data, range(client, client + 1), 0, tests).shard(0)


def common_shard(data: Federation, start: int = 0, stop: int | None = None) -> Shard | None:
    """The common test rows from `start` to `stop`, by default all, in memory, of client -1; None where there are none.

    Where there is a range, other rows are not read.
    """
    stop = data.test_samples if stop is None else stop
    if start >= stop:
        return None
    at = {"X": (start, stop)}
    if data.sparse:
        first, last = data.array("test/indptr")[[start, stop]].tolist()
        at = {"data": (first, last), "indices": (first, last), "indptr": (start, stop + 1)}
    raw = data.values("test/", at)
    values: Piece = raw[0]
    if data.sparse:
        values = _checked(data, raw, slice(0, stop - start), data.features, "the test set")
    held = np.arange(start, stop), np.arange(data.features)
    return Shard(-1, lambda: held, data.labels("test/", start, stop), values, cache(data.scaling.to))


def _checked(data: Federation, parts: tuple[Array, ...], rows: slice, width: int, whose: str) -> Piece:
    """The same as `_csr`, of what may be a stranger's: reading them elsewhere would leave the arrays."""
    values = _csr(parts, rows, width)
    if values.indices.size and not (values.indices.min() >= 0 and values.indices.max() < width):
        raise DataError(f"{data.where}: {whose} has values in columns beyond its {width}; {REMEDY}")
    return values


def _csr(parts: tuple[Array, ...], rows: slice, width: int) -> Piece:
    """Rows of the arrays (data, indices, indptr), as views."""
    from scipy.sparse import csr_matrix  # slow to import, and needed for sparse data only

    data, indices, indptr = parts
    start, stop = indptr[[rows.start, rows.stop]].tolist()
    return csr_matrix(
        (data[start:stop], indices[start:stop], indptr[rows.start : rows.stop + 1] - start),
        shape=(rows.stop - rows.start, width),
    )
