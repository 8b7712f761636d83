"""Which rank hosts which clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.holdings import narrow
from mpifed.core.record import Integers

MOST_RANKS = 10**6


class Hosted(NamedTuple):
    """The clients of a rank: a contiguous range, divided into blocks."""

    clients: range
    bounds: Integers  # [blocks + 1] start of each block, counted from the first of these clients


class Placement(NamedTuple):
    """Blocks of clients, and the rank of each block. Blocks follow from the job, ranks from the launch."""

    bounds: Integers  # [blocks + 1] block i has clients bounds[i] to bounds[i + 1] - 1
    ranks: Integers  # [blocks], ascending

    def hosted(self, rank: int) -> Hosted:
        """The clients and block bounds of `rank`."""
        first, stop = np.searchsorted(self.ranks, [rank, rank + 1])
        bounds = self.bounds[first : stop + 1]
        return Hosted(range(int(bounds[0]), int(bounds[-1])), bounds - bounds[0])

    @property
    def hosts(self) -> Integers:
        """[N] the rank of each client."""
        return np.repeat(self.ranks, np.diff(self.bounds))


def place(loads: Sequence[float] | Integers, block: int, ranks: int, dedicated: bool) -> Placement:
    """Assign contiguous runs of blocks to ranks, with about equal loads.

    Raises UsageError when there are more ranks than any machine has.

    Parameters
    ----------
    loads : [N] computational load of each client, for instance its number of rows
    block : number of clients computed together
    dedicated : rank 0 hosts no clients, unless it is the only rank

    Returns
    -------
    Every block on one rank; ranks beyond the number of blocks host nothing.
    """
    if ranks > MOST_RANKS:
        raise UsageError(f"{ranks} ranks: at most {MOST_RANKS} are supported; use fewer")
    bounds = narrow(np.minimum(np.arange(0, len(loads) + block, block), len(loads)))
    blocks, first = len(bounds) - 1, 1 if dedicated and ranks > 1 else 0
    hosts = ranks - first
    if hosts >= blocks:
        return Placement(bounds, first + np.arange(blocks))
    # in place and in 32 bits: blocks may be millions, and every rank does this
    load = np.add.reduceat(loads, bounds[:-1], dtype=np.float64)
    middle, total = np.cumsum(load), load.sum()
    load /= 2
    middle -= load
    middle *= hosts
    middle /= total
    share = np.minimum(middle.astype(bounds.dtype), hosts - 1)
    del load, middle
    # every host gets a block: raise ranks where too few blocks are left, and lower them so that no rank is skipped
    number = np.arange(blocks, dtype=bounds.dtype)
    share = np.maximum(share, number + (hosts - blocks))
    share[0] = 0
    share -= number
    return Placement(bounds, np.minimum.accumulate(share) + (number + first))
