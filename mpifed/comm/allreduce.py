"""Sums of arrays over the ranks of an MPI communicator. All are collective.

direct: the library's own call, piece after piece.
nodes: of long integers that stand in memory which the ranks of a node share, see `SharedArrays`. Each rank adds a part
of its node's arrays where they are; then the leaders of the nodes reduce these sums over the network.

Sums of integers have the same bits with both. Under MPICH they stand in shared memory where the ranks of each node are
no more than its processors; the call of Open MPI was the faster one. `benchmarks/reductions.py` compares them.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.mpi import Communicator, is_mpich, load
from mpifed.comm.node_map import NodeMap
from mpifed.core.errors import UsageError

AUTO, DIRECT, NODES = "auto", "direct", "nodes"
ALGORITHMS = (DIRECT, NODES)
LONG = 2**17  # bytes: shorter arrays take microseconds with any algorithm
PIECE = 2**30  # bytes per call: no count nears 2^31
_MOST = 2**26  # bytes of an array that stands in shared memory
_LINE = 64  # bytes of a cache line
_SHARED_MEMORY = "/dev/shm"

Array = np.ndarray


class Direct:
    """The library's own reductions of this rank's array [m], into an array [m] on rank 0 or on every rank.

    The two may be the same array: then MPI reduces in place, without a copy, and it is overwritten on every rank.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._sum, self._in_place = comm, load().SUM, load().IN_PLACE
        # for rank 0 alone, too: it takes a third of the time of MPI_Reduce in MPICH 5.0
        self._by_all = is_mpich()
        self._unused = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
        """Sum `array` over ranks into `total` on rank 0 (None elsewhere)."""
        if self._by_all and array.nbytes >= LONG:
            self.reduce_all(array, self._scratch(array) if total is None else total)
            return
        root_total = total if self._comm.rank == 0 else None
        for piece in pieces(array):
            sent = self._in_place if root_total is array else array[piece]
            self._comm.Reduce(sent, None if root_total is None else root_total[piece], op=self._sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        """Sum `array` over ranks into `total`, which may be the same array, on every rank."""
        for piece in pieces(array):
            sent = self._in_place if total is array else array[piece]
            self._comm.Allreduce(sent, total[piece], op=self._sum)

    def _scratch(self, array: Array) -> Array:
        if len(self._unused) < array.nbytes:
            self._unused = np.empty(array.nbytes, dtype=np.uint8)
        return self._unused[: array.nbytes].view(array.dtype)


class NodeRanks:
    """The ranks of each node, and the leaders of the nodes. The constructor is collective."""

    def __init__(self, comm: Communicator, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self.is_leader, self.nodes = nodes.rank_within(rank) == 0, nodes.many
        self._comm, self.node = comm, comm.Split(nodes.nodes[rank], rank)
        # among the leaders; the communicator of the other ranks is not used
        self.leaders = Direct(comm.Split(0 if self.is_leader else 1, rank))

    def shared(self, rows: int, nbytes: int, wanted: bool = True) -> NDArray[np.uint8] | None:
        """[rows, nbytes] that the ranks of a node share, zeros; None, on all ranks alike, where that fails.

        Collective. `wanted`: by this node, alike on its ranks.
        """
        memory = _shared_memory(self.node, rows, nbytes) if wanted else None
        failed = np.array([memory is None], dtype=np.int64)
        self._comm.Allreduce(failed.copy(), failed, op=load().SUM)
        return None if failed[0] else memory

    def add(self, arrays: Sequence[Array], total: Array) -> None:
        """Sum an array of each rank of the node into `total`, which may be the first one; all are in shared memory."""
        self.node.Barrier()
        mine = parts(total.size, self.node.size)[self.node.rank]
        first, *others = arrays
        if others:
            np.add(first[mine], others[0][mine], out=total[mine])
            for other in others[1:]:
                total[mine] += other[mine]
        elif total is not first:
            np.copyto(total, first)
        self.node.Barrier()


class SharedArrays:
    """An array [m] of each rank in memory that the ranks of its node share, and one for the sum: nothing is copied.

    `memory` has a row for each, of at least their bytes. The constructor is not collective, the sums are.
    """

    def __init__(
        self, library: Direct, ranks: NodeRanks, memory: NDArray[np.uint8], length: int, dtype: np.dtype
    ) -> None:
        self._library, self._ranks = library, ranks
        rows = memory[:, : length * dtype.itemsize].view(dtype)
        self._arrays: list[Array] = list(rows[:-1])
        self._total: Array = rows[-1]
        self.mine: Array = rows[ranks.node.rank]  # this rank's

    def reduce(self, piece: slice) -> None:
        """Sum a piece of all ranks' arrays into rank 0's; that of other ranks may be overwritten."""
        mine, ranks = self.mine[piece], self._ranks
        if mine.nbytes < LONG:
            self._library.reduce(mine, mine)
            return
        arrays = [array[piece] for array in self._arrays]
        ranks.add(arrays, arrays[0])
        if ranks.is_leader and ranks.nodes > 1:
            ranks.leaders.reduce(arrays[0], arrays[0])

    def reduce_all(self) -> Array:
        """The sum over all ranks, for every rank to read before the next one; arrays may be overwritten."""
        ranks = self._ranks
        ranks.add(self._arrays, self._total)
        if ranks.nodes > 1:
            if ranks.is_leader:
                ranks.leaders.reduce_all(self._total, self._total)
            ranks.node.Barrier()
        return self._total


class Reductions:
    """The sums of a transport; `requested`: in `ALGORITHMS`, or "auto"."""

    def __init__(self, comm: Communicator, nodes: NodeMap, requested: str = AUTO) -> None:
        if requested not in (AUTO, *ALGORITHMS):
            raise UsageError(f"MPIFED_REDUCE={requested}: known are {', '.join((AUTO, *ALGORITHMS))}")
        self._comm, self._map, self._requested = comm, nodes, requested
        self.library = Direct(comm)
        self._ranks: NodeRanks | None = None  # from the first long array on

    def shared(self, length: int, dtype: np.dtype) -> SharedArrays | None:
        """Arrays that are summed without copies; None where the library's call is the faster one, or has to do.

        Collective.
        """
        nbytes, by_nodes = length * dtype.itemsize, self._requested == NODES
        together = self._map.many < len(self._map.nodes)  # whether any two ranks share a node
        if not together or not LONG <= nbytes <= _MOST or not (by_nodes or (self._requested == AUTO and is_mpich())):
            return None
        if self._ranks is None:
            self._ranks = NodeRanks(self._comm, self._map)
        size = self._ranks.node.size
        # ranks that wait for each other on one processor would take longer than the library
        memory = self._ranks.shared(size + 1, -(-nbytes // _LINE) * _LINE, by_nodes or size <= (os.cpu_count() or 1))
        return None if memory is None else SharedArrays(self.library, self._ranks, memory, length, dtype)


def _shared_memory(node: Communicator, rows: int, nbytes: int) -> NDArray[np.uint8] | None:
    """[rows, nbytes] shared by all ranks of a node, or None where that fails on this rank. Collective over the node.

    The file has a name for no longer than all ranks take to open it, empty, so that nothing is left behind if they are
    killed. A rank takes the memory of every `node.size`-th row from its own on, so that it lies beside its own core.
    """
    node.Barrier()
    number, path = -1, ""
    with suppress(OSError):
        if node.rank == 0:
            room = os.statvfs(_SHARED_MEMORY)
            # the MPI library and other programs need some, too; 0 blocks: there is no limit
            if room.f_blocks and rows * nbytes > room.f_bavail * room.f_frsize // 2:
                raise OSError(errno.ENOSPC, f"less than twice {rows * nbytes} bytes are free in {_SHARED_MEMORY}")
            number, path = tempfile.mkstemp(prefix="mpifed-", dir=_SHARED_MEMORY)
    path = node.bcast(path)
    with suppress(OSError):
        number = number if node.rank == 0 else os.open(path, os.O_RDWR)
    node.Barrier()
    if node.rank == 0 and path:
        os.unlink(path)
    taken = False
    if number >= 0:
        with suppress(OSError):  # too little memory raises here, instead of SIGBUS later
            for row in range(node.rank, rows, node.size):
                os.posix_fallocate(number, row * nbytes, nbytes)
            taken = True
    node.Barrier()
    memory = None
    if number >= 0:
        with suppress(OSError, ValueError):
            memory = mmap.mmap(number, rows * nbytes) if taken else None
        os.close(number)
    return None if memory is None else np.frombuffer(memory, dtype=np.uint8).reshape(rows, nbytes)


def pieces(array: Array, nbytes: int | None = None) -> list[slice]:
    """Slices of an array of at most `nbytes` each; by default as much as a single MPI call takes."""
    step = max(1, (nbytes or PIECE) // array.itemsize)
    return [slice(start, start + step) for start in range(0, array.size, step)]


def parts(length: int, ranks: int) -> list[slice]:
    """Slices that divide `length` values evenly among ranks; the first ranks have one value more if needed."""
    stops = [rank * (length // ranks) + min(rank, length % ranks) for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(stops)]
