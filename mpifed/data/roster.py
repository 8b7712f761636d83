"""The roster of a rank: the clients that it hosts, in blocks, which are opened when clients of theirs participate.

Of all clients only a few arrays of numbers are stored. Participating clients are looked up in them at once, and only
their blocks are touched: a round takes as long with 100,000 clients as with 1,000, if as many participate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby

import numpy as np

from mpifed.core.record import Integers
from mpifed.data.block import Block


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
        if np.array_equal(chosen, self.clients):  # as in most jobs, round by round
            yield from self._all
            return
        where = located(chosen, self.clients)
        blocks, start = np.searchsorted(self.bounds, where, side="right") - 1, 0
        for i, group in groupby(blocks.tolist()):
            stop = start + len(list(group))
            yield i, where[start:stop] - self.bounds[i]
            start = stop

    @cached_property
    def _all(self) -> list[tuple[int, Integers]]:
        """What `among` yields where all clients are chosen."""
        return [(i, np.arange(size)) for i, size in enumerate(np.diff(self.bounds).tolist())]


def located(chosen: Integers, clients: Integers) -> Integers:
    """Positions in `clients` [n] of those of them who are among `chosen` [k]; both ascend, and so do these."""
    if not len(clients):
        return chosen[:0]
    at = np.minimum(clients.searchsorted(chosen.astype(clients.dtype)), len(clients) - 1)
    here: Integers = at[clients[at] == chosen]
    return here
