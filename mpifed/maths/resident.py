"""Blocks on a device: rows that stay there as far as there is room, the rest sent minibatch by minibatch.

The rows of a shard are uploaded once, in the order in which shards are first used, until the room is used up; which
ones these are decides no bit. A minibatch of resident dense rows of any number of clients is one gathering kernel; of
other shards it is put together in memory, and sent.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.block import Batch, Block, Shard, check_rows
from mpifed.core.record import Array
from mpifed.maths.kernels import gathered
from mpifed.maths.sparse import DeviceRows

_ALIGNMENT = 256  # bytes; that of every allocation


class Room:
    """How many bytes of a device may still be taken for rows."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def take(self, nbytes: int) -> bool:
        """Whether there are so many, which are then taken."""
        if nbytes > self.nbytes:
            return False
        self.nbytes -= nbytes
        return True


class DeviceShard:
    """The rows of one client for computing on a device: a `mpifed.core.block.Shard`; `host` is that in memory.

    That is held by whoever asks for its block, and may be another object the next time.
    """

    joint = None  # a kernel takes rows of many clients wherever they lie

    def __init__(self, host: Shard, dtype: str, xp: Any, room: Room) -> None:
        self.dtype, self._xp, self._room = np.dtype(dtype), xp, room
        self.host = host
        self.client, self.samples, self.features, self.sparse = host.client, host.samples, host.features, host.sparse
        self.rows, self.columns = host.rows, host.columns  # in memory
        self.y = xp.asarray(host.y)
        self._tried = False
        self._pieces: list[tuple[slice, Any]] = []
        self._all: Any = None

    @property
    def host(self) -> Shard:
        """In memory."""
        found = self._host()
        assert found is not None, "nobody holds the block any more"
        return found

    @host.setter
    def host(self, shard: Shard) -> None:
        self._host = weakref.ref(shard)

    @property
    def all(self) -> Any:
        """[s, p] all rows on the device, an array or `DeviceRows`; None where there is no room for them."""
        if not self._tried:
            self._tried = True
            self._all = self._sparse_rows() if self.sparse else self._dense_rows()
        return self._all

    def _dense_rows(self) -> Any:
        if not self._room.take(self.samples * self.features * self.dtype.itemsize):
            return None
        found = self._xp.empty((self.samples, self.features), self.dtype)
        for at, X in self.host.pieces(self.dtype):
            found[at] = self._xp.asarray(X)
        return found

    def _sparse_rows(self) -> Any:
        from scipy.sparse import vstack

        pieces = list(self.host.pieces(self.dtype))
        # a value, its column, and both again where they are transposed
        if not self._room.take(sum(X.nnz for _, X in pieces) * 2 * (self.dtype.itemsize + 4)):
            return None
        self._pieces = [(at, DeviceRows.of(X, self._xp)) for at, X in pieces]
        if len(pieces) == 1:
            return self._pieces[0][1]
        return DeviceRows.of(vstack([X for _, X in pieces], format="csr"), self._xp)

    def take(self, at: Array, out: Array) -> None:
        """Put the rows `at` [b] into `out` [b, p]."""
        rows = self.all if out.dtype == self.dtype else None
        if isinstance(rows, DeviceRows):
            rows = None
        if rows is not None:
            rows.take(self._xp.asarray(at), axis=0, out=out)
            return
        there = np.empty(out.shape, out.dtype)
        self.host.take(at, there)
        out[...] = self._xp.asarray(there)

    def take_sparse(self, at: Array, dtype: Any) -> DeviceRows:
        """The rows `at` [b] of a sparse shard."""
        rows = self.all if np.dtype(dtype) == self.dtype else None
        if rows is not None:
            found: DeviceRows = rows[at]
            return found
        return DeviceRows.of(self.host.take_sparse(at, dtype), self._xp)

    def pieces(self, dtype: Any) -> Iterable[tuple[slice, Any]]:
        """(own rows, X [b, p]) for all rows in order, cut as in memory; one piece at a time where there is no room."""
        rows = self.all if np.dtype(dtype) == self.dtype else None
        if rows is None:
            return self._sent(dtype)
        if self.sparse:
            return self._pieces
        return ((at, self._aligned(rows[at])) for at in self._cuts)

    def _aligned(self, piece: Array) -> Array:
        """As an array of its own would lie, or a copy that does: for others cuBLAS may take another kernel."""
        return piece.copy() if piece.data.ptr % _ALIGNMENT else piece

    def _sent(self, dtype: Any) -> Iterator[tuple[slice, Any]]:
        for at, X in self.host.pieces(dtype):
            yield at, DeviceRows.of(X, self._xp) if self.sparse else self._xp.asarray(X)

    @cached_property
    def _cuts(self) -> list[slice]:
        return [at for at, _ in self.host.pieces(self.dtype)]


@dataclass(frozen=True)
class DeviceBlock(Block):
    """A block whose shards are `DeviceShard`."""

    xp_: Any = field(default=None, compare=False)

    @property
    def xp(self) -> Any:
        """CuPy."""
        return self.xp_

    @cached_property
    def host(self) -> Block:
        """The same clients' rows in memory."""
        own: tuple[Any, ...] = self.shards
        return Block(tuple(shard.host for shard in own), self.dtype)

    def only(self, who: Array) -> Block:
        """The block of the clients at positions `who`."""
        if len(who) == len(self.shards):
            return self
        return replace(self, shards=tuple(self.shards[i] for i in who))

    @cached_property
    def _labels(self) -> Array:
        """[n] addresses of the clients' y."""
        return self.xp.asarray(np.array([shard.y.data.ptr for shard in self.shards], np.uint64))

    @cached_property
    def _values(self) -> Array | None:
        """[n] addresses of the clients' rows; None unless all are dense and resident."""
        own: tuple[Any, ...] = self.shards
        if self.sparse or any(shard.all is None for shard in own):
            return None
        return self.xp.asarray(np.array([shard.all.data.ptr for shard in own], np.uint64))

    def take(self, at: NDArray[np.int64]) -> Batch:
        """The rows `at` [n, s] of each client."""
        check_rows(at, self.counts)
        there = self.xp.asarray(np.ascontiguousarray(at, dtype=np.int64))
        y = self.xp.empty(at.shape, self.shards[0].y.dtype)
        gathered(self._labels, there, 1, y)
        if self.sparse:
            pairs = zip(self.shards, at, strict=True)
            return Batch(tuple(shard.take_sparse(rows, self.dtype) for shard, rows in pairs), y)
        if self._values is None:
            return Batch(self.xp.asarray(self.host.take(at).X), y)
        X = self.xp.empty((*at.shape, self.shards[0].features), self.dtype)
        gathered(self._values, there, X.shape[-1], X)
        return Batch(X, y)
