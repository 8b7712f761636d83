"""Blocks: a fixed group of clients whose data one rank holds and computes together.

Which clients form a block is settled by the job and never by the number of ranks, so a block's arithmetic, and
with it every bit of its clients' answers, is the same wherever it is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array, index, namespace
from mpifed.core.round import Round


class Shard(Protocol):
    """The data of one client, as `mpifed.shards.store` reads it: in memory or from its file."""

    client: int
    samples: int
    features: int
    sparse: bool
    y: Array  # [s] class numbers or targets

    @property
    def rows(self) -> Array:
        """[s] global sample numbers."""

    @property
    def columns(self) -> Array:
        """[p] global feature numbers."""

    def take(self, at: Array, out: Array) -> None:
        """Put the rows `at` [b] into `out` [b, p]."""

    def take_sparse(self, at: Array, dtype: Any) -> Any:
        """The rows `at` [b] as a CSR matrix [b, p]."""

    def pieces(self, dtype: Any) -> Iterable[tuple[slice, Any]]:
        """(own rows, X [b, p], dense or CSR) for all rows in order, in pieces that the shard's shape alone decides."""


class Batch(NamedTuple):
    """As many rows of each of n clients."""

    X: Any  # [n, s, p], or a tuple of n CSR matrices [s, p]
    y: Array  # [n, s]

    def rows(self, start: int, stop: int) -> Batch:
        """The rows `start` to `stop` of every client."""
        if isinstance(self.X, tuple):
            return Batch(tuple(x[start:stop] for x in self.X), self.y[:, start:stop])
        return Batch(self.X[:, start:stop], self.y[:, start:stop])

    def together(self) -> Batch:
        """The same rows as those of one client: X [1, n * s, p], y [1, n * s]."""
        if isinstance(self.X, tuple):
            from scipy.sparse import vstack

            stack = getattr(self.X[0], "stacked", partial(vstack, format="csr"))  # a device's rows have their own
            return Batch((stack(self.X),), self.y.reshape(1, -1))
        return Batch(self.X.reshape(1, -1, self.X.shape[-1]), self.y.reshape(1, -1))


@dataclass(frozen=True)
class Block:
    """Clients computed together; on the rank that hosts it alone."""

    shards: tuple[Shard, ...]
    dtype: str = "float32"

    @cached_property
    def clients(self) -> NDArray[np.int64]:
        """[n] the clients' numbers in the federation."""
        return np.array([shard.client for shard in self.shards], dtype=np.int64)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[n] rows held by each client."""
        return np.array([shard.samples for shard in self.shards], dtype=np.int64)

    @property
    def sparse(self) -> bool:
        """Whether the rows are sparse."""
        return self.shards[0].sparse

    @property
    def xp(self) -> Any:
        """The module of its arrays: numpy, or cupy where the block is on a device."""
        return namespace(self.shards[0].y)

    @property
    def host(self) -> Block:
        """The same clients' rows in memory."""
        return self

    def only(self, who: Array) -> Block:
        """The block of the clients at positions `who`."""
        if len(who) == len(self.shards):
            return self
        return replace(self, shards=tuple(self.shards[i] for i in who))

    def equal_parts(self) -> Iterator[tuple[NDArray[np.int64], Block]]:
        """(positions, block) for each shard size in turn: clients with equally many rows, ready for one array."""
        for count in np.unique(self.counts):
            who = np.flatnonzero(self.counts == count)
            yield who, self.only(who)

    def draw(self, now: Round, purpose: str, count: int, secret: bool = False) -> NDArray[np.int64]:
        """[n, count] rows of each client, drawn by `Round.draw`."""
        return now.draw(purpose, self.clients, self.counts, count, secret)

    def coins(self, now: Round, purpose: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """[n, m] rows of each client and which count, `count` of them on average, drawn by `Round.coins`."""
        return now.coins(purpose, self.clients, self.counts, count / self.counts)

    def take(self, at: NDArray[np.int64]) -> Batch:
        """The rows `at` [n, s] of each client."""
        xp, pairs = self.xp, list(zip(self.shards, at, strict=True))
        there = index(self.shards[0].y, at)
        y = xp.concatenate([shard.y[rows] for shard, rows in zip(self.shards, there, strict=True)]).reshape(at.shape)
        if self.sparse:
            return Batch(
                tuple(shard.take_sparse(rows, self.dtype) for shard, rows in pairs), y
            )
        X = xp.empty((*at.shape, self.shards[0].features), dtype=self.dtype)
        for (shard, rows), out in zip(pairs, X, strict=True):
            shard.take(rows, out)
        return Batch(X, y)

    def everything(self, size: int) -> Iterator[tuple[int, Batch]]:
        """All rows, client by client, at most `size` at a time: (position, batch of that one client)."""
        for i, shard in enumerate(self.shards):
            alone = self.only(np.array([i]))
            for start in range(0, shard.samples, size):
                yield i, alone.take(np.arange(start, min(start + size, shard.samples))[None])
