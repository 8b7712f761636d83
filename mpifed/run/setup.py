"""From a job to a federation that is ready to play: data opened, clients placed, states begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from mpifed.comm.federation import Federation
from mpifed.comm.placement import place
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Algorithm, Exchange, Problem, States
from mpifed.core.record import Record
from mpifed.core.round import SETUP, Round
from mpifed.run.config import Job
from mpifed.run.shelf import Shelf
from mpifed.shards import store

Result = TypeVar("Result")
_KIND = {True: "classes", False: "real-valued targets"}


class Ready(NamedTuple):
    """Everything that a run needs; of this rank."""

    algorithm: Algorithm
    federation: Federation
    server: Record  # None on ranks but 0
    clients: States
    test: Block | None  # on rank 0


def together(transport: Transport, work: Callable[[], Result]) -> Result:
    """The result of `work` on this rank, unless it failed on any: then the same error on all. Collective."""
    error: Exception | None = None
    try:
        result = work()
    except Exception as failed:  # whatever it is, all ranks must hear of it
        error = failed
    transport.agree(error)
    return result


def problem_of(job: Job, data: store.Federation) -> Problem:
    """What is public about the job's task."""
    objective = job.make_objective()
    if objective.classifies != bool(data.classes):
        raise UsageError(
            f'[objective] name = "{job.objective["name"]}": is for {_KIND[objective.classifies]}, and {job.data.path} '
            f"holds {_KIND[bool(data.classes)]}; choose another objective, or other data"
        )
    outputs = data.classes or 1
    wrong: list[str] = getattr(objective, "check", lambda outputs: [])(outputs)
    if wrong:
        raise UsageError("\n".join(wrong))
    return Problem(
        objective, data.split, data.counts, data.samples, data.features, outputs, job.compute.dtype,
        job.make_minimize(), job.make_constraints(), job.record.rows,
    )  # fmt: skip


def prepare(job: Job, transport: Transport, shelf: Shelf | None = None) -> Ready:
    """Open the data, place the clients, begin every state, and play the algorithm's set-up. Collective.

    What `shelf` holds of an earlier run is not opened again, and what is opened stays there for the next.

    Raises
    ------
    UsageError, DataError
        on every rank, when job and data do not fit or a shard is damaged.
    """
    shelf = shelf or Shelf()
    shelf.keep((job.data, job.compute, job.server, transport.rank, transport.size))
    data = together(transport, lambda: shelf.take("data", lambda: store.open_federation(job.data.path)))
    algorithm = together(transport, lambda: job.make_algorithm(problem_of(job, data)))
    placement = place(data.counts, job.data.block, transport.size, job.server.dedicated)
    hosted = placement.of(transport.rank)
    blocks = together(transport, lambda: shelf.take("blocks", lambda: _open_blocks(job, data, hosted)))
    federation = Federation(
        transport, blocks, data.clients, **job.sum_settings(), widths=data.widths, features=data.features
    )
    together(transport, lambda: federation.check_names(all_exchanges(algorithm)))
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    server = together(transport, lambda: algorithm.start_server(everybody) if federation.serves else None)
    clients = together(transport, lambda: [algorithm.start_clients(block, everybody) for block in blocks])
    tests = federation.serves and job.record.every > 0
    test = together(transport, lambda: shelf.take("test", lambda: _test_block(job, data)) if tests else None)
    return Ready(algorithm, federation, server, clients, test)


def all_exchanges(algorithm: Algorithm) -> list[Exchange]:
    """Of set-up, rounds and measures."""
    measured = [exchange for one in algorithm.measures for exchange in one.exchanges]
    return [*algorithm.setup, *algorithm.exchanges, *measured]


def _open_blocks(job: Job, data: store.Federation, hosted: list[range]) -> list[Block]:
    """The hosted shards, in memory as far as the job's limit goes."""
    room = job.data.memory_gib * 2**30
    if job.data.verify:
        for file in sorted({client // data.pack for clients in hosted for client in clients}):
            data.verify(file)
    blocks = []
    for clients in hosted:
        shards = []
        for client in clients:
            fits = data.shard_nbytes(client) <= room
            room -= data.shard_nbytes(client) if fits else 0
            shards.append(data.shard(client, in_memory=fits))
        blocks.append(Block(tuple(shards), job.compute.dtype))
    return blocks


def _test_block(job: Job, data: store.Federation) -> Block | None:
    test = data.test_shard()
    return None if test is None else Block((test,), job.compute.dtype)


def round_of(job: Job, clients: int, index: int) -> Round:
    """Round `index`, with its keyed choice of who takes part."""
    some = job.participation.clients_per_round
    now = Round(index, job.seed, np.ones(clients, dtype=bool))
    if some is None or some == clients:
        return now
    chosen = now.rng("participation").choice(clients, some, replace=False)
    now.present[:] = False
    now.present[chosen] = True
    return now
