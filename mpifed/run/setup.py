"""From a job to a federation that is ready to play: data opened, clients placed, states begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mpifed.comm.channel import Recorder
from mpifed.comm.federation import Federation
from mpifed.comm.placement import place
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Algorithm, Exchange, Measure, Problem, States
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.record import Array, Record
from mpifed.core.round import SETUP, Round, new_key
from mpifed.run.calibration import settle
from mpifed.run.config import Job
from mpifed.run.fit import with_noise
from mpifed.run.participation import is_secure
from mpifed.run.shelf import Shelf
from mpifed.shards import store
from mpifed.shards.layout import span

Result = TypeVar("Result")
_KIND = {True: "classes", False: "real-valued targets"}


class Ready(NamedTuple):
    """Everything that a run needs; of this rank."""

    algorithm: Algorithm
    federation: Federation
    server: Record  # None on ranks but 0
    clients: States
    test: Block | None  # on rank 0
    key: int | None = None  # of who takes part, where nobody may know it; on all ranks, new in each process


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
        job.make_minimize(), job.make_constraints(), job.record.rows, regularizer=job.make_regularizer(),
        clients_per_round=job.participation.clients_per_round, privacy=job.privacy, **cells_of(data)._asdict(),
    )  # fmt: skip


def prepare(
    job: Job,
    transport: Transport,
    shelf: Shelf | None = None,
    noise_multiplier: float | None = None,
    recorder: Recorder | None = None,
) -> Ready:
    """Open the data, place the clients, and begin every state. Collective.

    What `shelf` holds of an earlier run is not opened again, and what is opened stays there for the next. The noise
    multiplier is that of an earlier part of the same run, if there is one, or computed on rank 0. A `recorder` takes
    down every message, those about keys first.

    Raises
    ------
    UsageError, DataError
        on every rank, when job and data do not fit or a shard is damaged.
    """
    shelf = shelf or Shelf()
    shelf.keep((job.data, job.compute, job.dedicated, transport.rank, transport.size))
    data = together(transport, lambda: shelf.take("data", lambda: store.open_federation(job.data.path)))
    algorithm = together(transport, lambda: job.make_algorithm(problem_of(job, data)))
    secret = False
    if job.privacy is not None:
        algorithm, secret = _settled(job, algorithm, transport, noise_multiplier)
    placement = place(data.counts, job.data.block, transport.size, job.dedicated)
    hosted = placement.of(transport.rank)
    blocks = together(transport, lambda: shelf.take("blocks", lambda: _open_blocks(job, data, hosted)))
    federation = together(transport, lambda: _federation(job, algorithm.problem, transport, blocks))
    together(transport, lambda: federation.make_ready(all_exchanges(algorithm)))
    together(transport, lambda: federation.record(recorder))
    federation.agree_on_keys()
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    server = together(transport, lambda: algorithm.start_server(everybody) if federation.serves else None)
    clients = together(transport, lambda: [algorithm.start_clients(block, everybody) for block in blocks])
    tests = federation.serves and job.record.every > 0
    test = together(transport, lambda: shelf.take("test", lambda: _test_block(job, data)) if tests else None)
    key = transport.share(new_key() if federation.serves else None) if secret else None
    return Ready(algorithm, federation, server, clients, test, key)


def _federation(job: Job, problem: Problem, transport: Transport, blocks: list[Block]) -> Federation:
    return Federation(
        transport, blocks, problem.clients, **job.sum_settings(), cells=problem.cells, protection=job.protection()
    )


def _settled(job: Job, algorithm: Algorithm, transport: Transport, multiplier: float | None) -> tuple[Algorithm, bool]:
    """The algorithm with its noise multiplier, and whether who takes part is secret. Collective."""
    if multiplier is None:
        found = together(transport, lambda: settle(job, algorithm) if transport.rank == 0 else 0.0)
        multiplier = transport.share(found)
    settled: Any = with_noise(algorithm, multiplier)
    claimed = together(transport, lambda: settled.released(0).by_chance)
    return settled, claimed and is_secure(job)


def cells_of(data: store.Federation) -> Cells:
    """Who holds which rows and columns."""

    def along(axis: str, length: int, which: Array) -> Holdings:
        return Holdings(length, which, tuple(span(members) for members in data.groups(axis)))

    rows, columns = data.holds.T
    return Cells(along("rows", data.samples, rows), along("columns", data.features, columns))


def all_exchanges(algorithm: Algorithm) -> list[Exchange]:
    """Of set-up, rounds and measures."""
    measured = [exchange for one in algorithm.measures for exchange in one.exchanges]
    return [*algorithm.setup, *algorithm.exchanges, *measured]


def measures_of(job: Job, algorithm: Algorithm) -> tuple[Measure, ...]:
    """What is measured over training data: nothing where only what is released is recorded."""
    return () if job.record.released_only else algorithm.measures


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
