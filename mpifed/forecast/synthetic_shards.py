"""Synthetic shards for rehearsals, in the shapes of the real ones, which are not opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.protocols import Piece
from mpifed.core.record import Array, vectors
from mpifed.job.job import Job
from mpifed.shards import store

_VALUES = 2**20  # random values that all synthetic shards share
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
    """Random rows and labels, shared by all synthetic shards."""

    X: Piece  # [s, p], dense or CSR
    y: Array  # [s]


def random_rows_like(data: store.ShardFolder) -> RandomRows:
    """Random rows with all columns of the data, stored as its values are, and as dense."""
    rng, width, most = np.random.default_rng(0), data.features, int(data.counts.max())
    y = rng.integers(data.classes, size=most) if data.classes else rng.standard_normal(most) * _SHRINK
    if data.targets > 1:
        y = vectors(np.repeat(y[:, None], data.targets, axis=1))
    stored = data.nbytes.sum() / (data.counts @ data.widths)  # bytes per value, including zeros of sparse rows
    if not data.sparse:
        rows = min(most, max(1, _VALUES // width))
        return RandomRows(rng.integers(256, size=(rows, width), dtype=np.uint8).astype("u1" if stored < 4 else "f4"), y)
    from scipy.sparse import csr_matrix

    filled = min(width, max(1, round(stored * width / 8)))  # a value takes 4 bytes, and its column index 4
    rows = min(most, max(1, _VALUES // filled))
    columns = np.sort(rng.integers(width, size=(rows, filled)), axis=1).ravel()
    indptr = np.arange(0, rows * filled + 1, filled)
    return RandomRows(csr_matrix((np.ones(rows * filled, np.float32), columns, indptr), shape=(rows, width)), y)


class _Rows:
    """A synthetic shard, as costly to read as one in memory; see `mpifed.core.block.ClientData`."""

    joint = joint_columns = None

    def __init__(self, client: int, rows: Array, columns: Array, random_rows: RandomRows) -> None:
        self.client, self.samples, self.features = client, len(rows), len(columns)
        self.y, self.rows, self.columns = random_rows.y[: len(rows)], rows, columns
        self.sparse = not isinstance(random_rows.X, np.ndarray)
        self._X = random_rows.X[:, : len(columns)]
        self._pieces: list[tuple[slice, Piece]] | None = None

    def take(self, at: Array, out: Array) -> None:
        """Write random values for the rows `at` [b] into `out` [b, p]."""
        if self.sparse:
            self.take_sparse(at, out.dtype).toarray(out=out)
        else:
            np.multiply(self._X[at % len(self._X)], out.dtype.type(_SHRINK), out=out, dtype=out.dtype)

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        """All rows of the shard, in chunks of the random rows that exist."""
        kinds = self._X.shape[0]
        if self._pieces is None:
            whole = self._X.astype(dtype) * np.asarray(_SHRINK, dtype)[()]
            stops = [min(start + kinds, self.samples) for start in range(0, self.samples, kinds)]
            self._pieces = [(slice(start, stop), whole[: stop - start]) for start, stop in pairwise([0, *stops])]
        yield from self._pieces

    def take_sparse(self, at: Array, dtype: DTypeLike) -> Piece:
        """Random values for the rows `at` [b], as CSR [b, p]."""
        return self._X[at % self._X.shape[0]].astype(dtype) * np.asarray(_SHRINK, dtype)[()]
