"""What it takes to tell and to add up n bytes over P ranks: the usual cost model of collective calls.

A message of n bytes between two nodes takes latency + n / bandwidth (R. W. Hockney, *The communication challenge for
MPP*, 1994). From it follow the times of the algorithms that MPI libraries choose among; a call takes the least of them
(R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005): up a tree,
ceil(log2 N) steps with the whole array, or by halves, 2 ceil(log2 N) steps in which each value travels twice. Before
and after that, the ranks of a node add up in the memory that they share, as `mpifed.comm.reductions` does: each value
is written once and read once, and from `SATURATED` ranks on they share what the memory gives.
"""

from __future__ import annotations

from math import ceil, log2
from timeit import timeit
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

SATURATED = 8  # ranks whose copies take all that a node's memory gives; an assumption


class Machine(NamedTuple):
    """What the times depend on; one way, between two nodes, and within one."""

    ranks_per_node: int
    latency_s: float = 2e-6  # of 100 Gbit/s networks of today's machines, and MPI on them
    bytes_per_s: float = 12.5e9
    step_s: float = 1e-6  # a rank waits so long for another of its node
    call_s: float = 1e-5  # a collective call from Python
    copied_bytes_per_s: float = 5e9  # by one core
    added_bytes_per_s: float = 5e9

    def nodes(self, ranks: int) -> int:
        """How many nodes so many ranks fill."""
        return ceil(ranks / self.ranks_per_node)


class Parts(NamedTuple):
    """Seconds of a call."""

    latency: float  # of the network, the waiting within a node, and the calls
    bandwidth: float  # of the network, the copies in memory, and the additions

    @property
    def together(self) -> float:
        """In all."""
        return self.latency + self.bandwidth


def _copy(target: Array, source: Array) -> None:
    np.copyto(target, source)


def _add(target: Array, source: Array) -> None:
    target += source


def machine_here(ranks_per_node: int, latency_s: float | None, bytes_per_s: float | None) -> Machine:
    """With the speed of this machine's memory, as a core finds it now."""
    source, target = np.ones(2**17, dtype=np.int64), np.empty(2**17, dtype=np.int64)  # as large as a piece of a sum
    copied, added = (
        source.nbytes / min(timeit(lambda act=act: act(target, source), number=1) for _ in range(20))  # type: ignore[misc]
        for act in (_copy, _add)
    )
    given = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    own = {name: value for name, value in given.items() if value is not None}
    return Machine(ranks_per_node, copied_bytes_per_s=copied, added_bytes_per_s=added, **own)  # type: ignore[arg-type]


def tell(machine: Machine, ranks: int, nbytes: int) -> Parts:
    """To send a broadcast to every rank."""
    if ranks == 1:
        return Parts(0.0, 0.0)
    near, nodes = min(ranks, machine.ranks_per_node), machine.nodes(ranks)
    copies = nbytes / machine.copied_bytes_per_s * _shared(near) * 2 * (near > 1)  # into what is shared, and out of it
    latency, bandwidth = _steps(near) * machine.step_s + machine.call_s, copies
    if nodes > 1:
        tree = Parts(_steps(nodes) * machine.latency_s, _steps(nodes) * nbytes / machine.bytes_per_s)
        parts = Parts(
            (_steps(nodes) + nodes - 1) * machine.latency_s, 2 * (nodes - 1) / nodes * nbytes / machine.bytes_per_s
        )
        best = min(tree, parts, key=lambda one: one.together)
        latency, bandwidth = latency + best.latency, bandwidth + best.bandwidth
    return Parts(latency, bandwidth)


def add_up(machine: Machine, ranks: int, nbytes: int, everywhere: bool) -> Parts:
    """To add up a message over all ranks, for rank 0 or for all."""
    if ranks == 1:
        return Parts(0.0, 0.0)
    near, nodes = min(ranks, machine.ranks_per_node), machine.nodes(ranks)
    meetings = 2 + (nodes > 1 and everywhere)
    latency = (meetings * _steps(near) * machine.step_s if near > 1 else 0.0) + machine.call_s
    copy, add = nbytes / machine.copied_bytes_per_s, nbytes / machine.added_bytes_per_s
    bandwidth = (copy + (near - 1) / near * add) * _shared(near) * (near > 1)
    bandwidth += copy * (_shared(near) if everywhere else 1.0)  # the sum, to where it is used
    if nodes > 1:
        travel, steps = nbytes / machine.bytes_per_s, _steps(nodes)
        twice = 2 if everywhere else 1
        tree = Parts(twice * steps * machine.latency_s, steps * (twice * travel + add))
        share = (nodes - 1) / nodes
        halves = Parts(2 * steps * machine.latency_s, share * (2 * travel + add))
        best = min(tree, halves, key=lambda one: one.together)
        latency, bandwidth = latency + best.latency, bandwidth + best.bandwidth
    return Parts(latency, bandwidth)


def _steps(count: int) -> int:
    return ceil(log2(count)) if count > 1 else 0


def _shared(ranks: int) -> float:
    """How much slower a copy is than that of one core, while so many copy."""
    return max(1.0, ranks / SATURATED)
