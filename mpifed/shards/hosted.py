"""The shards of a rank, opened when their clients first participate, and kept within the job's memory limit."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpifed.core.block import Block
from mpifed.core.roster import Roster
from mpifed.shards.joint import ColumnJoint, Joint
from mpifed.shards.shard import Shard
from mpifed.shards.store import ShardFolder

SHARD_NBYTES = 2048  # of an open shard beside its arrays
STREAMED_NBYTES = 2**30  # of labels of open shards whose values are read from files


def hosted_blocks(
    data: ShardFolder, clients: range, bounds: NDArray[np.int64], dtype: str, room: float, ahead: bool,
    tests: bool = False,
) -> Roster:  # fmt: skip
    """The blocks of consecutive clients, opened on demand.

    Parameters
    ----------
    clients, bounds : block i has clients[bounds[i]:bounds[i + 1]]
    dtype : of their rows
    room : bytes of values to keep in memory; values of further clients are read from their files at each use
    ahead : open all blocks now, since all will be needed
    tests : of the rows with which the clients test, in place of those with which they train

    Raises
    ------
    DataError : when a shard is damaged: now if `ahead`, else when it is opened.
    """
    opened = _Opened(data, clients, bounds, dtype, room, tests)
    if ahead:
        for i in range(len(bounds) - 1):
            opened.keep(i)
    return Roster(np.arange(clients.start, clients.stop), bounds, opened.keep, opened.look)


class _Opened:
    """Open blocks: those in memory stay open, others as long as they were recently used."""

    def __init__(
        self, data: ShardFolder, clients: range, bounds: NDArray[np.int64], dtype: str, room: float, tests: bool
    ) -> None:
        self._shard = partial(data.shard, tests=True) if tests else data.shard
        self._counts, self._nbytes = (data.tests.counts, data.tests.nbytes) if tests else (data.counts, data.nbytes)
        self._columns = data.widths if data.split == "columns" else None  # [N] of each client
        self._clients, self._bounds, self._dtype, self._room = clients, bounds, dtype, room
        self._resident: dict[int, Block] = {}
        self._streamed: OrderedDict[int, Block] = OrderedDict()
        self._streamed_nbytes = 0

    def keep(self, i: int) -> Block:
        """Block i, kept open for further use."""
        block = self._resident.get(i)
        if block is not None:
            return block
        block = self._streamed.get(i)
        if block is not None:
            self._streamed.move_to_end(i)
            return block
        shards, streams, clients = [], False, self._of(i)
        joint = self._joint(clients) if len(clients) > 1 else None
        for client in clients:
            nbytes = int(self._nbytes[client]) + self._overhead(client)
            fits = nbytes <= self._room
            self._room -= nbytes if fits else 0
            streams |= not fits
            shards.append(self._shard(client, in_memory=fits))
            if joint is not None:
                joint.add(shards[-1])
        block = Block(tuple(shards), self._dtype)
        if not streams:
            self._resident[i] = block
            return block
        self._streamed[i] = block
        self._streamed_nbytes += sum(map(self._overhead, self._of(i)))
        while self._streamed_nbytes > STREAMED_NBYTES and len(self._streamed) > 1:
            old, _ = self._streamed.popitem(last=False)
            self._streamed_nbytes -= sum(map(self._overhead, self._of(old)))
        return block

    def _joint(self, clients: range) -> Joint | ColumnJoint:
        """A common array for the rows of clients, one after the other, or beside each other if they hold columns."""
        if self._columns is not None:
            return ColumnJoint(int(self._columns[clients.start : clients.stop].sum()))
        return Joint(int(self._counts[clients.start : clients.stop].sum()))

    def look(self, i: int) -> Block:
        """Block i for a single use: unless it is open, its values are read piece by piece, and not kept."""
        block = self._resident.get(i) or self._streamed.get(i)
        if block is not None:
            return block
        shards: list[Shard] = [self._shard(client, in_memory=False) for client in self._of(i)]
        return Block(tuple(shards), self._dtype)

    def _of(self, i: int) -> range:
        return self._clients[int(self._bounds[i]) : int(self._bounds[i + 1])]

    def _overhead(self, client: int) -> int:
        """Bytes in memory besides the values."""
        return SHARD_NBYTES + 8 * int(self._counts[client])
