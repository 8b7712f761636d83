"""Sums of arrays over the ranks of an MPI communicator, and which algorithm sums long ones. All are collective.

Each takes this rank's array [m] and the array [m] for the sum: on rank 0 alone (None elsewhere), or on every rank. The
two may be the same array: then MPI reduces in place, without a copy, and the array is overwritten on every rank.

direct: MPI_Reduce or MPI_Allreduce of the library, piece after piece.
everywhere: MPI_Allreduce, though rank 0 alone needs the sum; MPICH 5.0 takes a third of the time of its MPI_Reduce.
nodes: hierarchical; the ranks of a node sum in shared memory, each a part of the array; then the leaders of the nodes
reduce these sums over the network. An array that stands in shared memory already, `SharedArrays`, is not copied for it.

Sums of integers have the same bits with each, so the first sums of long arrays are timed, and the faster algorithm of
the library's and nodes is used from then on. The bits of floats differ, so for them it is the library's, unless the
user sets another: results should not depend on the load of a machine. `benchmarks/reductions.py` compares all.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeAlias, TypeVar

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
_MOST = 2**26  # bytes of an array that stands in shared memory; longer ones are copied there piece by piece
_LINE = 64  # bytes of a cache line
_SHARED_MEMORY = "/dev/shm"

Array = np.ndarray
T = TypeVar("T")
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


class NodeRanks:
    """The ranks of each node, and the leaders of the nodes. The constructor is collective."""

    def __init__(self, comm: Communicator, nodes: NodeMap) -> None:
        rank = comm.Get_rank()
        self.is_leader, self.is_root, self.nodes = nodes.rank_within(rank) == 0, rank == 0, nodes.many
        self._comm, self.node = comm, comm.Split(nodes.nodes[rank], rank)
        # among the leaders; the communicator of the other ranks is not used
        self.leaders = Direct(comm.Split(0 if self.is_leader else 1, rank))

    def shared(self, rows: int, nbytes: int) -> NDArray[np.uint8] | None:
        """[rows, nbytes] that the ranks of a node share, zeros; None, on all ranks alike, where that fails.

        Collective.
        """
        memory = _shared_memory(self.node, rows, nbytes)
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


class ByNode:
    """Reduction within nodes by shared memory, then among their leaders. The constructor is collective.

    An array passes through two buffers of shared memory in turn (double buffering): no rank writes into a buffer that
    the leader may still read, and the leaders communicate while the nodes sum the next piece.
    """

    def __init__(self, ranks: NodeRanks) -> None:
        self._ranks, self._turn = ranks, 0
        self._memory = ranks.shared(2 * ranks.node.size, _BUFFER)
        self.works = self._memory is not None  # alike on all ranks

    def reduce(self, array: Array, total: Array | None) -> None:
        ranks = self._ranks
        root_total = total if ranks.is_root else None
        for piece in pieces(array, _BUFFER):
            node_sum = self._within(array[piece])
            if ranks.is_leader and ranks.nodes > 1:
                ranks.leaders.reduce(node_sum, None if root_total is None else root_total[piece])
            elif root_total is not None:
                np.copyto(root_total[piece], node_sum)

    def reduce_all(self, array: Array, total: Array) -> None:
        ranks = self._ranks
        for piece in pieces(array, _BUFFER):
            node_sum = self._within(array[piece])
            if ranks.nodes > 1:
                if ranks.is_leader:
                    ranks.leaders.reduce_all(node_sum, total[piece])
                    np.copyto(node_sum, total[piece])
                ranks.node.Barrier()
            np.copyto(total[piece], node_sum)

    def _within(self, array: Array) -> Array:
        """The sum over the node's ranks, in shared memory."""
        assert self._memory is not None
        buffers = self._memory.reshape(2, -1, _BUFFER)[self._turn]
        shared: Array = buffers[:, : array.nbytes].view(array.dtype)  # [ranks of the node, m]
        self._turn = 1 - self._turn
        np.copyto(shared[self._ranks.node.rank], array)
        node_sum: Array = shared[0]
        self._ranks.add(list(shared), node_sum)
        return node_sum


class SharedArrays:
    """An array [m] of each rank in memory that the ranks of its node share, and one for the sum: nothing is copied.

    `memory` has a row for each, of at least their bytes. The constructor is not collective, the sums are; which
    algorithm makes them is the business of `fastest`.
    """

    def __init__(
        self, fastest: FastestReduction, ranks: NodeRanks, memory: NDArray[np.uint8], length: int, dtype: np.dtype
    ) -> None:
        self._fastest, self._ranks = fastest, ranks
        rows = memory[:, : length * dtype.itemsize].view(dtype)
        self._arrays: list[Array] = list(rows[:-1])
        self._total: Array = rows[-1]
        self.mine: Array = rows[ranks.node.rank]  # this rank's

    def reduce(self, piece: slice) -> None:
        """Sum a piece of all ranks' arrays into rank 0's; that of other ranks may be overwritten."""
        mine = self.mine[piece]

        def by_nodes() -> None:
            arrays = [array[piece] for array in self._arrays]
            self._ranks.add(arrays, arrays[0])
            if self._ranks.is_leader and self._ranks.nodes > 1:
                self._ranks.leaders.reduce(arrays[0], arrays[0])

        library = self._fastest.library
        self._fastest.of(
            "reduce in place", mine.nbytes, {library.name: lambda: library.reduce(mine, mine), NODES: by_nodes}
        )

    def reduce_all(self) -> Array:
        """The sum over all ranks, for every rank to read before the next one; arrays may be overwritten."""
        library, ranks = self._fastest.library, self._ranks

        def by_nodes() -> Array:
            ranks.add(self._arrays, self._total)
            if ranks.nodes > 1:
                if ranks.is_leader:
                    ranks.leaders.reduce_all(self._total, self._total)
                ranks.node.Barrier()
            return self._total

        def by_library() -> Array:
            library.reduce_all(self.mine, self.mine)
            return self.mine

        return self._fastest.of("reduce_all in place", self.mine.nbytes, {library.name: by_library, NODES: by_nodes})


class FastestReduction:
    """The `Reduction` of a transport: which algorithm sums an array follows from its length, its dtype and timings.

    `requested` is in `ALGORITHMS`, or "auto".
    """

    def __init__(self, comm: Communicator, nodes: NodeMap, requested: str = AUTO) -> None:
        if requested not in (AUTO, *ALGORITHMS):
            raise UsageError(f"MPIFED_REDUCE={requested}: known are {', '.join((AUTO, *ALGORITHMS))}")
        self._comm, self._map, self._requested = comm, nodes, requested
        self._direct = self.library = Direct(comm)  # the library's of short and of long arrays
        if requested == EVERYWHERE or (requested == AUTO and is_mpich()):
            self.library = Everywhere(comm)
        self._node_ranks: NodeRanks | None = None
        self._of_nodes: ByNode | None = None
        self._seconds: dict[tuple[str, int], dict[str, list[float]]] = {}  # by call and bytes, then algorithm

    def reduce(self, array: Array, total: Array | None) -> None:
        self._by_length("reduce", array, lambda algorithm: algorithm.reduce(array, total))

    def reduce_all(self, array: Array, total: Array) -> None:
        self._by_length("reduce_all", array, lambda algorithm: algorithm.reduce_all(array, total))

    def shared(self, length: int, dtype: np.dtype) -> SharedArrays | None:
        """Arrays that are summed without copies; None where they are short, or too long to stand in shared memory.

        Collective.
        """
        nbytes = length * dtype.itemsize
        if self._requested not in (AUTO, NODES) or not LONG <= nbytes <= _MOST or not self._share_nodes:
            return None
        ranks = self._ranks()
        memory = ranks.shared(ranks.node.size + 1, -(-nbytes // _LINE) * _LINE)
        return None if memory is None else SharedArrays(self, ranks, memory, length, dtype)

    def chosen(self) -> Timings:
        """By call and length: the algorithm chosen (None before the last try), and the seconds of each."""
        return {
            f"{call}, {nbytes} bytes": {
                "way": None if _next(seconds) else _fastest(seconds),
                "seconds": {name: min(times) for name, times in seconds.items() if times},
            }
            for (call, nbytes), seconds in self._seconds.items()
        }

    def _by_length(self, call: str, array: Array, act: Callable[[Reduction], None]) -> None:
        """Sum by the algorithm for this array, or by the one to time next."""
        if self._comm.size == 1 or array.nbytes < LONG:
            act(self._direct)
            return
        if self._requested != NODES and (self._requested != AUTO or array.dtype.kind == "f"):
            act(self.library)
            return
        algorithms: dict[str, Reduction] = {self.library.name: self.library}
        if by_node := self._by_node():
            algorithms[NODES] = by_node
        self.of(call, array.nbytes, {name: partial(act, algorithm) for name, algorithm in algorithms.items()})

    def of(self, call: str, nbytes: int, acts: dict[str, Callable[[], T]]) -> T:
        """What the fastest of `acts` gives, or the one to time next; by the name of its algorithm. Collective."""
        of_library = acts[self.library.name]
        if self._requested == NODES:
            return acts.get(NODES, of_library)()
        if nbytes < LONG:
            return of_library()
        seconds = self._seconds.setdefault((call, nbytes), {name: [] for name in acts})
        name = _next(seconds)
        if name is None:
            return acts[_fastest(seconds)]()
        self._comm.Barrier()
        start = time.perf_counter()
        result = acts[name]()
        slowest = np.array([time.perf_counter() - start])
        self._comm.Allreduce(slowest.copy(), slowest, op=load().MAX)
        seconds[name].append(float(slowest[0]))
        return result

    @property
    def _share_nodes(self) -> bool:
        """Whether any two ranks share a node."""
        return self._map.many < len(self._map.nodes)

    def _ranks(self) -> NodeRanks:
        """The ranks by nodes, from the first long array on."""
        if self._node_ranks is None:
            self._node_ranks = NodeRanks(self._comm, self._map)
        return self._node_ranks

    def _by_node(self) -> ByNode | None:
        """The algorithm by nodes, from the first long array on; None where ranks share no node, or no memory."""
        if self._of_nodes is None and self._share_nodes:
            self._of_nodes = ByNode(self._ranks())
        return self._of_nodes if self._of_nodes and self._of_nodes.works else None


def _next(seconds: dict[str, list[float]]) -> str | None:
    """The algorithm to time next; None once each was timed often enough, or if there is nothing to choose."""
    name = min(seconds, key=lambda name: len(seconds[name]))
    return None if len(seconds) == 1 or len(seconds[name]) == TRIES else name


def _fastest(seconds: dict[str, list[float]]) -> str:
    return min(seconds, key=lambda name: min(seconds[name], default=0.0))


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
