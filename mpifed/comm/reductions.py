"""Ways to add one long array over the ranks of an MPI communicator. All of them give the same integers.

A way is told the communicator, this rank's array [m] and where the sum [m] goes: on rank 0 alone (None elsewhere), or
on every rank. Where every rank gives its array for that too, it is used up on all of them, and nothing needs to be
copied: MPI's own calls then work in place. All are collective. `benchmarks/reductions.py` compares them.

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
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.nodes import NodeMap

PIECE = 2**30  # bytes per call: no count nears 2^31
_CHUNK = 2**20  # bytes of a piece of the pipeline
_UNDER_WAY = 4  # pieces of the pipeline at a time
_ROOM = 2**20  # bytes of each rank in a room of shared memory
_SHARED_MEMORY = "/dev/shm"

Array = NDArray[Any]


class Constants(NamedTuple):
    """Of the MPI library: two operations, and what stands for an array that is where its sum goes."""

    sum: Any
    largest: Any
    in_place: Any

    @classmethod
    def of(cls, MPI: Any) -> Constants:
        """Those of mpi4py's module."""
        return cls(MPI.SUM, MPI.MAX, MPI.IN_PLACE)


class Way(Protocol):
    """How an array is added up; collective."""

    def reduce(self, array: Array, total: Array | None) -> None:
        """Put the sum of `array` into `total` on rank 0; where they are one array, it is used up on every rank."""

    def reduce_all(self, array: Array, total: Array) -> None:
        """Put the sum of `array` into `total`, which may be the same array, on every rank."""


class Direct:
    """The library's own."""

    def __init__(self, comm: Any, mpi: Constants) -> None:
        self.comm, self.mpi = comm, mpi

    def reduce(self, array: Array, total: Array | None) -> None:
        """MPI_Reduce."""
        there = total if self.comm.rank == 0 else None
        for piece in pieces(array):
            given = self.mpi.in_place if there is array else array[piece]
            self.comm.Reduce(given, None if there is None else there[piece], op=self.mpi.sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        """MPI_Allreduce."""
        for piece in pieces(array):
            given = self.mpi.in_place if total is array else array[piece]
            self.comm.Allreduce(given, total[piece], op=self.mpi.sum)


class Everywhere(Direct):
    """The library's sum on every rank, for rank 0 too."""

    def __init__(self, comm: Any, mpi: Constants) -> None:
        super().__init__(comm, mpi)
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

    def __init__(self, comm: Any, mpi: Constants) -> None:
        self.comm, self.mpi = comm, mpi
        self._mine = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
        """To rank 0."""
        there = total if self.comm.rank == 0 else None
        for piece in pieces(array):
            counts, mine = self._scattered(array[piece])
            self.comm.Gatherv(mine, None if there is None else [there[piece], counts])

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
        self.comm.Reduce_scatter(array, mine, counts, op=self.mpi.sum)
        return counts, mine


class Pipelined:
    """Pieces, several at a time."""

    def __init__(self, comm: Any, mpi: Constants, chunk: int = _CHUNK) -> None:
        self.comm, self.mpi, self.chunk = comm, mpi, chunk

    def reduce(self, array: Array, total: Array | None) -> None:
        """MPI_Ireduce."""
        there = total if self.comm.rank == 0 else None

        def start(piece: slice) -> Any:
            given = self.mpi.in_place if there is array else array[piece]
            return self.comm.Ireduce(given, None if there is None else there[piece], op=self.mpi.sum)

        self._flow(start, pieces(array, self.chunk))

    def reduce_all(self, array: Array, total: Array) -> None:
        """MPI_Iallreduce."""

        def start(piece: slice) -> Any:
            given = self.mpi.in_place if total is array else array[piece]
            return self.comm.Iallreduce(given, total[piece], op=self.mpi.sum)

        self._flow(start, pieces(array, self.chunk))

    @staticmethod
    def _flow(start: Callable[[slice], Any], some: list[slice]) -> None:
        under_way: list[Any] = []
        for piece in some:
            if len(under_way) == _UNDER_WAY:
                under_way.pop(0).Wait()
            under_way.append(start(piece))
        for request in under_way:
            request.Wait()


class Layered:
    """Within nodes by shared memory, then among their leaders. Making one is collective.

    An array goes through the shared memory in pieces, in two rooms by turns: then nobody writes into what the leader
    may still read, and the leaders' network is busy while the nodes add up the next piece.
    """

    def __init__(self, comm: Any, mpi: Constants, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self._leads, self._nodes = nodes.rank_within(rank) == 0, nodes.many
        self._near = comm.Split(nodes.nodes[rank], rank)
        # of the leaders; the others have no use for theirs
        self._beyond, self._first = Direct(comm.Split(0 if self._leads else 1, rank), mpi), rank == 0
        self._rooms, self._turn = _rooms(self._near), 0
        fine = np.array([self._rooms is None], dtype=np.int64)
        comm.Allreduce(fine.copy(), fine, op=mpi.sum)
        self.works = not fine[0]  # alike on all ranks

    def reduce(self, array: Array, total: Array | None) -> None:
        """To rank 0, which leads its node."""
        there = total if self._first else None
        for piece in pieces(array, _ROOM):
            node_sum = self._within(array[piece])
            if self._leads and self._nodes > 1:
                self._beyond.reduce(node_sum, None if there is None else there[piece])
            elif there is not None:
                np.copyto(there[piece], node_sum)

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
