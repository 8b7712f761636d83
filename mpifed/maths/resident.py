"""Blocks on a device: rows stay there as far as memory allows, the rest is copied minibatch by minibatch.

The rows of a shard are copied once, in the order in which shards are first used, until the budget is exhausted; which
shards are resident changes no bit of a result. A minibatch of resident dense rows is gathered by one kernel for all
clients of a block; minibatches of other shards are assembled in memory and copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.protocols import Piece
from mpifed.core.record import Array, ArrayModule
from mpifed.data.block import Batch, Block, ClientData, check_rows
from mpifed.maths.kernels import gathered
from mpifed.maths.sparse import DeviceRows

_ALIGNMENT = 256  # bytes; that of every allocation


def address(array: Any) -> int:  # of CuPy's, which its `data` knows, and NumPy's does not
    """Of the first number, on the device."""
    return int(array.data.ptr)


class RowBudget:
    """The bytes of a device that may still be taken for rows."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def take(self, nbytes: int) -> bool:
        """Take `nbytes` if that many are left; returns whether they were."""
        if nbytes > self.nbytes:
            return False
        self.nbytes -= nbytes
        return True


class DeviceShard:
    """The rows of one client on a device: a `mpifed.data.block.ClientData`; `host` is the same shard in memory.

    Only a weak reference to `host` is stored: the caller owns it, and may pass another object with the same rows later.
    """

    joint = joint_columns = None  # the gathering kernel needs no common array of several clients' rows

    def __init__(self, host: ClientData, dtype: str, xp: ArrayModule, room: RowBudget) -> None:
        self.dtype, self._xp, self._room = np.dtype(dtype), xp, room
        self.host = host
        self.client, self.samples, self.features, self.sparse = host.client, host.samples, host.features, host.sparse
        self.rows, self.columns = host.rows, host.columns  # in memory
        self.y = xp.asarray(host.y)
        self._tried = False
        self._pieces: list[tuple[slice, DeviceRows]] = []
        self._all: Array | DeviceRows | None = None

    @property
    def host(self) -> ClientData:
        shard = self._host()
        assert shard is not None, "the block of this shard has been deleted"
        return shard

    @host.setter
    def host(self, shard: ClientData) -> None:
        self._host = weakref.ref(shard)

    @property
    def all(self) -> Array | DeviceRows | None:
        """[s, p] all rows on the device, an array or `DeviceRows`; None where the budget does not allow it."""
        if not self._tried:
            self._tried = True
            self._all = self._sparse_rows() if self.sparse else self._dense_rows()
        return self._all

    def _dense_rows(self) -> Array | None:
        if not self._room.take(self.samples * self.features * self.dtype.itemsize):
            return None
        rows = self._xp.empty((self.samples, self.features), self.dtype)
        for at, X in self.host.pieces(self.dtype):
            rows[at] = self._xp.asarray(X)
        return rows

    def _sparse_rows(self) -> DeviceRows | None:
        from scipy.sparse import vstack

        pieces = list(self.host.pieces(self.dtype))
        # values and column indices, and both again for the transpose
        if not self._room.take(sum(X.nnz for _, X in pieces) * 2 * (self.dtype.itemsize + 4)):
            return None
        self._pieces = [(at, DeviceRows.of(X, self._xp)) for at, X in pieces]
        if len(pieces) == 1:
            return self._pieces[0][1]
        return DeviceRows.of(vstack([X for _, X in pieces], format="csr"), self._xp)

    def take(self, at: Array, out: Array) -> None:
        """Copy the rows `at` [b] into `out` [b, p]."""
        rows = self.all if out.dtype == self.dtype else None
        if isinstance(rows, DeviceRows):
            rows = None
        if rows is not None:
            rows.take(self._xp.asarray(at), axis=0, out=out)
            return
        rows_in_memory = np.empty(out.shape, out.dtype)
        self.host.take(at, rows_in_memory)
        out[...] = self._xp.asarray(rows_in_memory)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> DeviceRows:
        """The rows `at` [b] of a sparse shard."""
        rows = self.all if np.dtype(dtype) == self.dtype else None
        if rows is not None:
            assert isinstance(rows, DeviceRows)
            return rows[at]
        return DeviceRows.of(self.host.take_sparse(at, dtype), self._xp)

    def pieces(self, dtype: DTypeLike) -> Iterable[tuple[slice, Piece]]:
        """(row indices, X [b, p]) for all rows in order, in the pieces of the shard in memory.

        Where the rows are not resident, only one piece at a time is on the device.
        """
        rows = self.all if np.dtype(dtype) == self.dtype else None
        if rows is None:
            return self._sent(dtype)
        if isinstance(rows, DeviceRows):
            return self._pieces
        return ((at, self._aligned(rows[at])) for at in self._cuts)

    def _aligned(self, piece: Array) -> Array:
        """`piece`, copied unless it is aligned like an allocation: cuBLAS chooses kernels by alignment."""
        return piece.copy() if address(piece) % _ALIGNMENT else piece

    def _sent(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        for at, X in self.host.pieces(dtype):
            yield at, DeviceRows.of(X, self._xp) if self.sparse else self._xp.asarray(X)

    @cached_property
    def _cuts(self) -> list[slice]:
        return [at for at, _ in self.host.pieces(self.dtype)]


@dataclass(frozen=True)
class DeviceBlock(Block):
    """A block whose shards are `DeviceShard`."""

    shards: tuple[DeviceShard, ...]
    xp_: ArrayModule = field(compare=False, kw_only=True)

    @property
    def xp(self) -> ArrayModule:
        return self.xp_

    @cached_property
    def host(self) -> Block:
        """The same clients' rows in memory."""
        return Block(tuple(shard.host for shard in self.shards), self.dtype)

    @cached_property
    def _labels(self) -> Array:
        """[n] device addresses of the clients' y."""
        return self.xp.asarray(np.array([address(shard.y) for shard in self.shards], np.uint64))

    @cached_property
    def _values(self) -> Array | None:
        """[n] device addresses of the clients' rows; None unless all are dense and resident."""
        if self.sparse or any(shard.all is None for shard in self.shards):
            return None
        return self.xp.asarray(np.array([address(shard.all) for shard in self.shards], np.uint64))

    def take(self, at: NDArray[np.int64]) -> Batch:
        """The rows `at` [n, s] of each client."""
        check_rows(at, self.counts)
        indices = self.xp.asarray(np.ascontiguousarray(at, dtype=np.int64))
        y = self.xp.empty(at.shape, self.shards[0].y.dtype)
        gathered(self._labels, indices, 1, y)
        if self.sparse:
            pairs = zip(self.shards, at, strict=True)
            return Batch(tuple(shard.take_sparse(rows, self.dtype) for shard, rows in pairs), y)
        if self._values is None:
            return Batch(self.xp.asarray(self.host.take(at).X), y)
        X = self.xp.empty((*at.shape, self.shards[0].features), self.dtype)
        gathered(self._values, indices, X.shape[-1], X)
        return Batch(X, y)
