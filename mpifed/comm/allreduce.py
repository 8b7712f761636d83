"""Sums of arrays over the ranks of an MPI communicator, and which algorithm sums long ones. All are collective.

Each takes this rank's array [m] and the array [m] for the sum: on rank 0 alone (None elsewhere), or on every rank. The
two may be the same array: then MPI reduces in place, without a copy, and the array is overwritten on every rank.

direct: MPI_Reduce or MPI_Allreduce of the library, piece after piece.
everywhere: MPI_Allreduce, though rank 0 alone needs the sum; MPICH 5.0 takes a third of the time of its MPI_Reduce.
nodes: hierarchical; the ranks of a node sum in shared memory, each a part of the array; then the leaders of the nodes
reduce these sums over the network.

Sums of integers have the same bits with each, so the first sums of long arrays are timed, and the faster algorithm of
the library's and nodes is used from then on. The bits of floats differ, so for them it is the library's, unless the
user sets another: results should not depend on the load of a machine. `benchmarks/reductions.py` compares all.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.mpi import Communicator, is_mpich, load
from mpifed.comm.node_map import NodeMap
from mpifed.core.errors import UsageError

AUTO, DIRECT, EVERYWHERE, NODES = "auto", "direct", "everywhere", "nodes"
ALGORITHMS = (DIRECT, EVERYWHERE, NODES)
LONG = 2**17  # bytes: shorter arrays take microseconds with any algorithm
PIECE = 2**30  # bytes per call: no count nears 2^31
TRIES = 3  # of each algorithm
_BUFFER = 2**20  # bytes of each rank in a buffer of shared memory
_SHARED_MEMORY = "/dev/shm"

Array = np.ndarray
Timings: TypeAlias = dict[str, dict[str, object]]  # by call and length: the algorithm, and the seconds of each


class Reduction(Protocol):
    """How arrays are summed over ranks."""

    def reduce(self, array: Array, total: Array | None) -> None:
        """Sum `array` over ranks into `total` on rank 0 (None elsewhere).

        Where every rank passes `array` as `total`, less is copied, and `array` is overwritten on all of them.
        """

    def reduce_all(self, array: Array, total: Array) -> None:
        """Sum `array` over ranks into `total`, which may be the same array, on every rank."""


class Direct:
    """The library's own reductions."""

    name = DIRECT

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._sum, self._in_place = comm, load().SUM, load().IN_PLACE

    def reduce(self, array: Array, total: Array | None) -> None:
        root_total = total if self._comm.rank == 0 else None
        for piece in pieces(array):
            sent = self._in_place if root_total is array else array[piece]
            self._comm.Reduce(sent, None if root_total is None else root_total[piece], op=self._sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        for piece in pieces(array):
            sent = self._in_place if total is array else array[piece]
            self._comm.Allreduce(sent, total[piece], op=self._sum)


class Everywhere(Direct):
    """MPI_Allreduce, also where rank 0 alone needs the sum."""

    name = EVERYWHERE

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._unused = np.empty(0, dtype=np.uint8)

    def reduce(self, array: Array, total: Array | None) -> None:
        if total is None:
            if len(self._unused) < array.nbytes:
                self._unused = np.empty(array.nbytes, dtype=np.uint8)
            total = self._unused[: array.nbytes].view(array.dtype)
        self.reduce_all(array, total)


class ByNode:
    """Reduction within nodes by shared memory, then among their leaders. The constructor is collective.

    An array passes through two buffers of shared memory in turn (double buffering): no rank writes into a buffer that
    the leader may still read, and the leaders communicate while the nodes sum the next piece.
    """

    def __init__(self, comm: Communicator, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self._is_leader, self._nodes = nodes.rank_within(rank) == 0, nodes.many
        self._node = comm.Split(nodes.nodes[rank], rank)
        # among the leaders; the communicator of the other ranks is not used
        self._leaders, self._is_root = Direct(comm.Split(0 if self._is_leader else 1, rank)), rank == 0
        self._buffers, self._turn = _shared_buffers(self._node), 0
        failed = np.array([self._buffers is None], dtype=np.int64)
        comm.Allreduce(failed.copy(), failed, op=load().SUM)
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


class FastestReduction:
    """The `Reduction` of a transport: which algorithm sums an array follows from its length, its dtype and timings.

    `requested` is in `ALGORITHMS`, or "auto".
    """

    def __init__(self, comm: Communicator, nodes: NodeMap, requested: str = AUTO) -> None:
        if requested not in (AUTO, *ALGORITHMS):
            raise UsageError(f"MPIFED_REDUCE={requested}: known are {', '.join((AUTO, *ALGORITHMS))}")
        self._comm, self._map, self._requested = comm, nodes, requested
        self._direct = self._library = Direct(comm)  # the library's of short and of long arrays
        if requested == EVERYWHERE or (requested == AUTO and is_mpich()):
            self._library = Everywhere(comm)
        self._of_nodes: ByNode | None = None
        self._seconds: dict[tuple[str, int], dict[str, list[float]]] = {}  # by call and bytes, then algorithm

    def reduce(self, array: Array, total: Array | None) -> None:
        self._timed("reduce", array, lambda algorithm: algorithm.reduce(array, total))

    def reduce_all(self, array: Array, total: Array) -> None:
        self._timed("reduce_all", array, lambda algorithm: algorithm.reduce_all(array, total))

    def chosen(self) -> Timings:
        """By call and length: the algorithm chosen (None before the last try), and the seconds of each."""
        return {
            f"{call}, {nbytes} bytes": {
                "way": None if _next(seconds) else _fastest(seconds),
                "seconds": {name: min(times) for name, times in seconds.items() if times},
            }
            for (call, nbytes), seconds in self._seconds.items()
        }

    def _timed(self, call: str, array: Array, act: Callable[[Reduction], None]) -> None:
        """Sum by the algorithm for this array, or by the one to time next."""
        if self._comm.size == 1 or array.nbytes < LONG:
            act(self._direct)
            return
        if self._requested == NODES:
            act(self._by_node() or self._library)
            return
        if self._requested != AUTO or array.dtype.kind == "f":
            act(self._library)
            return
        algorithms: dict[str, Reduction] = {self._library.name: self._library}
        if by_node := self._by_node():
            algorithms[NODES] = by_node
        seconds = self._seconds.setdefault((call, array.nbytes), {name: [] for name in algorithms})
        name = _next(seconds)
        if name is None:
            act(algorithms[_fastest(seconds)])
            return
        self._comm.Barrier()
        start = time.perf_counter()
        act(algorithms[name])
        slowest = np.array([time.perf_counter() - start])
        self._comm.Allreduce(slowest.copy(), slowest, op=load().MAX)
        seconds[name].append(float(slowest[0]))

    def _by_node(self) -> ByNode | None:
        """The algorithm by nodes, from the first long array on; None where ranks share no node, or no memory."""
        if self._of_nodes is None and self._map.many < len(self._map.nodes):
            self._of_nodes = ByNode(self._comm, self._map)
        return self._of_nodes if self._of_nodes and self._of_nodes.works else None


def _next(seconds: dict[str, list[float]]) -> str | None:
    """The algorithm to time next; None once each was timed often enough, or if there is nothing to choose."""
    name = min(seconds, key=lambda name: len(seconds[name]))
    return None if len(seconds) == 1 or len(seconds[name]) == TRIES else name


def _fastest(seconds: dict[str, list[float]]) -> str:
    return min(seconds, key=lambda name: min(seconds[name], default=0.0))


def _shared_buffers(node: Communicator) -> NDArray[np.uint8] | None:
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
