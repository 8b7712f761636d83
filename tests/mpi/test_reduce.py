"""Sums that stand in memory which the ranks of a node share, on 1 to 4 ranks, and on ranks that play several nodes."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

import numpy as np
import pytest
from sub_worlds import comms

from mpifed.comm import reduce
from mpifed.comm.mpi import LONG, Intracomm
from mpifed.comm.reduce import shared_message
from mpifed.core.errors import UsageError

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(autouse=True)
def by_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under Open MPI, and on more ranks than cores, too."""
    monkeypatch.setenv("MPIFED_REDUCE", "nodes")


def part(rank: int, size: int) -> Any:
    """What a rank contributes: whole numbers that differ by rank and place."""
    return (np.arange(size) * 7 + 13 * rank) % 101 - 50


@pytest.mark.parametrize("per_node", [1, 2, 3, 4])
def test_sums_of_messages_in_shared_memory(per_node: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn after turn, while ranks are late; what was read before stays what it was."""
    monkeypatch.setattr(reduce, "LONG", 1)
    for raw in comms():
        comm = Intracomm(raw, per_node)
        assert (comm.node_rank, comm.nodes) == (comm.rank % per_node, -(-comm.size // per_node))
        for size in (1, 3, 1000, 9001):
            message = shared_message(comm, size)
            assert (message is None) == (comm.nodes == comm.size)
            for turn in range(10 if message is not None else 0):
                assert message is not None
                if (turn + comm.rank) % 3 == 0:
                    time.sleep(0.0005)
                message.mine[:] = part(comm.rank + turn, size)
                total = message.reduce(everywhere=turn % 2 == 1)
                assert (total is not None) == (turn % 2 == 1 or comm.rank == 0)
                if total is not None:
                    np.testing.assert_array_equal(total, sum(part(rank + turn, size) for rank in range(comm.size)))


def test_nodes_need_not_be_side_by_side() -> None:
    """Nodes as MPI finds them; and the ranks of one node are those with odd numbers."""
    for raw in comms():
        comm = Intracomm(raw)
        assert (comm.node_rank, comm.node_size, comm.nodes) == (comm.rank, comm.size, 1)  # mpiexec started them here
        comm.node = raw.Split(comm.rank % 2, comm.rank)
        comm.node_rank, comm.node_size, comm.nodes = comm.node.rank, comm.node.size, min(comm.size, 2)
        comm.leaders = raw.Split(min(comm.node_rank, 1), comm.rank)
        if (message := shared_message(comm, LONG)) is not None:
            message.mine[:] = comm.rank + 1
            np.testing.assert_array_equal(message.reduce(True), comm.size * (comm.size + 1) // 2)


def fails(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trouble with shared memory, which may be on one rank alone."""
    from mpi4py import MPI

    rank, opened, taken = MPI.COMM_WORLD.rank, os.open, os.posix_fallocate

    def elsewhere(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if rank == 1 and "mpifed-" in str(path) and flags == os.O_RDWR:
            raise FileNotFoundError(path)
        return opened(path, flags, *more, **named)

    def full(*arguments: int) -> None:
        if rank == 1:
            raise OSError(errno.ENOSPC, "full")
        taken(*arguments)

    if where == "no such folder":
        monkeypatch.setattr(reduce, "_SHARED_MEMORY", "/nowhere" if rank == 0 else "/dev/shm")
    elif where == "another machine":
        monkeypatch.setattr(os, "open", elsewhere)
    elif where == "full":
        monkeypatch.setattr(os, "posix_fallocate", full)


@pytest.mark.parametrize("where", ["nowhere", "no such folder", "another machine", "full"])
def test_without_shared_memory_the_library_sums(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(where, monkeypatch)
    opened = len(os.listdir("/proc/self/fd"))
    for raw in comms(2):
        assert (shared_message(Intracomm(raw), LONG) is None) == (where != "nowhere")
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize(("share", "blocks", "taken"), [(0.4, 5000, True), (0.6, 5000, False), (2.0, 0, True)])
def test_no_more_than_half_of_the_shared_memory_is_taken(
    share: float, blocks: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without a limit says 0 blocks."""
    room = os.statvfs("/dev/shm")
    little = os.statvfs_result((room.f_bsize, 4096, blocks, 5000, 2500, *tuple(room)[5:]))  # 10 MB are free
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    for raw in comms(2):
        length = int(share * 2500 * 4096 / 8 / (raw.size + 1))
        assert (shared_message(Intracomm(raw), length) is not None) == taken


def test_what_is_short_or_unwanted_does_not_stand_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for raw in comms(2):
        comm = Intracomm(raw)
        assert shared_message(comm, LONG // 8 - 1) is None
        assert shared_message(comm, 2**23 + 1) is None
        for choice, error in (("direct", None), ("fast", "MPIFED_REDUCE=fast: known are direct, nodes")):
            with monkeypatch.context() as changed:
                changed.setenv("MPIFED_REDUCE", choice)
                if error is None:
                    assert shared_message(comm, LONG) is None
                else:
                    with pytest.raises(UsageError, match=error):
                        shared_message(comm, LONG)
