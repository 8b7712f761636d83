"""Ways to add one long array over the ranks of an MPI communicator. All of them give the same integers.

A way is told the communicator, the operation, this rank's array [m] and where the sum [m] goes: on rank 0 alone (None
elsewhere), or on every rank. All are collective. `benchmarks/reductions.py` compares them.

direct: what the MPI library itself does, a piece after the other.
everywhere: MPI_Allreduce, though rank 0 alone needs the sum; MPICH 5.0 takes a third of the time of its MPI_Reduce.
scatter: every rank adds up its own m / P values of all ranks, then they are gathered: each value crosses the network
twice, whatever P is (R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in
MPICH*, 2005).
pipelined: several pieces under way at the same time, by nonblocking calls.
nodes: in the memory that a node's ranks share each rank adds up its part of the node's sum; then the leaders of the
nodes add up theirs over the network.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.nodes import NodeMap

PIECE = 2**30  # bytes per call: no count nears 2^31
_CHUNK = 2**20  # bytes of a piece of the pipeline
_UNDER_WAY = 4  # pieces of the pipeline at a time
_ROOM = 2**20  # bytes of each rank in a room of shared memory
_SHARED_MEMORY = "/dev/shm"

Array = NDArray[Any]


class Way(Protocol):
    """How an array is added up; collective."""

    def reduce(self, array: Array, total: Array | None) -> None:
        """Put the sum of `array` into `total` on rank 0."""

    def reduce_all(self, array: Array, total: Array) -> None:
        """Put the sum of `array` into `total` on every rank."""


class Direct:
    """The library's own."""

    def __init__(self, comm: Any, operation: Any) -> None:
        self.comm, self.operation = comm, operation

    def reduce(self, array: Array, total: Array | None) -> None:
        """MPI_Reduce."""
        for piece in pieces(array):
            self.comm.Reduce(array[piece], None if total is None else total[piece], op=self.operation)

    def reduce_all(self, array: Array, total: Array) -> None:
        """MPI_Allreduce."""
        for piece in pieces(array):
            self.comm.Allreduce(array[piece], total[piece], op=self.operation)


class Everywhere(Direct):
    """The library's sum on every rank, for rank 0 too."""

    def __init__(self, comm: Any, operation: Any) -> None:
        super().__init__(comm, operation)
        self._unused = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
        """MPI_Allreduce."""
        if total is None:
            if len(self._unused) < array.nbytes:
                self._unused = np.empty(array.nbytes, dtype=np.uint8)
            total = self._unused[: array.nbytes].view(array.dtype)
        self.reduce_all(array, total)


class Scatter:
    """Reduce-scatter, then gather."""

    def __init__(self, comm: Any, operation: Any) -> None:
        self.comm, self.operation = comm, operation
        self._mine = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
        """To rank 0."""
        for piece in pieces(array):
            counts, mine = self._scattered(array[piece])
            self.comm.Gatherv(mine, None if total is None else [total[piece], counts])

    def reduce_all(self, array: Array, total: Array) -> None:
        """To every rank."""
        for piece in pieces(array):
            counts, mine = self._scattered(array[piece])
            self.comm.Allgatherv(mine, [total[piece], counts])

    def _scattered(self, array: Array) -> tuple[list[int], Array]:
        """How many values each rank adds up, and this rank's sums."""
        counts = [part.stop - part.start for part in parts(len(array), self.comm.size)]
        if self._mine.dtype != array.dtype or len(self._mine) < counts[0]:
            self._mine = np.empty(counts[0], dtype=array.dtype)
        mine = self._mine[: counts[self.comm.rank]]
        self.comm.Reduce_scatter(array, mine, counts, op=self.operation)
        return counts, mine


class Pipelined:
    """Pieces, several at a time."""

    def __init__(self, comm: Any, operation: Any, chunk: int = _CHUNK) -> None:
        self.comm, self.operation, self.chunk = comm, operation, chunk

    def reduce(self, array: Array, total: Array | None) -> None:
        """MPI_Ireduce."""
        self._flow([
            (lambda piece=piece: self.comm.Ireduce(
                array[piece], None if total is None else total[piece], op=self.operation))
            for piece in pieces(array, self.chunk)
        ])  # fmt: skip

    def reduce_all(self, array: Array, total: Array) -> None:
        """MPI_Iallreduce."""
        self._flow([
            (lambda piece=piece: self.comm.Iallreduce(array[piece], total[piece], op=self.operation))
            for piece in pieces(array, self.chunk)
        ])  # fmt: skip

    @staticmethod
    def _flow(starts: list[Any]) -> None:
        under_way: list[Any] = []
        for start in starts:
            if len(under_way) == _UNDER_WAY:
                under_way.pop(0).Wait()
            under_way.append(start())
        for request in under_way:
            request.Wait()


class Layered:
    """Within nodes by shared memory, then among their leaders. Making one is collective.

    An array goes through the shared memory in pieces, in two rooms by turns: then nobody writes into what the leader
    may still read, and the leaders' network is busy while the nodes add up the next piece.
    """

    def __init__(self, comm: Any, operation: Any, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self._leads, self._nodes = nodes.rank_within(rank) == 0, nodes.many
        self._near = comm.Split(nodes.nodes[rank], rank)
        # of the leaders; the others have no use for theirs
        self._beyond = Direct(comm.Split(0 if self._leads else 1, rank), operation)
        self._rooms, self._turn = _rooms(self._near), 0
        fine = np.array([self._rooms is None], dtype=np.int64)
        comm.Allreduce(fine.copy(), fine, op=operation)
        self.works = not fine[0]  # alike on all ranks

    def reduce(self, array: Array, total: Array | None) -> None:
        """To rank 0, which leads its node."""
        for piece in pieces(array, _ROOM):
            node_sum = self._within(array[piece])
            if self._leads and self._nodes > 1:
                self._beyond.reduce(node_sum, None if total is None else total[piece])
            elif total is not None:
                np.copyto(total[piece], node_sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        """To every rank."""
        for piece in pieces(array, _ROOM):
            node_sum = self._within(array[piece])
            if self._nodes > 1:
                if self._leads:
                    self._beyond.reduce_all(node_sum, total[piece])
                    np.copyto(node_sum, total[piece])
                self._near.Barrier()
            np.copyto(total[piece], node_sum)

    def _within(self, array: Array) -> Array:
        """The sum of the node's ranks, in the memory that they share."""
        assert self._rooms is not None
        shared = self._rooms[self._turn][:, : array.nbytes].view(array.dtype)  # [ranks of the node, m]
        self._turn = 1 - self._turn
        np.copyto(shared[self._near.rank], array)
        self._near.Barrier()
        mine = parts(array.size, self._near.size)[self._near.rank]
        node_sum = shared[0, mine]
        for other in shared[1:]:
            node_sum += other[mine]
        self._near.Barrier()
        found: Array = shared[0]
        return found


def _rooms(near: Any) -> NDArray[np.uint8] | None:
    """[2, ranks, bytes] that all ranks of a node see, or None where they cannot. Collective over the node.

    The file's name is gone as soon as all have opened it, so that nothing stays behind whatever happens to them.
    """
    path, length = "", 2 * near.size * _ROOM
    with suppress(OSError):
        if near.rank == 0:
            number, path = tempfile.mkstemp(prefix="mpifed-", dir=_SHARED_MEMORY)
            with open(number, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, length)  # no room is an error now, and no signal later
    path, memory = near.bcast(path), None
    with suppress(OSError, ValueError), open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), length)
    near.Barrier()
    if near.rank == 0 and path:
        os.unlink(path)
    return None if memory is None else np.frombuffer(memory, dtype=np.uint8).reshape(2, near.size, _ROOM)


def pieces(array: Array, nbytes: int | None = None) -> list[slice]:
    """Of an array, each of at most so many bytes; by default as much as one call takes."""
    step = max(1, (nbytes or PIECE) // array.itemsize)
    return [slice(start, start + step) for start in range(0, array.size, step)]


def parts(length: int, ranks: int) -> list[slice]:
    """So many values shared out evenly, the first ranks having one more where they must."""
    stops = [rank * (length // ranks) + min(rank, length % ranks) for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(stops)]
