"""Algorithms that reduce (sum) a long array over the ranks of an MPI communicator. All give the same integers.

Each takes this rank's array [m] and the array [m] for the sum: on rank 0 alone (None elsewhere), or on every rank. The
two may be the same array: then MPI reduces in place, without a copy, and the array is overwritten on every rank. All
are collective. `benchmarks/reductions.py` compares them.

direct: MPI_Reduce or MPI_Allreduce of the library, piece after piece.
everywhere: MPI_Allreduce, though rank 0 alone needs the sum; MPICH 5.0 takes a third of the time of its MPI_Reduce.
scatter: every rank sums m / P values over all ranks, then the sums are gathered: each value crosses the network twice,
whatever P is (R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in
MPICH*, 2005).
pipelined: several pieces in flight at the same time, by nonblocking calls.
nodes: hierarchical; the ranks of a node sum in shared memory, each a part of the array; then the leaders of the nodes
reduce these sums over the network.
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
_IN_FLIGHT = 4  # pieces of the pipeline at a time
_BUFFER = 2**20  # bytes of each rank in a buffer of shared memory
_SHARED_MEMORY = "/dev/shm"

Array = NDArray[Any]


class Constants(NamedTuple):
    """Constants of the MPI library: two operations, and MPI_IN_PLACE."""

    sum: Any
    largest: Any  # MPI_MAX
    in_place: Any

    @classmethod
    def of(cls, MPI: Any) -> Constants:
        """From mpi4py's module `MPI`."""
        return cls(MPI.SUM, MPI.MAX, MPI.IN_PLACE)


class Way(Protocol):
    """A reduction algorithm; collective."""

    def reduce(self, array: Array, total: Array | None) -> None:
        """Sum `array` over ranks into `total` on rank 0; where both are the same array, every rank's is overwritten."""

    def reduce_all(self, array: Array, total: Array) -> None:
        """Sum `array` over ranks into `total`, which may be the same array, on every rank."""


class Direct:
    """The library's own reductions."""

    def __init__(self, comm: Any, mpi: Constants) -> None:
        self.comm, self.mpi = comm, mpi

    def reduce(self, array: Array, total: Array | None) -> None:
        root_total = total if self.comm.rank == 0 else None
        for piece in pieces(array):
            sent = self.mpi.in_place if root_total is array else array[piece]
            self.comm.Reduce(sent, None if root_total is None else root_total[piece], op=self.mpi.sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        for piece in pieces(array):
            sent = self.mpi.in_place if total is array else array[piece]
            self.comm.Allreduce(sent, total[piece], op=self.mpi.sum)


class Everywhere(Direct):
    """MPI_Allreduce, also where rank 0 alone needs the sum."""

    def __init__(self, comm: Any, mpi: Constants) -> None:
        super().__init__(comm, mpi)
        self._unused = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
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
        root_total = total if self.comm.rank == 0 else None
        for piece in pieces(array):
            counts, mine = self._scattered(array[piece])
            self.comm.Gatherv(mine, None if root_total is None else [root_total[piece], counts])

    def reduce_all(self, array: Array, total: Array) -> None:
        for piece in pieces(array):
            counts, mine = self._scattered(array[piece])
            self.comm.Allgatherv(mine, [total[piece], counts])

    def _scattered(self, array: Array) -> tuple[list[int], Array]:
        """Number of values that each rank sums, and this rank's sums."""
        counts = [part.stop - part.start for part in parts(len(array), self.comm.size)]
        if self._mine.dtype != array.dtype or len(self._mine) < counts[0]:
            self._mine = np.empty(counts[0], dtype=array.dtype)
        mine = self._mine[: counts[self.comm.rank]]
        self.comm.Reduce_scatter(array, mine, counts, op=self.mpi.sum)
        return counts, mine


class Pipelined:
    """Nonblocking reductions of pieces, several in flight."""

    def __init__(self, comm: Any, mpi: Constants, chunk: int = _CHUNK) -> None:
        self.comm, self.mpi, self.chunk = comm, mpi, chunk

    def reduce(self, array: Array, total: Array | None) -> None:
        root_total = total if self.comm.rank == 0 else None

        def start(piece: slice) -> Any:
            sent = self.mpi.in_place if root_total is array else array[piece]
            return self.comm.Ireduce(sent, None if root_total is None else root_total[piece], op=self.mpi.sum)

        self._pipeline(start, pieces(array, self.chunk))

    def reduce_all(self, array: Array, total: Array) -> None:
        def start(piece: slice) -> Any:
            sent = self.mpi.in_place if total is array else array[piece]
            return self.comm.Iallreduce(sent, total[piece], op=self.mpi.sum)

        self._pipeline(start, pieces(array, self.chunk))

    @staticmethod
    def _pipeline(start: Callable[[slice], Any], chunks: list[slice]) -> None:
        in_flight: list[Any] = []
        for piece in chunks:
            if len(in_flight) == _IN_FLIGHT:
                in_flight.pop(0).Wait()
            in_flight.append(start(piece))
        for request in in_flight:
            request.Wait()


class Layered:
    """Reduction within nodes by shared memory, then among their leaders. The constructor is collective.

    An array passes through two buffers of shared memory in turn (double buffering): no rank writes into a buffer that
    the leader may still read, and the leaders communicate while the nodes sum the next piece.
    """

    def __init__(self, comm: Any, mpi: Constants, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self._is_leader, self._nodes = nodes.rank_within(rank) == 0, nodes.many
        self._node = comm.Split(nodes.nodes[rank], rank)
        # among the leaders; the communicator of the other ranks is not used
        self._leaders, self._is_root = Direct(comm.Split(0 if self._is_leader else 1, rank), mpi), rank == 0
        self._buffers, self._turn = _shared_buffers(self._node), 0
        failed = np.array([self._buffers is None], dtype=np.int64)
        comm.Allreduce(failed.copy(), failed, op=mpi.sum)
        self.works = not failed[0]  # alike on all ranks

    def reduce(self, array: Array, total: Array | None) -> None:
        root_total = total if self._is_root else None
        for piece in pieces(array, _BUFFER):
            node_sum = self._within(array[piece])
            if self._is_leader and self._nodes > 1:
                self._leaders.reduce(node_sum, None if root_total is None else root_total[piece])
            elif root_total is not None:
                np.copyto(root_total[piece], node_sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        for piece in pieces(array, _BUFFER):
            node_sum = self._within(array[piece])
            if self._nodes > 1:
                if self._is_leader:
                    self._leaders.reduce_all(node_sum, total[piece])
                    np.copyto(node_sum, total[piece])
                self._node.Barrier()
            np.copyto(total[piece], node_sum)

    def _within(self, array: Array) -> Array:
        """The sum over the node's ranks, in shared memory."""
        assert self._buffers is not None
        shared = self._buffers[self._turn][:, : array.nbytes].view(array.dtype)  # [ranks of the node, m]
        self._turn = 1 - self._turn
        np.copyto(shared[self._node.rank], array)
        self._node.Barrier()
        mine = parts(array.size, self._node.size)[self._node.rank]
        node_sum = shared[0, mine]
        for other in shared[1:]:
            node_sum += other[mine]
        self._node.Barrier()
        reduced: Array = shared[0]
        return reduced


def _shared_buffers(node: Any) -> NDArray[np.uint8] | None:
    """[2, ranks, bytes] shared by all ranks of a node, or None where that fails. Collective over the node.

    The file is unlinked as soon as all ranks have opened it, so that nothing is left behind if they are killed.
    """
    path, length = "", 2 * node.size * _BUFFER
    with suppress(OSError):
        if node.rank == 0:
            number, path = tempfile.mkstemp(prefix="mpifed-", dir=_SHARED_MEMORY)
            with open(number, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, length)  # too little memory raises here, instead of SIGBUS later
    path, memory = node.bcast(path), None
    with suppress(OSError, ValueError), open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), length)
    node.Barrier()
    if node.rank == 0 and path:
        os.unlink(path)
    return None if memory is None else np.frombuffer(memory, dtype=np.uint8).reshape(2, node.size, _BUFFER)


def pieces(array: Array, nbytes: int | None = None) -> list[slice]:
    """Slices of an array of at most `nbytes` each; by default as much as a single MPI call takes."""
    step = max(1, (nbytes or PIECE) // array.itemsize)
    return [slice(start, start + step) for start in range(0, array.size, step)]


def parts(length: int, ranks: int) -> list[slice]:
    """Slices that divide `length` values evenly among ranks; the first ranks have one value more if needed."""
    stops = [rank * (length // ranks) + min(rank, length % ranks) for rank in range(ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(stops)]
