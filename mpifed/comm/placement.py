"""Which rank hosts which clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Integers

MOST_RANKS = 10**6


class Hosted(NamedTuple):
    """The clients of a rank: a contiguous range, divided into blocks."""

    clients: range
    bounds: Integers  # [blocks + 1] start of each block, counted from the first of these clients


class Placement(NamedTuple):
    """Blocks of clients, and which of them each rank hosts. Blocks follow from the job, ranks from the launch."""

    bounds: Integers  # [blocks + 1] block i has clients bounds[i] to bounds[i + 1] - 1
    starts: Integers  # [ranks + 1] rank r has blocks starts[r] to starts[r + 1] - 1

    def hosted(self, rank: int) -> Hosted:
        """The clients and block bounds of `rank`."""
        first, stop = self.starts[rank : rank + 2]
        bounds = self.bounds[first : stop + 1]
        return Hosted(range(int(bounds[0]), int(bounds[-1])), bounds - bounds[0])

    @property
    def hosts(self) -> Integers:
        """[N] the rank of each client."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.bounds[self.starts]))


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
    clients, first = len(loads), int(dedicated and ranks > 1)
    # one array over all clients besides the bounds: they may be millions, and every rank does this
    bounds = np.arange(0, clients + block, block, dtype="<i4" if clients + block < 2**31 else "<i8")
    bounds[-1] = clients
    blocks, done = len(bounds) - 1, np.zeros(clients + 1)
    np.cumsum(loads, out=done[1:])
    hosts = min(ranks - first, blocks)
    number = np.arange(hosts)
    shares = done[-1] * number / hosts
    at = np.searchsorted(done[1:], shares) // block  # the block in whose course a share is full
    starts = at + (done[bounds[at]] + done[bounds[at + 1]] < 2 * shares)  # where it is more than half done
    # every host gets a block: no more than are left for the others, and one more than the host before
    starts = np.maximum.accumulate(np.minimum(starts, number + blocks - hosts) - number) + number
    return Placement(bounds, np.r_[np.zeros(first, np.int64), starts, np.full(ranks - first - hosts + 1, blocks)])
