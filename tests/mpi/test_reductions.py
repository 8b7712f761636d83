"""Sums of long arrays by the library and in shared memory, on 1 to 4 ranks, and on ranks that play several nodes."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import numpy as np
import pytest
from sub_worlds import comms

from mpifed.comm import allreduce
from mpifed.comm.allreduce import LONG, NODES, NodeRanks
from mpifed.comm.node_map import NodeMap
from mpifed.comm.transport import MPITransport
from mpifed.core.errors import UsageError

pytestmark = pytest.mark.mpi(min_size=2)


def maps(size: int) -> list[NodeMap]:
    """All on one node, one on each, two on each, and nodes that are not side by side."""
    return [NodeMap.even(size, size), NodeMap.even(size, 1), NodeMap.even(size, 2), NodeMap.of([0, 1, 0, 1][:size])]


def part(rank: int, size: int, dtype: str) -> Any:
    """What a rank contributes: whole numbers, whose sums are exact in every dtype, and differ by rank and place."""
    return ((np.arange(size) * 7 + 13 * rank) % 101 - 50).astype(dtype)


@pytest.mark.parametrize("long", [1, LONG])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_the_library_gives_the_sum(long: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "LONG", long)
    monkeypatch.setattr(allreduce, "PIECE", 4096)  # several pieces
    for comm in comms():
        for nodes in maps(comm.size):
            transport = MPITransport(comm, nodes)
            for size in (0, 1, 3, 1000, 4096, 9001):
                mine, total = part(comm.rank, size, dtype), np.full(size, 77, dtype=dtype)
                expected = sum(part(rank, size, dtype) for rank in range(comm.size))
                transport.reduce(mine, total if comm.rank == 0 else None)
                np.testing.assert_array_equal(total, expected if comm.rank == 0 else 77)
                transport.reduce_all(mine, total)
                np.testing.assert_array_equal(total, expected)
                np.testing.assert_array_equal(mine, part(comm.rank, size, dtype))
                transport.reduce(mine, mine)  # in place
                if comm.rank == 0:
                    np.testing.assert_array_equal(mine, expected)
                mine = part(comm.rank, size, dtype)
                transport.reduce_all(mine, mine)
                np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sums_of_shared_arrays(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn after turn, while ranks are late; what was read before stays what it was."""
    monkeypatch.setattr(allreduce, "LONG", 1)
    for comm in comms():
        for nodes in maps(comm.size):
            transport = MPITransport(comm, nodes, NODES)
            for size in (1, 3, 1000, 9001):
                arrays = transport.shared(size, np.dtype(dtype))
                assert (arrays is None) == (nodes.many == comm.size)
                for turn in range(10 if arrays is not None else 0):
                    assert arrays is not None
                    if (turn + comm.rank) % 3 == 0:
                        time.sleep(0.0005)
                    arrays.mine[:] = part(comm.rank + turn, size, dtype)
                    expected = sum(part(rank + turn, size, dtype) for rank in range(comm.size))
                    if turn % 2:
                        np.testing.assert_array_equal(arrays.reduce_all(), expected)
                        continue
                    first, rest = slice(0, size // 3), slice(size // 3, size)
                    arrays.reduce(rest)
                    kept = arrays.mine[first].copy()
                    arrays.reduce(first)
                    if comm.rank == 0:
                        np.testing.assert_array_equal(arrays.mine, expected)
                        np.testing.assert_array_equal(kept, part(turn, size, dtype)[first])


def test_without_shared_memory_the_library_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    monkeypatch.setattr(allreduce, "_SHARED_MEMORY", "/nowhere" if MPI.COMM_WORLD.rank == 0 else "/dev/shm")
    for comm in comms():
        transport = MPITransport(comm, NodeMap.even(comm.size, comm.size), "nodes")
        mine, total = np.arange(LONG), np.empty(LONG, dtype=np.int64)
        transport.reduce_all(mine, total)
        np.testing.assert_array_equal(total, comm.size * mine)
        assert transport.shared(LONG, np.dtype("int64")) is None


@pytest.mark.parametrize(("share", "blocks", "taken"), [(0.4, 5000, True), (0.6, 5000, False), (2.0, 0, True)])
def test_no_more_than_half_of_the_shared_memory_is_taken(
    share: float, blocks: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without a limit says 0 blocks."""
    room = os.statvfs("/dev/shm")
    little = os.statvfs_result((room.f_bsize, 4096, blocks, 5000, 2500, *tuple(room)[5:]))  # 10 MB are free
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    for comm in comms():
        if comm.size > 1:
            length = int(share * 2500 * 4096 / 8 / (comm.size + 1))
            arrays = MPITransport(comm, NodeMap.even(comm.size, comm.size), NODES).shared(length, np.dtype("int64"))
            assert (arrays is not None) == taken


def test_memory_that_is_full_for_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    def full(*arguments: int) -> None:
        if MPI.COMM_WORLD.rank == 1:
            raise OSError(errno.ENOSPC, "full")
        taking(*arguments)

    taking = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", full)
    for comm in comms():
        nodes = NodeMap.even(comm.size, comm.size)
        if comm.size > 1:
            assert MPITransport(comm, nodes, NODES).shared(LONG, np.dtype("int64")) is None


def test_a_map_of_nodes_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that see another /dev/shm, as ranks on another machine do, are no neighbours."""
    from mpi4py import MPI

    opened = os.open

    def elsewhere(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if MPI.COMM_WORLD.rank == 1 and "mpifed-" in str(path) and flags == os.O_RDWR:
            raise FileNotFoundError(path)
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", elsewhere)
    for comm in comms():
        memory = NodeRanks(comm, NodeMap.even(comm.size, comm.size)).shared(comm.size, 4096)
        assert (memory is not None) == (comm.size == 1)


def test_nodes_are_those_of_shared_memory() -> None:
    for comm in comms():
        transport = MPITransport(comm)
        assert (transport.node_rank, transport.node_size) == (comm.rank, comm.size)  # mpiexec started them all here
        transport.barrier()
        apart = MPITransport(comm, NodeMap.of([0, 1, 0, 1][: comm.size]))
        assert apart.node_rank == comm.rank // 2
        assert apart.node_size == len([rank for rank in range(comm.size) if rank % 2 == comm.rank % 2])


def test_an_unknown_algorithm_is_refused() -> None:
    for comm in comms():
        with pytest.raises(UsageError, match="MPIFED_REDUCE=fast: known are auto, direct, nodes"):
            MPITransport(comm, reduction="fast")
