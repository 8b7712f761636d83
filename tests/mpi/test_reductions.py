"""Every algorithm that sums long arrays, on worlds of 1 to 4 ranks, and on ranks that play several nodes."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sub_worlds import comms

from mpifed.comm import allreduce
from mpifed.comm.allreduce import (
    ALGORITHMS,
    AUTO,
    DIRECT,
    EVERYWHERE,
    LONG,
    NODES,
    TRIES,
    ByNode,
    FastestReduction,
    NodeRanks,
)
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


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_every_algorithm_gives_the_sum(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allreduce, "LONG", 1)
    monkeypatch.setattr(allreduce, "_BUFFER", 4096)  # several pieces, and more than the two buffers
    for comm in comms():
        for nodes in maps(comm.size):
            transport = MPITransport(comm, nodes, name)
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


def test_many_in_a_row_while_ranks_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes into shared memory that another still reads."""
    monkeypatch.setattr(allreduce, "LONG", 1)
    for comm in comms():
        for nodes in maps(comm.size)[::2]:
            transport = MPITransport(comm, nodes, "nodes")
            for turn in range(40):
                if (turn + comm.rank) % 3 == 0:
                    time.sleep(0.0005)
                mine, total = np.arange(500) * (comm.rank + turn), np.zeros(500, dtype=np.int64)
                expected = np.arange(500) * sum(rank + turn for rank in range(comm.size))
                if turn % 2:
                    transport.reduce_all(mine, total)
                else:
                    transport.reduce(mine, total if comm.rank == 0 else None)
                if turn % 2 or comm.rank == 0:
                    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("name", [AUTO, NODES])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sums_of_shared_arrays(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn after turn, by each algorithm, while ranks are late; what was read before stays what it was."""
    monkeypatch.setattr(allreduce, "LONG", 1)
    for comm in comms():
        for nodes in maps(comm.size):
            transport = MPITransport(comm, nodes, name)
            for size in (1, 3, 1000, 9001):
                arrays = transport.shared(size, np.dtype(dtype))
                assert (arrays is None) == (nodes.many == comm.size)
                for turn in range(2 * TRIES + 4 if arrays is not None else 0):
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


def test_shared_arrays_beside_copies_that_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of one length, of which some are in place and others are not: each has timings of its own."""
    for comm in comms():
        transport = MPITransport(comm, NodeMap.even(comm.size, comm.size))
        arrays = transport.shared(LONG // 8, np.dtype("int64"))
        with monkeypatch.context() as no_room:
            no_room.setattr(allreduce, "_SHARED_MEMORY", "/nowhere")
            total = np.empty(LONG // 8, np.int64)
            for turn in range(2 * TRIES + 1):
                transport.reduce_all(np.full(LONG // 8, turn), total)
                assert (total == comm.size * turn).all()
                if arrays is not None:
                    arrays.mine[:] = turn
                    assert (arrays.reduce_all() == comm.size * turn).all()


def test_arrays_are_shared_where_that_is_of_use() -> None:
    for comm in comms():
        of_one, apart = NodeMap.even(comm.size, comm.size), NodeMap.even(comm.size, 1)
        for nodes, name, length, shares in (
            (of_one, AUTO, LONG // 8, comm.size > 1), (of_one, NODES, LONG // 8, comm.size > 1),
            (of_one, AUTO, LONG // 8 - 1, False), (of_one, DIRECT, LONG, False), (of_one, EVERYWHERE, LONG, False),
            (apart, AUTO, LONG, False), (of_one, AUTO, 2**23 + 1, False),
        ):  # fmt: skip
            arrays = MPITransport(comm, nodes, name).shared(length, np.dtype("int64"))
            assert (arrays is not None) == shares
            if arrays is not None:
                assert len(arrays.mine) == length and not arrays.mine.any()


@pytest.mark.parametrize("call", ["reduce", "reduce_all"])
def test_the_fastest_algorithm_stays_and_is_the_same_on_all_ranks(call: str) -> None:
    for comm in comms():
        transport = MPITransport(comm, NodeMap.even(comm.size, 2))
        mine, total = np.arange(LONG // 8), np.empty(LONG // 8, dtype=np.int64)
        hears = call == "reduce_all" or comm.rank == 0
        for turn in range(2 * TRIES + 2):
            total[:] = 0
            getattr(transport, call)(mine, total if hears else None)
            np.testing.assert_array_equal(total, comm.size * mine * hears)
            if comm.size > 1:
                (timed,) = transport.reduction.chosen().values()
                assert (timed["way"] is None) == (turn < 2 * TRIES - 1)
        chosen = transport.reduction.chosen()
        if comm.size == 1:
            assert not chosen
            continue
        (timed,) = chosen.values()
        of_library, by_nodes = timed["seconds"]
        assert (of_library in (DIRECT, EVERYWHERE), by_nodes) == (True, NODES)
        assert timed["way"] == min(timed["seconds"], key=timed["seconds"].__getitem__)
        assert len(set(map(str, comm.allgather(chosen)))) == 1


def test_nothing_is_tried_with_floats_and_short_arrays() -> None:
    for comm in comms():
        for name in (AUTO, DIRECT, EVERYWHERE):
            reduction = FastestReduction(comm, NodeMap.even(comm.size, comm.size), name)
            for array in (np.ones(LONG, dtype=np.float32), np.ones(10, dtype=np.int64)):
                total = np.zeros_like(array)
                reduction.reduce(array, total if comm.rank == 0 else None)
                np.testing.assert_array_equal(total, comm.size if comm.rank == 0 else 0)
                reduction.reduce_all(array, total)
                np.testing.assert_array_equal(total, comm.size)
            assert not reduction.chosen()


def test_without_shared_memory_the_library_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    from mpi4py import MPI

    monkeypatch.setattr(allreduce, "_SHARED_MEMORY", "/nowhere" if MPI.COMM_WORLD.rank == 0 else "/dev/shm")
    for comm in comms():
        assert not ByNode(NodeRanks(comm, NodeMap.even(comm.size, comm.size))).works
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
            arrays = MPITransport(comm, NodeMap.even(comm.size, comm.size)).shared(length, np.dtype("int64"))
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
            assert MPITransport(comm, nodes).shared(LONG, np.dtype("int64")) is None


def test_the_file_has_a_name_only_while_all_open_it(monkeypatch: pytest.MonkeyPatch, mpi_tmp_path: Path) -> None:
    """A rank that is late, or whose memory takes long, leaves nothing behind when all are killed then."""
    monkeypatch.setattr(allreduce, "_SHARED_MEMORY", str(mpi_tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", lambda number, start, nbytes: named.extend(mpi_tmp_path.iterdir()))
    for comm in comms():
        named: list[Path] = []
        if comm.rank == comm.size - 1:
            time.sleep(0.05)
        NodeRanks(comm, NodeMap.even(comm.size, comm.size)).shared(comm.size, 4096)
        assert not named


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
        works = ByNode(NodeRanks(comm, NodeMap.even(comm.size, comm.size))).works
        assert works == (comm.size == 1)


def test_nothing_stays_in_shared_memory(monkeypatch: pytest.MonkeyPatch, mpi_tmp_path: Path) -> None:

    monkeypatch.setattr(allreduce, "_SHARED_MEMORY", str(mpi_tmp_path))
    for comm in comms():
        kept = ByNode(NodeRanks(comm, NodeMap.even(comm.size, comm.size)))
        assert kept.works
        assert not list(mpi_tmp_path.iterdir())


def test_nodes_are_those_of_shared_memory() -> None:
    for comm in comms():
        transport = MPITransport(comm)
        assert transport.nodes == [0] * comm.size  # mpiexec started them all here
        assert (transport.node_rank, transport.node_size) == (comm.rank, comm.size)
        transport.barrier()
        apart = MPITransport(comm, NodeMap.of([0, 1, 0, 1][: comm.size]))
        assert apart.node_rank == comm.rank // 2
        assert apart.node_size == len([rank for rank in range(comm.size) if rank % 2 == comm.rank % 2])


def test_an_unknown_algorithm_is_refused() -> None:
    for comm in comms():
        with pytest.raises(UsageError, match="MPIFED_REDUCE=fast: known are auto, direct, everywhere, nodes"):
            MPITransport(comm, reduction="fast")
