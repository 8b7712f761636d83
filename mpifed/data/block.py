"""Blocks: a fixed group of clients whose data one rank holds and computes together.

Which clients form a block is settled by the job and never by the number of ranks, so a block's arithmetic, and
with it every bit of its clients' answers, is the same wherever it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.errors import UsageError
from mpifed.core.holdings import span
from mpifed.core.loops import scale_columns
from mpifed.core.record import AnyRecord, Array, ArrayModule, Integers, beside, map_leaves, namespace
from mpifed.core.round import Round

CsrRows: TypeAlias = Any  # a CSR matrix [s, p] of SciPy, which has no types
# [b, p] rows of a shard, dense or CSR as its `sparse` says, which mypy cannot follow
Piece: TypeAlias = Any
Features: TypeAlias = "Array | tuple[CsrRows, ...]"  # [..., s, p], or n CSR matrices [s, p]

_ROWS = 1024  # of one product: more leave the cache, fewer make poor products
_FEW = 32  # rows that are used again stay in memory where they are at most one in so many


def vectors(values: Array) -> Array:
    """[...] elements that are vectors, from values [..., t] float64: of several targets each sample has one."""
    kind = np.dtype([("values", np.float64, (values.shape[-1],))])
    packed: Array = np.ascontiguousarray(values, dtype=np.float64).view(kind)
    return packed[..., 0]


def of_vectors(y: Array) -> Array:
    """[..., t] the values of `vectors`; of plain numbers [..., 1]."""
    return y["values"] if y.dtype.names else y[..., None]


# (scale, shift) of columns in a dtype, as `mpifed.data.scaling.Scaling.to` gives them
Factors: TypeAlias = Callable[[Hashable], tuple[Array | None, Array | None]]


class Joint(NamedTuple):
    """Dense raw values of several clients in one array, of which one call takes rows of all of them.

    One client's rows stand below the other's, or the columns of `side_by_side` clients with the same rows beside each
    other: by client, the time would go to lines of few bytes.
    """

    values: Array
    y: Array  # [s] labels of the rows of all the clients, one client after the other
    factors: Factors
    side_by_side: int = 0

    def take(self, at: Array, out: Array) -> None:
        """Write the scaled rows `at` [b], counted over all the clients, to `out` [b, p]."""
        scale_columns(self.values, *self.factors(out.dtype), out, at)


class ClientData(Protocol):
    """The data of one client, as `mpifed.data.store` reads it: in memory or from its file."""

    client: int
    samples: int
    features: int
    sparse: bool
    y: Array  # [s] class numbers or targets

    @property
    def joint(self) -> tuple[Joint, int] | None:
        """What holds its rows or columns beside those of other clients, and where they begin; None: there is none."""

    @property
    def rows(self) -> Array:
        """[s] indices of its samples among all samples."""

    @property
    def columns(self) -> Array:
        """[p] indices of its features among all features."""

    def take(self, at: Array, out: Array) -> None:
        """Put the rows `at` [b] into `out` [b, p]."""

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        """The rows `at` [b] as a CSR matrix [b, p]."""

    def pieces(self, dtype: DTypeLike) -> Iterable[tuple[slice, Piece]]:
        """(own rows, X [b, p], dense or CSR) for all rows in order, in pieces that the shard's shape alone decides."""


class Batch(NamedTuple):
    """The same number of rows of each of n clients."""

    X: Features  # [n, s, p], or a tuple of n CSR matrices [s, p]
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

            return Batch((vstack(self.X, format="csr"),), self.y.reshape(1, -1))
        return Batch(self.X.reshape(1, -1, self.X.shape[-1]), self.y.reshape(1, -1))


class NoRows:
    """What is public of a client's data."""

    def __init__(self, data: ClientData) -> None:
        self.client, self.samples, self.features, self.sparse = data.client, data.samples, data.features, data.sparse
        self.y = data.y[:0]

    def __getattr__(self, name: str) -> Any:  # of whatever a shard has
        raise UsageError(
            "[privacy]: a hook of the method reads rows, or takes local steps, of which no noise is known; leave that "
            'to the method\'s `change`, or take level = "client"'
        )


def without_rows(block: Block) -> Block:
    """The same clients, whose rows nobody can read."""
    return replace(block, shards=tuple(NoRows(shard) for shard in block.shards))


@dataclass(frozen=True)
class Block:
    """n clients computed together; on the rank that hosts it alone."""

    shards: tuple[ClientData, ...]  # n, the data of each client
    dtype: str = "float32"  # of rows X, and of local arithmetic
    drawn: list[int] = field(default_factory=lambda: [0], compare=False)  # the number of rows that `draw` has given

    @cached_property
    def clients(self) -> Integers:
        """[n] indices of the clients."""
        return np.array([shard.client for shard in self.shards], dtype=np.int64)

    @cached_property
    def counts(self) -> Integers:
        """[n] number of rows of each client."""
        return np.array([shard.samples for shard in self.shards], dtype=np.int64)

    @property
    def sparse(self) -> bool:
        """Whether rows are CSR matrices."""
        return self.shards[0].sparse

    @property
    def xp(self) -> ArrayModule:
        """The module of its arrays: numpy, or cupy where the block is on a device."""
        return namespace(self.shards[0].y)

    @property
    def host(self) -> Block:
        """The same block with its rows in host memory."""
        return self

    def only(self, who: Array) -> Block:
        """The block of the clients at positions `who`."""
        if len(who) == len(self.shards):
            return self
        return replace(self, shards=tuple(self.shards[i] for i in who))

    def parts(self, rows: int) -> Sequence[Block]:
        """The clients a few at a time, as neighbours: so many that `rows` of each make a good product in the cache.

        On a device all at once.
        """
        width = max(1, _ROWS // max(rows, 1))
        if width >= len(self.shards) or self.xp is not np:
            return (self,)
        if ("parts", width) not in self._cache:
            cuts = np.arange(width, len(self.shards), width)
            self._cache["parts", width] = list(map(self.only, np.split(np.arange(len(self.shards)), cuts)))
        parts: Sequence[Block] = self._cache["parts", width]
        return parts

    @cached_property
    def _cache(self) -> dict[tuple[str, int], Any]:  # whatever was made of rows
        """Of `parts`, `by_batch_size` and `take_alike`, by argument."""
        return {}

    def by_batch_size(self, size: int) -> Sequence[tuple[Integers, Block, int]]:
        """(positions, block, rows) of clients whose minibatches of `size` rows fit into one array.

        A client with fewer rows has all of them as its minibatch; so with the largest shard as `size`, clients are
        grouped by how many rows they have.
        """
        if ("size", size) not in self._cache:
            rows = np.minimum(self.counts, size)
            if (rows == rows[0]).all():  # not kept: a block that holds itself stays in memory
                return [(np.arange(len(rows)), self, int(rows[0]))]
            groups = [(np.flatnonzero(rows == count), count) for count in np.unique(rows).tolist()]
            self._cache["size", size] = [(who, self.only(who), count) for who, count in groups]
        parts: Sequence[tuple[Integers, Block, int]] = self._cache["size", size]
        return parts

    def joined(
        self,
        size: int,
        compute: Callable[[Integers, Block, int], AnyRecord],
        alike: Integers | None = None,
    ) -> AnyRecord:
        """The records, leaves [n, ...], that `compute` makes of each group of `by_batch_size`, in the block's order.

        Clients of a group have the same number in `alike` [n].
        """
        groups = list(self.by_batch_size(size)) if alike is None else []
        for number in np.unique(alike).tolist() if alike is not None else ():
            few = np.flatnonzero(alike == number)
            groups += [(few[who], part, rows) for who, part, rows in self.only(few).by_batch_size(size)]
        records = [compute(*group) for group in groups]
        if len(groups) == 1:
            return records[0]
        order = np.argsort(np.concatenate([who for who, _, _ in groups]))

        def together(*parts: Array) -> Array:
            whole: Array = namespace(parts[0]).concatenate(parts)
            return whole[beside(whole, order)]

        return map_leaves(together, *records)

    def draw(self, now: Round, purpose: str, count: int, secret: bool = False) -> Integers:
        """[n, count] rows of each client, without replacement as far as the shard goes.

        They depend on the seed, `purpose` (any text), the round, the client and `count` alone: the same call in the
        same round gives the same rows. For several local steps draw batch_size * local_steps rows once and slice them,
        or give each step a purpose of its own.
        """
        self.drawn[0] += count * len(self.shards)
        return now.draw(purpose, self.clients, self.counts, count, secret)

    def take(self, at: Integers) -> Batch:
        """The rows `at` [n, s] of each client, X [n, s, p] and y [n, s]; IndexError where a client has fewer."""
        check_rows(at, self.counts)
        y = self.xp.empty(at.shape, self.shards[0].y.dtype)
        X = None if self.sparse else self.xp.empty((*at.shape, self.shards[0].features), dtype=self.dtype)
        if X is not None and self._joint is not None and not self._joint[0].side_by_side:
            joint, starts = self._joint
            rows = (at + starts).reshape(-1)
            joint.take(rows, X.reshape(len(rows), X.shape[-1]))
            y.reshape(-1)[:] = joint.y.take(beside(joint.y, rows))
            return Batch(X, y)
        taken = []
        for i, (shard, rows) in enumerate(zip(self.shards, at, strict=True)):
            y[i] = shard.y[beside(shard.y, rows)]
            if X is None:
                taken.append(shard.take_sparse(rows, self.dtype))
            else:
                shard.take(rows, X[i])
        return Batch(tuple(taken) if X is None else X, y)

    def take_alike(self, rows: Integers) -> Sequence[Features]:
        """The same rows [b] of clients with columns of their own: of each X [1, b, p_i], or a CSR matrix; read-only.

        Few rows of many stay in memory until others are taken, since gradients need those of the scores again.
        """
        same_rows, kept = self._cache.get(("alike", 0), (rows[:0], []))
        if kept and len(rows) == len(same_rows) and (rows == same_rows).all():
            taken: Sequence[Features] = kept
            return taken
        check_rows(rows[None], self._least)
        if self.sparse:
            taken = [(shard.take_sparse(rows, self.dtype),) for shard in self.shards]
        else:
            ends = np.cumsum([shard.features for shard in self.shards]).tolist()
            whole = self.xp.empty((len(rows), ends[-1]), dtype=self.dtype)
            taken = [whole[None, :, start:end] for start, end in pairwise([0, *ends])]
            if self._joint is not None and self._joint[0].side_by_side == len(taken):
                self._joint[0].take(rows, whole)
            else:
                for shard, out in zip(self.shards, taken, strict=True):
                    shard.take(rows, out[0])
        few = len(rows) * _FEW <= self._least[0] and not self._seen
        self._cache["alike", 0] = (rows.copy(), taken) if few else (rows[:0], [])
        return taken

    @cached_property
    def _least(self) -> Integers:
        """[1] the fewest rows of a client."""
        least: Integers = self.counts.min(keepdims=True)
        return least

    @cached_property
    def _seen(self) -> bool:
        """Whether what stands in place of a shard, as an audit's, must see every read."""
        return any(getattr(shard, "sees_reads", False) for shard in self.shards)

    @cached_property
    def columns(self) -> Sequence[slice | Array]:
        """n times the indices of the client's columns among all."""
        return [span(shard.columns) for shard in self.shards]

    @cached_property
    def _joint(self) -> tuple[Joint, Integers] | None:
        """What holds the rows or columns of all clients, and where each client's begin there [n, 1]."""
        joints = [shard.joint for shard in self.shards if shard.joint is not None]
        if len(joints) < len(self.shards) or any(joint is not joints[0][0] for joint, _ in joints):
            return None
        return joints[0][0], np.array([[start] for _, start in joints], dtype=np.int64)

    def everything(self, size: int) -> Iterator[Batch]:
        """All rows, client by client, at most `size` at a time."""
        for i, shard in enumerate(self.shards):
            alone = self.only(np.array([i]))
            for start in range(0, shard.samples, size):
                yield alone.take(np.arange(start, min(start + size, shard.samples))[None])


def check_rows(at: Integers, counts: Integers) -> None:
    """Raise IndexError unless rows `at` [n, s] are within `counts` [n]; the next client's would be there otherwise."""
    if at.size and (at.min() < 0 or (at.max(axis=1) >= counts).any()):
        raise IndexError(f"rows {at.min()} to {at.max()} of clients with {counts.tolist()} rows")
