"""Synthetic shards for rehearsals, in the shapes of the real ones, which are not opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block, JointColumns, JointRows
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.loops import scale_columns
from mpifed.core.protocols import Piece
from mpifed.core.record import Array, vectors
from mpifed.job.job import Job
from mpifed.shards import store
from mpifed.shards.shard import PIECE_NBYTES

_NBYTES = 2**25  # of the dense values that all synthetic shards share: more than a cache, as shards mostly are
_FILLED = 2**20  # the same of sparse rows, in values
_SHRINK = 2.0**-12  # scale of random values, so that no upload exceeds its bound


class Scenario(NamedTuple):
    """The job, data and algorithm of a rehearsal."""

    job: Job
    data: store.ShardFolder
    algorithm: Algorithm
    random_rows: RandomRows
    hosts: int = 1  # ranks that host clients

    def block(self, clients: Sequence[int], most: int | None = None) -> Block:
        """Synthetic shards in the shapes of those of `clients`, with at most `most` rows each."""
        counts = self.data.counts if most is None else np.minimum(self.data.counts, most)
        shards = []
        for client in clients:
            rows, columns = (_places(held, client) for held in self.cells)
            shards.append(_Rows(client, rows[: counts[client]], columns, self.random_rows))
        if len(shards) > 1 and not self.data.sparse:
            _join(shards, self.random_rows, self.data.split == "columns")
        return Block(tuple(shards), self.job.compute.dtype)

    @property
    def cells(self) -> Cells:
        """The rows and columns that each client holds."""
        return self.algorithm.problem.cells

    def test_block(self) -> Block:
        """Synthetic test data, with all columns."""
        rows = min(CHUNK, len(self.random_rows.y))
        shard = _Rows(-1, np.arange(rows), np.arange(self.data.features), self.random_rows)
        return Block((shard,), self.job.compute.dtype)


def _places(held: Holdings, client: int) -> Array:
    """Indices of the rows or columns that a client holds."""
    indices = held.of(client)
    return np.arange(*indices.indices(held.length)) if isinstance(indices, slice) else indices


class RandomRows(NamedTuple):
    """Random values and labels, shared by all synthetic shards."""

    X: Piece  # dense values [v], of which a shard takes as many as it has, or CSR rows [s, p]
    y: Array  # [s]


def random_rows_like(data: store.ShardFolder) -> RandomRows:
    """Random values as the data's are stored, and as dense."""
    rng, width, most = np.random.default_rng(0), data.features, int(data.counts.max())
    y = rng.integers(data.classes, size=most) if data.classes else rng.standard_normal(most) * _SHRINK
    if data.targets > 1:
        y = vectors(np.repeat(y[:, None], data.targets, axis=1))
    stored = data.nbytes.sum() / (data.counts @ data.widths)  # bytes per value, including zeros of sparse rows
    if not data.sparse:
        size = 1 if stored < 4 else 4
        count = max(width, min(int(data.counts @ data.widths), _NBYTES // size))
        values = rng.integers(256, size=count, dtype=np.uint8)
        return RandomRows(values if size == 1 else values * np.float32(_SHRINK), y)
    from scipy.sparse import csr_matrix

    filled = min(width, max(1, round(stored * width / 8)))  # a value takes 4 bytes, and its column index 4
    rows = min(most, max(1, _FILLED // filled))
    columns = np.sort(rng.integers(width, size=(rows, filled)), axis=1).ravel()
    indptr = np.arange(0, rows * filled + 1, filled)
    return RandomRows(csr_matrix((np.ones(rows * filled, np.float32), columns, indptr), shape=(rows, width)), y)


class _Rows:
    """A synthetic shard, as costly to read as one in memory; see `mpifed.core.block.ClientData`."""

    joint: tuple[JointRows, int] | None = None
    joint_columns: JointColumns | None = None

    def __init__(self, client: int, rows: Array, columns: Array, random_rows: RandomRows) -> None:
        self.client, self.samples, self.features = client, len(rows), len(columns)
        self.y, self.rows, self.columns = random_rows.y[: len(rows)], rows, columns
        self.sparse = not isinstance(random_rows.X, np.ndarray)
        self._pieces: dict[object, list[tuple[slice, Piece]]] = {}  # of sparse rows, as those of a shard in memory
        if self.sparse:
            self._X = random_rows.X[:, : len(columns)]
        else:
            self._X = _rows(random_rows.X, len(columns), len(rows), client)

    def take(self, at: Array, out: Array) -> None:
        """Write random values for the rows `at` [b] into `out` [b, p]."""
        if self.sparse:
            self.take_sparse(at, out.dtype).toarray(out=out)
        else:
            _take(self._X, at, [out])

    def pieces(self, dtype: DTypeLike) -> Iterable[tuple[slice, Piece]]:
        """All rows of the shard, in pieces as large as those of a dense shard, or as the random rows that exist."""
        if self.sparse and dtype in self._pieces:
            return self._pieces[dtype]
        most = self._X.shape[0] if self.sparse else min(len(self._X), max(1, PIECE_NBYTES // (4 * self.features)))
        stops = [min(start + most, self.samples) for start in range(0, self.samples, most)]
        pieces = ((slice(start, stop), self._piece(start, stop, dtype)) for start, stop in pairwise([0, *stops]))
        return self._pieces.setdefault(dtype, list(pieces)) if self.sparse else pieces

    def _piece(self, start: int, stop: int, dtype: DTypeLike) -> Piece:
        first = start % (self._X.shape[0] - (stop - start) + 1)
        rows = self._X[first : first + stop - start]
        if self.sparse:
            return rows.astype(dtype) * np.asarray(_SHRINK, dtype)[()]
        if rows.dtype == dtype:
            return rows
        out = np.empty(rows.shape, dtype)
        _take(rows, np.arange(len(rows)), [out])
        return out

    def take_sparse(self, at: Array, dtype: DTypeLike) -> Piece:
        """Random values for the rows `at` [b], as CSR [b, p]."""
        return self._X[at % self._X.shape[0]].astype(dtype) * np.asarray(_SHRINK, dtype)[()]


class _JointRows(NamedTuple):
    """The rows of clients one after the other, read at once; see `mpifed.core.block.JointRows`."""

    X: Array  # [s, p]
    labels: Array  # [s]

    def take(self, at: Array, out: Array, y: Array) -> None:
        y[:] = self.labels.take(at % len(self.labels))
        _take(self.X, at, [out])


@dataclass
class _JointColumns:
    """The columns of clients side by side, read at once; see `mpifed.core.block.JointColumns`."""

    X: Array  # [s, p]
    clients: int

    def take(self, at: Array, outs: Sequence[Array]) -> None:
        _take(self.X, at, outs)


def _join(shards: Sequence[_Rows], random_rows: RandomRows, by_columns: bool) -> None:
    """Have dense shards of a block read together, where those in memory are; see `mpifed.shards.joint`."""
    first, most, columns = shards[0], max(shard.samples for shard in shards), sum(shard.features for shard in shards)
    if by_columns and random_rows.X.dtype == np.uint8:
        joint = _JointColumns(_rows(random_rows.X, columns, most, first.client), len(shards))
        for shard in shards:
            shard.joint_columns = joint
    elif not by_columns and all(shard.features == first.features for shard in shards):
        together = _JointRows(_rows(random_rows.X, first.features, most * len(shards), first.client), random_rows.y)
        for i, shard in enumerate(shards):
            shard.joint = together, i * most


def _rows(values: Array, columns: int, most: int, number: int) -> Array:
    """[s, columns] of the random values, at most `most` rows; other ones for the next number, as far as there are."""
    count = min(most, len(values) // columns)
    start = number * count * columns % (len(values) - count * columns + 1)
    return values[start : start + count * columns].reshape(count, columns)


def _take(X: Array, at: Array, outs: Sequence[Array]) -> None:
    """Put the rows `at` of X [s, p], scaled, into `outs` [b, p_i], as `Shard.take` does."""
    scale = None if X.dtype.kind == "f" else outs[0].dtype.type(_SHRINK)
    scale_columns(X, scale, None, outs, at % len(X))
