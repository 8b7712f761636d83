"""`mpifed scale JOB.toml --predict`: what a round will take on so many ranks, where that stops to pay, and why.

Arithmetic is that of a rehearsal, of one block and of all; what the ranks say to each other is computed
(`mpifed.forecast.collectives`), for blocks that are placed as a run would place them. Strong: the job as it is. Weak:
as many clients more as there are ranks, so that every rank has what one has at first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpifed.comm.placement import Placement, place
from mpifed.comm.sums import make_sum
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.record import nbytes
from mpifed.core.round import Round
from mpifed.forecast.collectives import Machine, Parts, add_up, machine_here, tell
from mpifed.forecast.cost import Cost
from mpifed.forecast.job import algorithm_of
from mpifed.forecast.rehearsal import load_libraries, rehearse_round, typical_round
from mpifed.forecast.scenery import Stage, stock_like
from mpifed.run.config import read_table
from mpifed.run.memory import keep_freed_memory
from mpifed.run.participation import most_summed
from mpifed.run.sweep import points
from mpifed.shards import store

_TRIES = 3  # of a rehearsal: other processes only ever make it slower
_BUDGET_S = 0.2  # of each: the first rounds are slower than all that follow
_ENOUGH = 0.5  # efficiency from which on more ranks do not pay
WHY = {
    "imbalance": "some rank has more to do than the mean one: more participating clients, or larger ones",
    "idle ranks": "there are more ranks than blocks of participating clients",
    "server": "the server's own step, which no rank shares",
    "overhead": "what every rank does in every exchange, whatever it hosts",
    "broadcast": "sending the broadcast to all ranks",
    "latency": "the number of steps of a sum over the ranks",
    "bandwidth": "the length of the sum",
}


class Work(NamedTuple):
    """Seconds of a rank in a round, whose arithmetic is `overhead + each * load`."""

    overhead: float
    each: float  # for a load of 1: that of a mean client
    server: float  # asking, absorbing, and opening sums
    messages: tuple[tuple[Exchange, int], ...]  # exchanges, and the bytes of their broadcasts


def scale(
    job_path: Path,
    changes: tuple[str, ...],
    ranks: Sequence[int],
    *,
    weak: bool = False,
    latency_s: float | None = None,
    bytes_per_s: float | None = None,
    ranks_per_node: int | None = None,
) -> dict[str, Any]:
    """The predicted rounds of a job on so many ranks each.

    Raises
    ------
    UsageError, DataError
        as `mpifed run` would before its first round.
    """
    job = points(read_table(job_path, changes), str(job_path))[0].job
    data = store.open_federation(job.data.path)
    stage = Stage(job, data, algorithm_of(job, data), stock_like(data), 1)
    machine = machine_here(ranks_per_node or os.cpu_count() or 1, latency_s, bytes_per_s)
    keep_freed_memory()
    load_libraries(job.privacy)
    with threadpool_limits(1):
        work = _work(stage)
    counts = sorted(set(ranks) | {1})
    rows = [_row(stage, work, machine, count, weak) for count in counts]
    for row in rows:
        ideal = rows[0]["round_s"] if weak else rows[0]["round_s"] / row["ranks"]
        row["speed_up"] = rows[0]["round_s"] / row["round_s"] * (row["ranks"] if weak else 1)
        row["efficiency"] = ideal / row["round_s"]
        row["most_lost_to"] = max(row["lost_s"], key=row["lost_s"].get) if row["ranks"] > 1 else None
    shown = [row for row in rows if row["ranks"] in ranks]
    return {
        "job": job.name,
        "kind": "weak" if weak else "strong",
        "predicted": True,
        "clients": data.clients,
        "clients_per_round": job.participation.clients_per_round or data.clients,
        "blocks": -(-data.clients // job.data.block),
        "machine": machine._asdict(),
        "arithmetic": {"overhead_s": work.overhead, "client_s": work.each, "server_s": work.server},
        "scaling": shown,
        **_ends(shown),
    }


class Typical(NamedTuple):
    """A typical round on so many ranks."""

    placement: Placement
    now: Round
    busiest: int  # rank
    loads: NDArray[Any]  # [ranks] of each; 1 is that of a mean client

    @property
    def hosts(self) -> int:
        """Ranks that host anybody who is present."""
        return int((self.loads > 0).sum())


def _typical(stage: Stage, ranks: int) -> Typical:
    job, data = stage.job, stage.data
    placement = place(data.counts, job.data.block, ranks, job.dedicated)
    now, busiest = typical_round(job, data, stage.algorithm.exchanges, placement.hosts)
    # as in `typical_round`: clients cost something whether they are small or large
    loads = np.bincount(placement.hosts, now.present * (1 + data.counts / data.counts.mean()) / 2, ranks)
    return Typical(placement, now, busiest, loads)


def _work(stage: Stage) -> Work:
    """From a round on one rank, and one on as many ranks as there are blocks."""
    job, data = stage.job, stage.data
    costs: list[tuple[float, Cost]] = []
    blocks = -(-data.clients // job.data.block)
    for ranks in sorted({1, blocks + job.dedicated}):
        found = _typical(stage, ranks)
        given = found.placement, found.now, found.busiest
        tries = [rehearse_round(stage, *given, _BUDGET_S) for _ in range(_TRIES)]
        costs.append((float(found.loads.max()), min(tries, key=lambda cost: cost.seconds)))
    (most, whole), (least, single) = costs[0], costs[-1]
    server = sum(cost["server_s"] for cost in whole.accounts.values())
    each = max(whole.hosting - single.hosting, 0.0) / (most - least) if most > least else 0.0
    each = each or max(whole.hosting - server, 0.0) / most
    overhead = max(single.hosting - server - each * least, 0.0)
    messages = tuple((one, nbytes(whole.questions[one.name])) for one in stage.algorithm.exchanges)
    return Work(overhead, each, server + whole.opening, messages)


def _row(stage: Stage, work: Work, machine: Machine, ranks: int, weak: bool) -> dict[str, Any]:
    """What a round takes on so many ranks."""
    job, data = stage.job, stage.data
    found = _typical(stage, 1 if weak else ranks)
    most, mean = float(found.loads.max()), float(found.loads.mean())
    hosts, clients = (ranks, ranks * data.clients) if weak else (found.hosts, data.clients)
    broadcast, sums = Parts(0.0, 0.0), Parts(0.0, 0.0)
    for exchange, told in work.messages:
        most_answers = most_summed(job, stage.algorithm, exchange) * clients // data.clients
        adder = make_sum(exchange, most_answers, **job.sum_settings())
        broadcast = _plus(broadcast, tell(machine, ranks, told))
        sums = _plus(sums, add_up(machine, ranks, adder.message.nbytes, isinstance(exchange, ToClients)))
    arithmetic = work.overhead + work.each * most
    idle = work.each * most * (1 - hosts / ranks) if hosts < ranks else 0.0
    lost = {
        "imbalance": max(work.each * (most - mean) - idle, 0.0),
        "idle ranks": idle,
        "server": work.server * (1 - 1 / ranks) if not weak else 0.0,
        "overhead": work.overhead * (1 - 1 / ranks) if not weak else 0.0,
        "broadcast": broadcast.together,
        "latency": sums.latency,
        "bandwidth": sums.bandwidth,
    }
    return {
        "ranks": ranks,
        "nodes": machine.nodes(ranks),
        "clients": clients,
        "ranks_with_clients": hosts,
        "imbalance": most / mean if mean else 1.0,
        "arithmetic_s": arithmetic,
        "broadcast_s": broadcast.together,
        "sum_s": sums.together,
        "server_s": work.server,
        "round_s": arithmetic + broadcast.together + sums.together + work.server,
        "lost_s": lost,
    }


def _plus(one: Parts, other: Parts) -> Parts:
    return Parts(one.latency + other.latency, one.bandwidth + other.bandwidth)


def _ends(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fastest of these numbers of ranks, and the largest that is still half as fast as it could be, and why."""
    fastest = min(rows, key=lambda row: row["round_s"])
    paying = [row for row in rows if row["efficiency"] >= _ENOUGH]
    beyond = next((row for row in rows if row["efficiency"] < _ENOUGH), None)
    return {
        "fastest_ranks": fastest["ranks"],
        "pays_up_to_ranks": max((row["ranks"] for row in paying), default=None),
        "stops_because": None if beyond is None else beyond["most_lost_to"],
    }
