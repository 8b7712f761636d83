"""Dense rows in memory of several clients in one array, of which a call reads some of all clients at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifed.core.loops import scale_columns, scale_dense
from mpifed.core.record import Array
from mpifed.shards.scaling import joined
from mpifed.shards.shard import Shard, SparseRows


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


class ColumnJoint:
    """Dense rows in memory of clients with columns of their own, side by side in a common array.

    A row of all these clients is read at once: by client, most of the time would go to the cache lines of few bytes.
    """

    def __init__(self, columns: int) -> None:
        """`columns` are those of all shards to come; memory is taken when the first is added."""
        self.clients = 0  # how many have their columns here
        self._columns, self._shards = columns, list[Shard]()
        self._factors: dict[object, tuple[Array | None, Array | None]] = {}

    def add(self, shard: Shard) -> None:
        """Put the columns of a shard beside those of the shards before, unless dtype or number of rows differ.

        Values that are read as they are stay apart, since `Shard.pieces` gives views of them.
        """
        rows = shard._values
        if isinstance(rows, SparseRows) or not rows.in_memory:
            return
        if rows.dtype.kind == "f" and all(factor is None for factor in shard._factors_in(rows.dtype)):
            return
        if not self._shards:
            self._values = np.empty((shard.samples, self._columns), rows.dtype)
        start = sum(other.features for other in self._shards)
        if (shard.samples, rows.dtype) == (len(self._values), self._values.dtype):
            rows.move(self._values[:, start : start + shard.features])
            shard.joint_columns = self
            self._shards.append(shard)
            self.clients += 1

    def take(self, at: Array, outs: Sequence[Array]) -> None:
        """Write the scaled rows `at` [b] to `outs`, [b, p_i] of each client."""
        dtype = outs[0].dtype
        if dtype not in self._factors:
            scaling = joined([(shard._scaling, shard.features) for shard in self._shards])
            self._factors[dtype] = scaling.to(dtype)
        scale_columns(self._values, *self._factors[dtype], outs, at)
