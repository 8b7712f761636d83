"""Worlds of fewer ranks, on those of the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.comm.mpi import Intracomm


def comms(least: int = 1) -> Iterator[Any]:
    """Communicators of `least` ranks, one more ... and all, on the ranks that belong to each."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    for size in range(least, world.size + 1):
        comm = world.Split(0 if world.rank < size else MPI.UNDEFINED, world.rank)
        if comm != MPI.COMM_NULL:
            yield comm
            comm.Free()
        world.Barrier()


def worlds(least: int = 1) -> Iterator[Intracomm]:
    """The transports of `comms`."""
    return map(Intracomm, comms(least))
