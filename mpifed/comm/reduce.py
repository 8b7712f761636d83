"""Sums of long integers that stand in memory which the ranks of a node share: nothing is copied. All are collective.

Each rank adds a part of its node's messages where they are; then the leaders of the nodes add these sums over the
network. Bits are those of the library's own call, which was the faster one under Open MPI, and where ranks outnumber
the processors of their node.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.mpi import LONG, Array, Comm, Communicator, Intracomm, add_over, is_mpich
from mpifed.core.errors import UsageError

REDUCE = "MPIFED_REDUCE"  # "direct": the library's call; "nodes": shared memory, also where that may be slower
_MOST = 2**26  # bytes of a message that stands in shared memory
_LINE = 64  # bytes of a cache line
_SHARED_MEMORY = "/dev/shm"


class SharedMessage:
    """A message [m] of each rank of a node, and one for the sum, in `memory` [ranks + 1, bytes] that they share."""

    def __init__(self, comm: Intracomm, memory: NDArray[np.uint8], length: int) -> None:
        self._comm = comm
        *self._messages, self._total = memory.view(np.int64)[:, :length]
        self.mine: Array = self._messages[comm.node_rank]  # this rank's

    def reduce(self, everywhere: bool) -> Array | None:
        """The sum over all ranks, on rank 0 or everywhere, until the next one; messages stay as they are."""
        comm, node, total = self._comm, self._comm.node, self._total
        here = slice(*(total.size * part // node.size for part in (node.rank, node.rank + 1)))
        node.Barrier()
        first, *others = (message[here] for message in self._messages)
        np.add(first, others[0] if others else 0, out=total[here])
        for other in others[1:]:
            total[here] += other
        node.Barrier()
        if comm.nodes > 1:
            if node.rank == 0:
                add_over(comm.leaders, total, everywhere)
            if everywhere:
                node.Barrier()
        return total if everywhere or comm.rank == 0 else None


def shared_message(comm: Comm, length: int) -> SharedMessage | None:
    """A message of `length` integers to be summed without copies; None where the library's call is to be used."""
    nbytes, choice = 8 * length, os.environ.get(REDUCE, "nodes if faster")
    if choice not in ("nodes if faster", "nodes", "direct"):
        raise UsageError(f"{REDUCE}={choice}: known are direct, nodes")
    if comm.nodes == comm.size or not LONG <= nbytes <= _MOST or choice == "direct":
        return None
    assert isinstance(comm, Intracomm)
    memory = None
    # ranks that wait for each other on one processor would take longer than the library
    if choice == "nodes" or (is_mpich() and comm.node_size <= (os.cpu_count() or 1)):
        memory = _shared_memory(comm.node, comm.node_size + 1, -(-nbytes // _LINE) * _LINE)
    shared = all(comm.allgather(memory is not None))
    return SharedMessage(comm, memory, length) if shared and memory is not None else None


def _shared_memory(node: Communicator, rows: int, nbytes: int) -> NDArray[np.uint8] | None:
    """[rows, nbytes] shared by all ranks of a node, or None where that fails on this rank. Collective over the node.

    The file has a name for no longer than all ranks take to open it, empty, so that nothing is left behind if they are
    killed. A rank takes the memory of every `node.size`-th row from its own on, so that it lies beside its own core.
    """
    number, path = -1, ""
    with suppress(OSError):
        if node.rank == 0:
            room = os.statvfs(_SHARED_MEMORY)
            # the MPI library and other programs need some, too; 0 blocks: there is no limit
            if not room.f_blocks or 2 * rows * nbytes <= room.f_bavail * room.f_frsize:
                number, path = tempfile.mkstemp(prefix="mpifed-", dir=_SHARED_MEMORY)
    path = node.bcast(path)
    with suppress(OSError):
        number = os.open(path, os.O_RDWR) if node.rank else number
    node.Barrier()
    if node.rank == 0 and path:
        os.unlink(path)
    taken = False
    with suppress(OSError):  # too little memory raises here, instead of SIGBUS later
        for row in range(node.rank, rows, node.size):
            os.posix_fallocate(number, row * nbytes, nbytes)
        taken = True
    node.Barrier()
    memory = None
    with suppress(OSError, ValueError):  # shorter than that, where another rank found no memory
        if taken:
            memory = np.frombuffer(mmap.mmap(number, rows * nbytes), dtype=np.uint8).reshape(rows, nbytes)
        os.close(number)
    return memory
