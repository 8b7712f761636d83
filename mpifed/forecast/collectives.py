"""The time to broadcast and to sum n bytes over P ranks: the usual cost model of collective calls.

A message of n bytes between two nodes takes latency + n / bandwidth (R. W. Hockney, *The communication challenge for
MPP*, 1994). From it follow the times of the algorithms among which MPI libraries choose; a call takes the least of them
(R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005): a tree of
ceil(log2 N) steps with the whole array, or recursive halving, 2 ceil(log2 N) steps in which each value is sent twice.
Before and after that, the ranks of a node sum in shared memory, as `mpifed.comm.allreduce` does: each value is written
once and read once, and from `SATURATED` ranks on the ranks share the memory bandwidth.
"""

from __future__ import annotations

from math import ceil, log2
from timeit import timeit
from typing import NamedTuple

import numpy as np

SATURATED = 8  # ranks whose copies use the whole memory bandwidth of a node; an assumption


class Machine(NamedTuple):
    """The parameters of the cost model: between two nodes, one way, and within a node."""

    ranks_per_node: int
    latency_s: float = 2e-6  # of MPI on current 100 Gbit/s networks
    bytes_per_s: float = 12.5e9
    step_s: float = 1e-6  # time a rank waits for another on its node
    call_s: float = 1e-5  # a collective call from Python
    copied_bytes_per_s: float = 5e9  # by one core
    added_bytes_per_s: float = 5e9  # by one core

    def nodes(self, ranks: int) -> int:
        return ceil(ranks / self.ranks_per_node)


class Parts(NamedTuple):
    """Seconds of a collective call."""

    latency: float  # network latency, waiting within a node, and the call itself
    bandwidth: float  # network transfer, copies in memory, and additions

    @property
    def total(self) -> float:
        return self.latency + self.bandwidth


def machine_here(ranks_per_node: int, latency_s: float | None, bytes_per_s: float | None) -> Machine:
    """The cost model with the memory bandwidth of this machine, measured now on one core."""
    source, target = np.ones(2**17, dtype=np.int64), np.empty(2**17, dtype=np.int64)  # the size of a chunk of a sum
    copied, added = (
        source.nbytes / min(timeit(act, number=1) for _ in range(20))
        for act in (lambda: np.copyto(target, source), lambda: np.add(target, source, target))
    )
    options = {"latency_s": latency_s, "bytes_per_s": bytes_per_s}
    options_given = {name: value for name, value in options.items() if value is not None}
    return Machine(ranks_per_node, copied_bytes_per_s=copied, added_bytes_per_s=added, **options_given)  # type: ignore[arg-type]


def broadcast_time(machine: Machine, ranks: int, nbytes: int) -> Parts:
    if ranks == 1:
        return Parts(0.0, 0.0)
    node_ranks, nodes = min(ranks, machine.ranks_per_node), machine.nodes(ranks)
    # into shared memory and out of it
    copy_s = nbytes / machine.copied_bytes_per_s * _shared(node_ranks) * 2 * (node_ranks > 1)
    latency, bandwidth = _steps(node_ranks) * machine.step_s + machine.call_s, copy_s
    if nodes > 1:
        tree = Parts(_steps(nodes) * machine.latency_s, _steps(nodes) * nbytes / machine.bytes_per_s)
        scatter = Parts(
            (_steps(nodes) + nodes - 1) * machine.latency_s, 2 * (nodes - 1) / nodes * nbytes / machine.bytes_per_s
        )
        best = min(tree, scatter, key=lambda parts: parts.total)
        latency, bandwidth = latency + best.latency, bandwidth + best.bandwidth
    return Parts(latency, bandwidth)


def sum_time(machine: Machine, ranks: int, nbytes: int, everywhere: bool) -> Parts:
    """The time of a sum of `nbytes` over all ranks, whose result goes to rank 0 or `everywhere`."""
    if ranks == 1:
        return Parts(0.0, 0.0)
    node_ranks, nodes = min(ranks, machine.ranks_per_node), machine.nodes(ranks)
    barriers = 2 + (nodes > 1 and everywhere)
    latency = (barriers * _steps(node_ranks) * machine.step_s if node_ranks > 1 else 0.0) + machine.call_s
    copy, add = nbytes / machine.copied_bytes_per_s, nbytes / machine.added_bytes_per_s
    bandwidth = (copy + (node_ranks - 1) / node_ranks * add) * _shared(node_ranks) * (node_ranks > 1)
    bandwidth += copy * (_shared(node_ranks) if everywhere else 1.0)  # the sum, to the ranks that use it
    if nodes > 1:
        travel, steps = nbytes / machine.bytes_per_s, _steps(nodes)
        directions = 2 if everywhere else 1
        tree = Parts(directions * steps * machine.latency_s, steps * (directions * travel + add))
        share = (nodes - 1) / nodes
        halving = Parts(2 * steps * machine.latency_s, share * (2 * travel + add))
        best = min(tree, halving, key=lambda parts: parts.total)
        latency, bandwidth = latency + best.latency, bandwidth + best.bandwidth
    return Parts(latency, bandwidth)


def _steps(count: int) -> int:
    return ceil(log2(count)) if count > 1 else 0


def _shared(ranks: int) -> float:
    """The factor by which a copy is slower while `ranks` ranks copy at once."""
    return max(1.0, ranks / SATURATED)
