"""`mpifed scale JOB.toml --predict`: the time of a round on several numbers of ranks, and what limits the scaling.

Computation is measured in rehearsals, of one block and of all; communication follows from the cost model of
`mpifed.forecast.collectives`, for blocks placed as a run would place them. Strong: the job as it is. Weak: the number
of clients grows with the number of ranks, so that every rank has as many as one rank has in the job.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from mpifed.comm.accumulate import make_sum
from mpifed.comm.placement import Placement, place
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.record import Array, nbytes
from mpifed.core.round import Round
from mpifed.core.tables import Table
from mpifed.core.text import table_lines
from mpifed.forecast.collectives import SATURATED, Machine, Parts, broadcast_time, machine_here, sum_time
from mpifed.forecast.extrapolated import MeasuredCost
from mpifed.forecast.job import algorithm_of
from mpifed.forecast.rehearsal import load_libraries, rehearse_round, typical_round
from mpifed.forecast.synthetic_shards import Scenario, random_rows_like
from mpifed.job.job import read_table
from mpifed.job.participation import most_summed
from mpifed.job.sweep import points
from mpifed.results.text import human_bytes, human_seconds
from mpifed.run.environment import keep_freed_memory
from mpifed.shards import store

_TRIES = 3  # rehearsals, of which the fastest counts: other processes only slow them down
_BUDGET_S = 0.2  # of each rehearsal: the first rounds are slower than later ones
_ENOUGH = 0.5  # efficiency below which more ranks are not worthwhile
WHY = {
    "imbalance": "the busiest rank has more participating clients than the mean, or larger ones",
    "idle ranks": "there are more ranks than blocks of participating clients",
    "contention": "the ranks of a node share its memory and caches",
    "server": "the server's own computation, which is not distributed",
    "overhead": "the work of every rank in every exchange, whatever it hosts",
    "broadcast": "sending the broadcast to all ranks",
    "latency": "the number of steps of a sum over the ranks",
    "bandwidth": "the size of the sum",
}


class Work(NamedTuple):
    """Seconds of computation in a round: `overhead + each * load` on each rank, and that of the server."""

    overhead: float
    each: float  # for a load of 1, which is that of a mean client
    server: float  # computing broadcasts, opening sums, and updating the model
    messages: tuple[tuple[Exchange, int], ...]  # exchanges and the bytes of their broadcasts
    slowed: float = 1.0  # how much longer `together` ranks on one node take than one alone
    together: int = 1

    def slowed_by(self, node_ranks: int) -> float:
        """The same of any number of ranks on a node: in proportion, and no more beyond what was measured."""
        beside = max(self.together - 1, 1)
        return 1 + (self.slowed - 1) * min((node_ranks - 1) / beside, 1.0)


def scale(
    job_path: Path,
    changes: tuple[str, ...],
    ranks: Sequence[int],
    *,
    weak: bool = False,
    latency_s: float | None = None,
    bytes_per_s: float | None = None,
    ranks_per_node: int | None = None,
) -> Table:
    """The predicted time of a round of a job on each number of ranks.

    Raises UsageError or DataError as `mpifed run` would before its first round.

    Parameters
    ----------
    weak
        Whether the number of clients grows with the number of ranks.
    latency_s, bytes_per_s
        Latency and bandwidth between two nodes; by default those of `Machine`.
    ranks_per_node
        By default the number of cores here.
    """
    job = points(read_table(job_path, changes), str(job_path))[0].job
    data = store.open_federation(job.data.path)
    scenario = Scenario(job, data, algorithm_of(job, data), random_rows_like(data), 1)
    machine = machine_here(ranks_per_node or _cores(), latency_s, bytes_per_s)
    keep_freed_memory()
    load_libraries(job.privacy)
    with threadpool_limits(1):
        together = min(max(ranks), machine.ranks_per_node, _cores(), SATURATED)
        work = _work(scenario, together)
    counts = sorted(set(ranks) | {1})
    rows = [_row(scenario, work, machine, count, weak) for count in counts]
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
        "arithmetic": {
            "overhead_s": work.overhead,
            "client_s": work.each,
            "server_s": work.server,
            "slowed": work.slowed,
            "together": work.together,
        },
        "scaling": shown,
        **_ends(shown),
    }


def _cores() -> int:
    """The cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Typical(NamedTuple):
    """A typical round on a number of ranks."""

    placement: Placement
    now: Round
    busiest: int  # rank
    loads: Array  # [ranks]; 1 is the load of a mean client

    @property
    def hosts(self) -> int:
        """The number of ranks that host a participating client."""
        return int((self.loads > 0).sum())


def _typical(scenario: Scenario, ranks: int) -> Typical:
    job, data = scenario.job, scenario.data
    placement = place(data.counts, job.data.block, ranks, job.dedicated)
    now, busiest = typical_round(job, data, scenario.algorithm.exchanges, placement.hosts)
    # as in `typical_round`: even a client without rows costs something
    loads = np.bincount(placement.hosts, now.present * (1 + data.counts / data.counts.mean()) / 2, ranks)
    return Typical(placement, now, busiest, loads)


def _work(scenario: Scenario, together: int) -> Work:
    """The computation of a round, from rehearsals on one rank and on as many ranks as there are blocks.

    `together` processes then rehearse at once, as the ranks of a node do.
    """
    job, data = scenario.job, scenario.data
    costs: list[tuple[float, MeasuredCost]] = []
    blocks = -(-data.clients // job.data.block)
    for ranks in sorted({1, blocks + job.dedicated}):
        typical = _typical(scenario, ranks)
        round_args = typical.placement, typical.now, typical.busiest
        tries = [rehearse_round(scenario, *round_args, _BUDGET_S) for _ in range(_TRIES)]
        costs.append((float(typical.loads.max()), min(tries, key=lambda cost: cost.seconds)))
    (most, whole), (least, single) = costs[0], costs[-1]
    server = sum(cost["server_s"] for cost in whole.accounts.values())
    each = max(whole.hosting - single.hosting, 0.0) / (most - least) if most > least else 0.0
    each = each or max(whole.hosting - server, 0.0) / most
    overhead = max(single.hosting - server - each * least, 0.0)
    messages = tuple((exchange, nbytes(whole.broadcasts[exchange.name])) for exchange in scenario.algorithm.exchanges)
    work = Work(overhead, each, server + whole.opening, messages)
    return work._replace(slowed=_slowed(scenario, together), together=together) if together > 1 else work


def _slowed(scenario: Scenario, ranks: int) -> float:
    """How much more processor time a rehearsal takes while others run, one for each other rank of a node."""
    typical = _typical(scenario, ranks)

    def rehearse(scenario: Scenario) -> float:
        return rehearse_round(scenario, typical.placement, typical.now, typical.busiest, _BUDGET_S).processor

    def repeat(parent: int) -> None:
        own = scenario._replace(random_rows=random_rows_like(scenario.data))  # and not the parent's, in a common cache
        while os.getppid() == parent:
            rehearse(own)

    alone = median(rehearse(scenario) for _ in range(_TRIES))
    with _children(ranks - 1, repeat):
        together = median(rehearse(scenario) for _ in range(_TRIES))
    return max(together / max(alone, 1e-9), 1.0)


@contextmanager
def _children(count: int, act: Callable[[int], object]) -> Iterator[None]:
    """So many child processes do `act`, given the number of this process, until they are ended here."""
    parent, children = os.getpid(), list[int]()
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                try:
                    act(parent)
                finally:
                    os._exit(0)
            children.append(child)
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _row(scenario: Scenario, work: Work, machine: Machine, ranks: int, weak: bool) -> Table:
    job, data = scenario.job, scenario.data
    typical = _typical(scenario, 1 if weak else ranks)
    most, mean = float(typical.loads.max()), float(typical.loads.mean())
    hosts, clients = (ranks, ranks * data.clients) if weak else (typical.hosts, data.clients)
    broadcast, sums = Parts(0.0, 0.0), Parts(0.0, 0.0)
    for exchange, broadcast_bytes in work.messages:
        summed = most_summed(job, scenario.algorithm, exchange) * clients // data.clients
        adder = make_sum(exchange, summed, **job.sum_settings(scenario.algorithm.problem))
        broadcast = _plus(broadcast, broadcast_time(machine, ranks, broadcast_bytes))
        sums = _plus(sums, sum_time(machine, ranks, adder.message.nbytes, isinstance(exchange, ToClients)))
    alone, slowed = work.overhead + work.each * most, work.slowed_by(min(ranks, machine.ranks_per_node))
    arithmetic = alone * slowed
    idle = work.each * most * (1 - hosts / ranks) if hosts < ranks else 0.0
    lost = {
        "imbalance": max(work.each * (most - mean) - idle, 0.0),
        "idle ranks": idle,
        "contention": alone * (slowed - 1),
        "server": work.server * (1 - 1 / ranks) if not weak else 0.0,
        "overhead": work.overhead * (1 - 1 / ranks) if not weak else 0.0,
        "broadcast": broadcast.total,
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
        "broadcast_s": broadcast.total,
        "sum_s": sums.total,
        "server_s": work.server,
        "round_s": arithmetic + broadcast.total + sums.total + work.server,
        "lost_s": lost,
    }


def _plus(first: Parts, second: Parts) -> Parts:
    return Parts(first.latency + second.latency, first.bandwidth + second.bandwidth)


def _ends(rows: Sequence[Table]) -> Table:
    """The fastest number of ranks, the largest with an efficiency of at least one half, and what limits it."""
    fastest = min(rows, key=lambda row: row["round_s"])
    paying = [row for row in rows if row["efficiency"] >= _ENOUGH]
    beyond = next((row for row in rows if row["efficiency"] < _ENOUGH), None)
    return {
        "fastest_ranks": fastest["ranks"],
        "pays_up_to_ranks": max((row["ranks"] for row in paying), default=None),
        "stops_because": None if beyond is None else beyond["most_lost_to"],
    }


_HEADINGS = (
    "ranks", "nodes", "clients", "round", "arithmetic", "broadcast", "sum", "server", "speed-up", "efficiency",
    "most is lost to",
)  # fmt: skip


def _cells(row: Table) -> list[str]:
    """A row of the table, in the order of `_HEADINGS`."""
    seconds = (row[key] for key in ("round_s", "arithmetic_s", "broadcast_s", "sum_s", "server_s"))
    counts = [str(row[key]) for key in ("ranks", "nodes", "clients")]
    times = [human_seconds(value) if value else "0" for value in seconds]
    return [*counts, *times, f"{row['speed_up']:.4g}", f"{row['efficiency']:.1%}", row["most_lost_to"] or ""]


def scale_text(prediction: Table, width: int | None = None) -> str:
    """The prediction as text; where its table is wider than `width` characters, with a list for each row."""
    return "\n".join(_lines(prediction, width))


def _lines(prediction: Table, width: int | None) -> Iterator[str]:
    weak, machine, work = prediction["kind"] == "weak", prediction["machine"], prediction["arithmetic"]
    problem = "clients in proportion to ranks" if weak else "the job as it is"
    yield f"{prediction['job']}: PREDICTED rounds, {problem}"
    yield from table_lines([_HEADINGS, *map(_cells, prediction["scaling"])], range(len(_HEADINGS) - 1), width)
    if prediction["stops_because"] is not None:
        pays = prediction["pays_up_to_ranks"]
        text = "none of these numbers of ranks pays" if pays is None else f"more than {pays} ranks do not pay"
        yield f"{text}: most efficiency is lost to {prediction['stops_because']}, {WHY[prediction['stops_because']]}"
    if not weak and prediction["fastest_ranks"] != prediction["scaling"][-1]["ranks"]:
        yield f"fastest on {prediction['fastest_ranks']} ranks"
    yield (
        f"rehearsed here: {human_seconds(work['client_s'])} per participating client, "
        f"{human_seconds(work['overhead_s'])} per rank, {human_seconds(work['server_s'])} on the server"
    )
    if work["together"] > 1:
        yield f"{work['together']} ranks at once on this machine: {work['slowed']:.2f} times as long"
    rates = [human_bytes(machine[key]) for key in ("bytes_per_s", "copied_bytes_per_s")]
    yield (
        f"modelled: {machine['ranks_per_node']} ranks per node, {human_seconds(machine['latency_s'])} and {rates[0]}/s "
        f"between nodes; memory is copied at {rates[1]}/s"
    )
    if any(row["nodes"] > 1 for row in prediction["scaling"]):
        yield "every rank has a core of its own, if need be on further nodes: ranks that share a core are not predicted"
    yield "left out: files, checkpoints, evaluation, and traffic of other jobs"
