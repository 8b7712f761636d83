"""The rows of a rank's clients: one array, loaded where it fits into memory and mapped where it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.loops import scale_columns
from mpifed.core.record import Array, Integers
from mpifed.data.block import Block, Factors, Joint, Piece
from mpifed.data.roster import Roster
from mpifed.data.scaling import scale_sparse
from mpifed.data.store import TESTS, Federation

PIECE_NBYTES = 1 << 24  # of a piece of rows: float32 values, for sparse rows with int32 columns
SHARD_NBYTES = 2048  # of an open shard beside its arrays
MOST_OPEN = 1 << 14  # blocks on a rank; those that take part once in a while are opened again, as quickly as computed


class Shard:
    """The data of a client, on its rank; not to be used by two threads at once."""

    joint: tuple[Joint, int] | None = None  # see `mpifed.data.block.ClientData`

    def __init__(
        self,
        client: int,
        held: Callable[[], tuple[Integers, Integers]],
        y: Array,
        values: Piece,
        factors: Factors,
    ) -> None:
        """`held` gives the global indices of the rows [s] and columns [p] of the raw `values` [s, p], dense or CSR."""
        self.client, self._held, self.factors = client, held, factors
        self.y, self.values = y, values  # [s] int64 classes or float64 targets
        self.samples, self.features = values.shape
        self.sparse = not isinstance(values, np.ndarray)

    @property
    def rows(self) -> Integers:
        """[s] global indices of the samples."""
        return self._held()[0]

    @property
    def columns(self) -> Integers:
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
            scale_columns(self.values, *self.factors(out.dtype), out, at)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> Piece:
        """The scaled rows `at` [b] of a sparse shard as a CSR matrix [b, p] of `dtype`."""
        return scale_sparse(self.values[at], self.factors(np.dtype(dtype))[0], dtype)

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        """All scaled rows in order, piece by piece, to be read only.

        The bounds of the pieces depend on the shape of the shard, for sparse rows on the number of values of each row,
        and not on `dtype` or on whether the values are mapped. Values that need no scaling and have the requested dtype
        are not copied.

        Parameters
        ----------
        dtype : float32 or float64

        Returns
        -------
        Pairs of positions in this shard, as a slice, and the rows there [b, p], dense or CSR
        """
        scale, shift = self.factors(dtype := np.dtype(dtype))
        as_stored = self.values.dtype == dtype and scale is None and shift is None
        for rows in self._cuts():
            raw = self.values if self.sparse and rows.stop - rows.start == self.samples else self.values[rows]
            if as_stored:
                if not self.sparse:
                    raw.flags.writeable = False
                yield rows, raw
            elif self.sparse:
                yield rows, scale_sparse(raw, scale, dtype)
            else:
                out = np.empty(raw.shape, dtype)
                scale_columns(raw, scale, shift, out)
                yield rows, out

    def _cuts(self) -> Iterator[slice]:
        """All rows as slices of about `PIECE_NBYTES`."""
        bounds = [*range(0, self.samples, max(1, PIECE_NBYTES // (4 * self.features))), self.samples]
        if self.sparse:
            indptr = self.values.indptr
            starts = np.searchsorted(indptr, np.arange(0, max(1, indptr[-1]), PIECE_NBYTES // 8))
            bounds = np.unique([*starts, self.samples]).tolist()
        return map(slice, bounds[:-1], bounds[1:])


def hosted_blocks(
    data: Federation, clients: range, bounds: Integers, dtype: str, room: float, tests: bool = False
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
    hosted, numbers = _Hosted(data, clients, room, tests), np.arange(clients.start, clients.stop, dtype=bounds.dtype)
    open_block = lru_cache(MOST_OPEN)(lambda i: hosted.block(range(*bounds[i : i + 2].tolist()), dtype))
    return Roster(numbers, bounds, open_block)


class _Hosted:
    """The rows of a rank's clients."""

    def __init__(self, data: Federation, clients: range, room: float, tests: bool) -> None:
        self._data, self._clients, self._factors = data, clients, cache(self._factors_of)
        self._prefix = TESTS if tests else ""
        self._mapped = float(data.nbytes(self._prefix, clients).sum()) > room
        places = data.places(np.arange(clients.start, clients.stop), self._prefix)
        ranges = {name: (array, int(starts.min()), int(stops.max())) for name, (array, starts, stops) in places.items()}
        self._first = {name: start for name, (_, start, _) in ranges.items()}
        self._read = data.read(self._prefix, ranges, not self._mapped)
        self._rows = None
        if data.whole and not data.sparse:
            self._rows = Joint(self._read["X"], self._read["y"], self._factors(0))

    def _factors_of(self, *groups: int) -> Factors:
        """Of the columns of these groups, one group after the other."""
        columns = np.concatenate([self._data.group("columns", group) for group in groups])
        return cache(self._data.scaling.part(columns).to)

    def block(self, numbers: range, dtype: str) -> Block:
        """The clients of these numbers."""
        shards = [self.shard(n) for n in numbers]
        first = shards[0].values
        if self._data.split == "columns" and len(shards) > 1 and not self._mapped and not shards[0].sparse:
            groups = self._data.holds[[shard.client for shard in shards], 1].tolist()
            factors, start = self._factors(*groups), 0
            # pieces of values that are read as they are would be views, and no part of an array is one
            if first.dtype.kind != "f" or any(factor is not None for factor in factors(first.dtype)):
                values = np.concatenate([shard.values for shard in shards], axis=1)
                joint = Joint(values, shards[0].y, factors, len(shards))
                for shard in shards:
                    shard.joint = joint, start
                    shard.values = values[:, start : start + shard.features]
                    start += shard.features
        return Block(tuple(shards), dtype)

    def shard(self, n: int) -> Shard:
        """The data of the rank's client number n."""
        data, client = self._data, self._clients[n]
        at = {
            name: slice(int(start) - self._first[name], int(stop) - self._first[name])
            for name, (_, start, stop) in data.places(client, self._prefix).items()
        }
        parts = {name: self._read[name][here] for name, here in at.items()}
        values = _values(data, parts, len(parts["y"]), int(data.widths[client]), f"client {client}")
        factors = self._factors(int(data.holds[client, 1]))
        shard = Shard(client, partial(data.held, client), parts["y"], values, factors)
        if self._rows is not None:
            shard.joint = self._rows, at["y"].start
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
    parts = data.read("test/", data.between("test/", *[(start, stop)] * 3))
    held = np.arange(start, stop), np.arange(data.features)
    values = _values(data, parts, stop - start, data.features, "the test set")
    return Shard(-1, lambda: held, parts["y"], values, cache(data.scaling.to))


def _values(data: Federation, parts: Mapping[str, Array], count: int, width: int, whose: str) -> Piece:
    """The raw rows [s, p] of the arrays; DataError where a stranger's would have SciPy read elsewhere."""
    if not data.sparse:
        return parts["X"].reshape(count, width)
    from scipy.sparse import csr_matrix  # slow to import, and needed for sparse data only

    with data.guard(whose):
        indptr = parts["indptr"].astype(np.int64)
        if (np.diff(indptr) < 0).any():  # where the last one is 0, SciPy does not look
            raise ValueError("indptr does not ascend")
        values = csr_matrix((parts["data"], parts["indices"], indptr - indptr[0]), (count, width))
        values.check_format(full_check=True)
        values.data, values.indices = parts["data"], parts["indices"]  # SciPy has copied parts of larger arrays
    return values
