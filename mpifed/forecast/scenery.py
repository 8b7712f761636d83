"""Made-up shards, in the shapes of real ones that are not opened: where a rehearsal is played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import CHUNK
from mpifed.comm.channel import Holdings
from mpifed.core.block import Block
from mpifed.core.exchange import Algorithm
from mpifed.core.record import Array
from mpifed.run.config import Job
from mpifed.shards import store

_VALUES = 2**20  # random values that all made-up shards share
_SHRINK = 2.0**-12  # of random values, so that no answer leaves its bound


class Stage(NamedTuple):
    """What a rehearsal needs."""

    job: Job
    data: store.Federation
    algorithm: Algorithm
    stock: Stock
    hosts: int = 1  # ranks that host clients

    def block(self, clients: Sequence[int], most: int | None = None) -> Block:
        """Made-up shards in the shapes of those of `clients`, with at most so many rows."""
        counts = self.data.counts if most is None else np.minimum(self.data.counts, most)
        groups = self.columns.groups
        first = [np.arange(self.columns.features)[at][0] for at in self.columns.members]
        shards = tuple(
            _Rows(i, int(counts[i]), int(first[groups[i]]), int(self.data.widths[i]), self.stock) for i in clients
        )
        return Block(shards, self.job.compute.dtype)

    @property
    def columns(self) -> Holdings:
        """Like those of the data, but each group's columns lie side by side."""
        groups, widths = self.data.holds[:, 1], np.zeros(int(self.data.holds[:, 1].max()) + 1, dtype=np.int64)
        widths[groups] = self.data.widths
        stops = np.cumsum(widths) if self.data.split != "rows" else widths
        members = (slice(int(stop - width), int(stop)) for stop, width in zip(stops, widths, strict=True))
        return Holdings(self.data.features, groups, tuple(members))

    def test_block(self) -> Block:
        """Made-up rows with all columns."""
        rows = min(CHUNK, len(self.stock.y))
        shard = _Rows(-1, rows, 0, self.data.features, self.stock)
        return Block((shard,), self.job.compute.dtype)


class Stock(NamedTuple):
    """Random rows and labels."""

    X: Any  # [s, p], dense or CSR
    y: Array  # [s]


def stock_like(data: store.Federation) -> Stock:
    """As wide as the widest shard, stored as its values are, and as dense."""
    rng, width, most = np.random.default_rng(0), data.features, int(data.counts.max())
    y = rng.integers(data.classes, size=most) if data.classes else rng.standard_normal(most) * _SHRINK
    stored = data.nbytes.sum() / (data.counts @ data.widths)  # bytes a value, zeros of sparse rows as well
    if not data.sparse:
        rows = min(most, max(1, _VALUES // width))
        return Stock(rng.integers(256, size=(rows, width), dtype=np.uint8).astype("u1" if stored < 4 else "f4"), y)
    from scipy.sparse import csr_matrix

    filled = min(width, max(1, round(stored * width / 8)))  # a value takes 4 bytes, and its column 4
    rows = min(most, max(1, _VALUES // filled))
    columns = np.sort(rng.integers(width, size=(rows, filled)), axis=1).ravel()
    indptr = np.arange(0, rows * filled + 1, filled)
    return Stock(csr_matrix((np.ones(rows * filled, np.float32), columns, indptr), shape=(rows, width)), y)


class _Rows:
    """A made-up shard, as costly to read as one in memory; see `mpifed.core.block.Shard`."""

    def __init__(self, client: int, samples: int, first: int, features: int, stock: Stock) -> None:
        self.client, self.samples, self.features = client, samples, features
        self.y, self.rows, self.columns = stock.y[:samples], np.arange(samples), np.arange(first, first + features)
        self.sparse = not isinstance(stock.X, np.ndarray)
        self._X = stock.X[:, :features]

    def take(self, at: Array, out: Array) -> None:
        """Random rows for the rows `at` [b], into `out` [b, p]."""
        if self.sparse:
            self.take_sparse(at, out.dtype).toarray(out=out)
        else:
            np.multiply(self._X[at % len(self._X)], out.dtype.type(_SHRINK), out=out, dtype=out.dtype)

    def take_sparse(self, at: Array, dtype: Any) -> Any:
        """Random rows for the rows `at` [b], as CSR [b, p]."""
        return self._X[at % self._X.shape[0]].astype(dtype) * np.dtype(dtype).type(_SHRINK)
