"""The roster of a rank: the clients that it hosts, in blocks, which are opened when clients of theirs participate.

Of all clients only a few arrays of numbers are stored. Participating clients are looked up in them at once, and only
their blocks are touched: a round takes as long with 100,000 clients as with 1,000, if as many participate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from mpifed.core.record import Integers
from mpifed.data.block import Block

_FIRST = np.zeros(1, dtype=np.int64)


class Roster(Sequence[Block]):
    """The blocks of this rank, in order."""

    def __init__(
        self,
        clients: Integers,
        bounds: Integers,
        open_block: Callable[[int], Block],
    ) -> None:
        """Of `clients` [n], ascending, block i has those from bounds[i] to bounds[i + 1]; `open_block` gives it."""
        self.clients, self.bounds, self._open = clients, bounds, open_block
        # [blocks] the first client of each
        self.first = clients if len(bounds) > len(clients) else clients[bounds[:-1]]

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Roster:
        """A roster of blocks that are already open."""
        if isinstance(blocks, Roster):
            return blocks
        opened = list(blocks)
        parts = [np.zeros(0, np.int64), *(block.clients for block in opened)]
        return cls(np.concatenate(parts), np.cumsum([*map(len, parts)]), opened.__getitem__)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> Block:  # type: ignore[override] # by number alone
        if not 0 <= i < len(self):
            raise IndexError(f"block {i} of {len(self)}")
        return self._open(i)

    def size(self, i: int) -> int:
        """The number of clients of a block, which is not opened for it."""
        return int(self.bounds[i + 1] - self.bounds[i])

    def among(self, chosen: Integers) -> Iterator[tuple[int, Integers]]:
        """(number of a block, positions in it of the clients chosen) for each block with any; `chosen` [n] ascend."""
        where = located(chosen, self.clients)
        if len(self) == len(self.clients):  # each client has a block of its own
            yield from ((i, _FIRST) for i in where.tolist())
            return
        if len(where) == len(self.clients):
            yield from self._all
            return
        blocks = np.searchsorted(self.bounds, where, side="right") - 1
        starts = np.flatnonzero(np.diff(blocks, prepend=-1)).tolist()
        for start, stop in zip(starts, [*starts[1:], len(where)], strict=False):
            i = int(blocks[start])
            yield i, where[start:stop] - self.bounds[i]

    @cached_property
    def _all(self) -> list[tuple[int, Integers]]:
        """What `among` yields where all clients are chosen."""
        return [(i, np.arange(size)) for i, size in enumerate(np.diff(self.bounds).tolist()) if size]


def located(chosen: Integers, clients: Integers) -> Integers:
    """Positions in `clients` [n] of those of them who are among `chosen` [k]; both ascend, and so do these."""
    if not len(clients) or not len(chosen):
        return chosen[:0]
    first, last, start, stop = int(clients[0]), int(clients[-1]), 0, len(chosen)
    if chosen[0] < first or chosen[-1] > last:
        start, stop = chosen.searchsorted((first, last + 1)).tolist()
    if last - first < len(clients):  # they are neighbours
        at: Integers = chosen[start:stop] - first
        return at
    return np.flatnonzero(np.isin(clients, chosen[start:stop], assume_unique=True))
