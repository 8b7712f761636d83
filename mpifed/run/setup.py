"""From a job to an aggregator that is ready for the first round: data opened, clients placed, states initialised."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.comm.aggregator import Aggregator
from mpifed.comm.channel import Recorder
from mpifed.comm.placement import Hosted, place
from mpifed.comm.places import OF_ALL_ROWS
from mpifed.comm.transport import Transport, library, takes_device_arrays
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.device import Device, Host
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, Measure, Problem
from mpifed.core.holdings import Cells, Holdings, Members
from mpifed.core.record import Array, Record
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round, new_key
from mpifed.core.state_check import Specs, check_started
from mpifed.core.states import ClientStates
from mpifed.run.calibration import settle, settled_before
from mpifed.run.config import Job
from mpifed.run.fit import with_noise
from mpifed.run.ledger_file import Header
from mpifed.run.own_classes import check_own_classes
from mpifed.run.participation import first_rounds, is_secret, is_secure, most_summed
from mpifed.run.shelf import Shelf
from mpifed.run.staged import staged
from mpifed.run.together import Result as Result
from mpifed.run.together import together as together
from mpifed.shards import store
from mpifed.shards.hosted import hosted_blocks
from mpifed.shards.statistics import target_scale

_KIND = {True: "classes", False: "real-valued targets"}


class Ready(NamedTuple):
    """Everything that a run needs; of this rank."""

    algorithm: Algorithm
    data: store.Federation
    aggregator: Aggregator
    server: Record  # None on ranks but 0
    clients: ClientStates
    specs: Specs  # of the server's state
    test: Block | None  # on rank 0
    key: int | None = None  # of who takes part and leaves, where nobody may know it; on all ranks, new in each process
    notes: tuple[str, ...] = ()  # what could not be tried of the user's classes; on all ranks


def problem_of(job: Job, data: store.Federation) -> Problem:
    """What is public about the job's task."""
    objective = job.make_objective()
    if objective.classifies != bool(data.classes):
        loss = f', loss = "{job.model["loss"]}"' if "loss" in job.model else ""
        task = "regression" if data.classes else "classification"
        raise UsageError(
            f'[model] name = "{job.model["name"]}"{loss}: is for {_KIND[objective.classifies]}, and {job.data.path} '
            f"holds {_KIND[bool(data.classes)]}; choose another model or loss, or make the data with --task {task}"
        )
    outputs = data.classes or 1
    if wrong := objective.check(outputs):
        raise UsageError("\n".join(wrong))
    return Problem(
        objective, data.split, data.counts, data.samples, data.features, outputs, job.compute.dtype,
        job.make_minimize(), job.make_constraints(), job.record.evaluate_rows, regularizer=job.make_regularizer(),
        clients_per_round=job.participation.clients_per_round, privacy=job.privacy, **cells_of(data)._asdict(),
        target_scale=1.0 if job.privacy else target_scale(data.provenance.get("statistics", {})),
    )  # fmt: skip


def prepare(
    job: Job,
    transport: Transport,
    shelf: Shelf | None = None,
    header: Header | None = None,
    recorder: Recorder | None = None,
    check: bool = False,
) -> Ready:
    """Open the data, place the clients, and begin every state. Collective.

    What `shelf` holds of an earlier run is not opened again, and what is opened stays there for the next. The noise
    multiplier is that in the `header` of the ledger of an earlier part of the same run, if there is one, or computed on
    rank 0. A `recorder` takes down every message, those about keys first. With `check`, the user's own classes
    are tried.

    Raises
    ------
    UsageError, DataError
        on every rank, when job and data do not fit, a class is wrong or a shard is damaged.
    """
    shelf = shelf or Shelf()
    shelf.keep((job.data, job.compute, job.dedicated, transport.rank, transport.size))
    data = together(transport, lambda: shelf.take("data", lambda: store.open_federation(job.data.path)))
    if job.data.verify:
        together(transport, lambda: shelf.take("verified", data.verify_federation) if transport.rank == 0 else None)
    algorithm = together(transport, lambda: job.make_algorithm(problem_of(job, data)))
    secret = False
    if job.privacy is not None:
        algorithm, secret = _settled(job, algorithm, transport, header)
    placement = place(data.counts, job.data.block, transport.size, job.dedicated)
    hosted = placement.hosted(transport.rank)
    data = shelf.take("staged", lambda: staged(job.data, data, placement, transport))
    blocks = together(transport, lambda: shelf.take("blocks", lambda: _open_blocks(job, data, hosted)))
    compute = together(transport, lambda: shelf.take("device", lambda: device_of(job, transport)))
    notes = check_own_classes(job, algorithm.problem, transport, blocks, compute) if check else []
    aggregator = together(transport, lambda: _aggregator(job, algorithm, transport, blocks, compute))
    together(transport, lambda: aggregator.make_ready(all_exchanges(algorithm)))
    rounds = first_rounds(job, data.clients, algorithm.exchanges)
    together(transport, lambda: aggregator.check_rounds(algorithm.exchanges, rounds))
    together(transport, lambda: aggregator.record(recorder))
    aggregator.agree_on_keys()
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    server = together(transport, lambda: algorithm.start_server(everybody) if aggregator.serves else None)
    clients = ClientStates(
        len(blocks), lambda i: algorithm.start_clients(blocks[i], everybody), job.data.state_gib * 2**30
    )
    first, count = (lambda: clients[0], blocks.size(0)) if len(blocks) else (lambda: None, 0)
    specs = together(transport, lambda: check_started(job.algorithm["name"], server, first(), count))
    tests = aggregator.serves and job.record.evaluate_every > 0
    test = together(transport, lambda: shelf.take("test", lambda: _test_block(job, data)) if tests else None)
    key = transport.share(new_key() if aggregator.serves else None) if secret else None
    return Ready(algorithm, data, aggregator, server, clients, specs, test, key, tuple(notes))


def device_of(job: Job, transport: Transport) -> Device:
    """Where this rank's clients compute; UsageError where that is to be a device and there is none."""
    table = job.compute
    if table.device == "cpu" and table.mpi == "host":
        return Host()
    from mpifed.maths.device import open_device

    found = open_device(table.device, transport.node_rank, transport.node_size, table.memory_gib)
    if table.mpi == "device":
        if found.on_host:
            raise UsageError('[compute] mpi = "device": a rank has no device; set mpi = "host"')
        if transport.size > 1 and not takes_device_arrays():
            raise UsageError(
                f'[compute] mpi = "device": {library()} does not say that it takes arrays on a device; use a library '
                'built with CUDA (under Cray MPICH, export MPICH_GPU_SUPPORT_ENABLED=1), or set mpi = "host"'
            )
        found.aware = transport.size > 1
    return found


def _aggregator(job: Job, algorithm: Algorithm, transport: Transport, blocks: Roster, device: Device) -> Aggregator:
    problem = algorithm.problem
    return Aggregator(
        transport, blocks, problem.clients, **job.sum_settings(problem), by_blocks=job.by_blocks, cells=problem.cells,
        protection=job.protection(), device=device,
        summed={one.name: most_summed(job, algorithm, one) for one in all_exchanges(algorithm)},
        drawn=problem.clients_per_round if is_secret(job, algorithm) else None,
    )  # fmt: skip


def _settled(job: Job, algorithm: Algorithm, transport: Transport, header: Header | None) -> tuple[Algorithm, bool]:
    """The algorithm with its noise multiplier, and whether who takes part is secret. Collective."""

    def found() -> float:
        if transport.rank > 0:
            return 0.0
        return settle(job, algorithm) if header is None else settled_before(job, algorithm, header)

    multiplier = transport.share(together(transport, found))
    settled: Any = with_noise(algorithm, multiplier)
    secret = together(transport, lambda: is_secret(job, settled))
    return settled, secret and is_secure(job)


def cells_of(data: store.Federation) -> Cells:
    """Who holds which rows and columns."""

    def along(axis: str, length: int, which: Array) -> Holdings:
        return Holdings(length, which, Members(data.bounds[axis], lambda: data.members(axis)))

    rows, columns = data.holds.T
    return Cells(along("rows", data.samples, rows), along("columns", data.features, columns))


def all_exchanges(algorithm: Algorithm) -> list[Exchange]:
    """Of set-up, rounds and measures."""
    measured = [exchange for one in algorithm.measures for exchange in one.exchanges]
    return [*algorithm.setup, *algorithm.exchanges, *measured]


def measures_of(job: Job, algorithm: Algorithm) -> tuple[Measure, ...]:
    """What is measured over training data: nothing where only what is released is recorded."""
    return () if job.record.released_only else algorithm.measures


def measures_of_all_rows(job: Job, algorithm: Algorithm) -> Iterator[Measure]:
    """The same over all rows, where the job has only some measured; their exchanges have names of their own."""
    if algorithm.problem.measured_rows is None:
        yield from measures_of(job, algorithm)
        return
    one: Any = algorithm
    whole: Algorithm = dataclasses.replace(one, problem=dataclasses.replace(one.problem, measured_rows=None))
    for measure in measures_of(job, whole):
        renamed = tuple(dataclasses.replace(part, name=f"{part.name}{OF_ALL_ROWS}") for part in measure.exchanges)
        yield dataclasses.replace(measure, exchanges=renamed)


def _open_blocks(job: Job, data: store.Federation, hosted: Hosted) -> Roster:
    """The hosted shards: opened now if all are in every round, else when their clients first are."""
    clients = hosted.clients
    if clients and job.data.verify and job.data.stage is None:  # a copy was compared when it was made
        for number in range(clients[0] // data.pack, clients[-1] // data.pack + 1):
            data.verify(number)
    ahead = job.participation.clients_per_round is None
    return hosted_blocks(data, *hosted, job.compute.dtype, job.data.memory_gib * 2**30, ahead)


def _test_block(job: Job, data: store.Federation) -> Block | None:
    test = data.test_shard()
    return None if test is None else Block((test,), job.compute.dtype)
