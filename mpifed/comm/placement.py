"""Which rank hosts which clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Placement(NamedTuple):
    """Blocks of clients, and the rank of each block. Blocks follow from the job, ranks from the launch."""

    blocks: tuple[range, ...]  # clients of each block
    ranks: NDArray[np.int64]  # [blocks]

    def of(self, rank: int) -> list[range]:
        """The blocks that `rank` hosts, in order."""
        return [self.blocks[i] for i in np.flatnonzero(self.ranks == rank)]


def place(work: Sequence[float] | NDArray[np.int64], block: int, ranks: int, dedicated: bool) -> Placement:
    """Contiguous runs of blocks on ranks, about equal in work.

    Parameters
    ----------
    work : [N] each client's work, for instance its rows
    block : clients computed together
    dedicated : rank 0 hosts no clients, as far as there are other ranks

    Returns
    -------
    Every block on one rank; ranks beyond the number of blocks host nothing.
    """
    clients = len(work)
    blocks = tuple(range(start, min(start + block, clients)) for start in range(0, clients, block))
    first = 1 if dedicated and ranks > 1 else 0
    hosts = ranks - first
    load = np.array([float(np.sum(np.asarray(work)[b.start : b.stop])) for b in blocks])
    if hosts >= len(blocks):
        return Placement(blocks, first + np.arange(len(blocks)))
    middle = np.cumsum(load) - load / 2
    share = np.minimum((middle * hosts / load.sum()).astype(np.int64), hosts - 1)
    # every host gets a block: push shares up where the ones before ran ahead, and down where too few are left
    for i in range(len(blocks)):
        low = share[i - 1] if i else 0
        share[i] = min(max(share[i], low, hosts - (len(blocks) - i)), low + 1 if i else 0)
    return Placement(blocks, first + share)
