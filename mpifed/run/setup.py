"""From a job to ranks that are ready for the first round: data opened, clients placed, states initialised."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.functions import CHUNK
from mpifed.algorithms.measure import Measure
from mpifed.comm.mpi import Comm, agreed
from mpifed.comm.placement import place
from mpifed.comm.rounds import Ranks
from mpifed.comm.states import ClientStates
from mpifed.core.device import Device
from mpifed.core.errors import DataError, UsageError
from mpifed.core.exchange import Exchange, ServerRecord
from mpifed.core.holdings import Holdings, Members
from mpifed.core.record import Array, bare_leaves, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.data import store
from mpifed.data.block import Block
from mpifed.data.memory import room
from mpifed.data.shards import common_shard, hosted_blocks
from mpifed.job.combinations import device_pays, wrong_data
from mpifed.job.job import Job
from mpifed.job.participation import arithmetic, first_rounds, forget, is_secret, is_secure, left_out, steps_in_time
from mpifed.job.schema import COMPRESSION
from mpifed.maths.objectives import Objective
from mpifed.maths.parameters import Parameters
from mpifed.maths.problem import Problem
from mpifed.run.scoring import TestRows
from mpifed.run.state_check import Specs, check_state
from mpifed.text import shown

if TYPE_CHECKING:
    from mpifed.privacy.ledger_file import Header

_PRODUCTS = 2**19  # of a row's number with a parameter, in a local step of a block


class Ready(NamedTuple):
    """What a run needs for its first round; of this rank."""

    job: Job  # with a number for `[data] block`
    algorithm: Algorithm
    data: store.Federation
    ranks: Ranks
    server: ServerRecord
    clients: ClientStates
    specs: Specs  # of the server's state
    tests: TestRows
    everybody: Round  # in which all clients participate: for set-up and evaluation
    key: bytes | None = None  # draws the participating clients where they are secret; on all ranks, new in each process


def problem_of(job: Job, data: store.Federation, given: Mapping[str, Array] | None = None) -> Problem:
    """The public description of the job's task; `given`: the arrays of `[model] start`, where they were read before."""
    objective = job.make_objective().of_shape(data.shape)
    outputs = data.classes or data.targets
    forget()
    regularizer = job.make_regularizer()
    if wrong := wrong_data(job, objective, regularizer, data) or objective.check(data.features, outputs):
        raise UsageError("\n".join(wrong))
    start = None
    if arrays := start_arrays(job) if given is None else given:
        start = first_model(job, arrays, _some_model(job, objective, data))
    part, network = job.participation, job.simulated_network
    present = job.per_round or data.clients
    if network is not None and network.unsteady:
        present = min(present, data.clients - 1)  # at most, in some rounds
    return Problem(
        objective, data.split, data.counts, data.samples, data.features, outputs, job.compute.dtype,
        job.make_minimize(), job.make_constraints(), job.record.evaluate_rows, regularizer=regularizer,
        clients_per_round=present - left_out(part, present), privacy=job.privacy,
        rows=held(data, "rows"), columns=held(data, "columns"), start=start,
        target_scale=1.0 if job.privacy else data.target_scale, names=data.client_names(),
        stragglers=0.0 if part.drop_stragglers else part.stragglers or 0.0,
        compression=COMPRESSION.make(job.compression) if job.compression else None,
        steps_in_time=steps_in_time(job, data.clients),
        versions=0 if job.asynchrony is None else job.asynchrony.max_staleness + 1,
    )  # fmt: skip


def block_of(job: Job, data: store.Federation) -> int:
    """The clients in a block; where `[data] block` is auto, a number of rows, model and clients alone.

    So many clients that a local step takes about as long as its calls of Python, and its arrays stay in the cache; half
    of all at most, which two ranks can share. One alone where two of a block would seldom participate together.
    """
    if isinstance(job.data.block, int):
        return job.data.block
    parameters, batch = 0, job.algorithm.get("batch_size")
    with suppress(Exception):  # of a model that does not fit, or of the user's own: what follows says so
        model = _some_model(job, job.make_objective().of_shape(data.shape), data)
        parameters = sum(leaf.size for leaf in bare_leaves(model))
    rows = np.minimum(data.counts, batch) if isinstance(batch, int) else data.counts
    products = int(rows @ data.widths) * parameters // data.features  # in a step of all clients
    block = min(_PRODUCTS * data.clients // max(products, 1), -(-data.clients // 2))
    present = min(job.per_round or data.clients, data.clients)
    return block if block * present >= 2 * data.clients else 1


def _some_model(job: Job, objective: Objective, data: store.Federation) -> Parameters:
    return objective.start(data.features, data.classes or data.targets, np.random.default_rng(0), job.compute.dtype)


def start_arrays(job: Job) -> Mapping[str, Array]:
    """The arrays of the model of `[model] start`; none where the job has none."""
    if (given := job.model.get("start")) is None:
        return {}
    from mpifed.files.model_file import MODEL, read_model

    path = Path(given)
    try:
        return read_model(path / MODEL if path.is_dir() else path)
    except DataError as error:
        remedy = f"give the folder of a run that has ended, or its {MODEL}"
        raise UsageError(f'[model] start = "{shown(given)}": {error}; {remedy}') from error


def first_model(job: Job, arrays: Mapping[str, Array], like: Parameters) -> Parameters:
    """The model of these arrays, of the structure of `like`; UsageError where they do not fit, or are not finite."""
    from mpifed.files.model_file import model_arrays

    expected, ordered, wrong = model_arrays(like), list[Array](), ""
    came, wanted = ({name: list(array.shape) for name, array in part.items()} for part in (arrays, expected))
    if came != wanted:
        wrong = f"holds {shown(str(came))}, and this model has {wanted}"
    else:
        with np.errstate(over="ignore"):
            ordered = [arrays[name].astype(leaf.dtype) for name, leaf in expected.items()]
        if not all(np.isfinite(leaf).all() for leaf in ordered):
            wrong = "has numbers that are not finite"
    if wrong:
        raise UsageError(f'[model] start = "{shown(str(job.model.get("start")))}": {wrong}; give a run of this model')
    left = iter(ordered)
    return map_leaves(lambda _: next(left), like)


def prepare(
    job: Job,
    comm: Comm,
    header: Header | None = None,
    make_ranks: Callable[..., Ranks] = Ranks,
) -> Ready:
    """Open the data, place the clients, and initialize all states. Collective.

    The noise multiplier is that in the `header` of the ledger of a resumed run, otherwise it is computed on rank 0.

    Raises
    ------
    UsageError, DataError
        on every rank, when job and data do not fit, a class is wrong or a shard is damaged.
    """
    data = _opened(job, comm)
    given: Mapping[str, Array] = {}
    with agreed(comm):
        block = block_of(job, data)
        job = replace(job, data=replace(job.data, block=block))
        if comm.rank == 0:
            given = start_arrays(job)
            if job.data.verify:
                data.verify_common()
    given = comm.bcast(given)
    with agreed(comm):
        algorithm = job.make_algorithm(problem_of(job, data, given))
    multiplier, secret = 0.0, False
    if job.privacy is not None:
        with agreed(comm):
            if comm.rank == 0:
                from mpifed.privacy.calibration import settle

                multiplier = settle(job, algorithm, header)
        algorithm = replace(algorithm, problem=algorithm.problem.with_noise(comm.bcast(multiplier)))
        with agreed(comm):
            secret = is_secret(job, algorithm)
    space = min(job.data.memory_gib * 2**30, room() / comm.node_size)
    hosted = place(data.counts, block, comm.size, job.dedicated).hosted(comm.rank)
    with agreed(comm):
        if job.data.verify:
            data.verify(hosted.clients)
        blocks = hosted_blocks(data, *hosted, job.compute.dtype, space)
        device = Device()
        wanted = job.compute.device
        if wanted == "cuda" or (wanted == "auto" and device_pays(data, algorithm)[0]):
            from mpifed.maths.device import open_device

            device = open_device(wanted, comm.node_rank)
    if job.own_modules:
        from mpifed.run.own_classes import check_shapes, refuse_other_sources, refuse_own

        refuse_other_sources(job, comm)
        with agreed(comm):
            refuse_own(job, algorithm.problem, partial(check_shapes, device=device))
    with agreed(comm):
        drawn = job.participation.clients_per_round if secret else None
        ranks = make_ranks(
            comm, blocks, data.clients, arithmetic(job, algorithm), job.protection(),
            columns=algorithm.problem.columns, device=device, drawn=drawn,
        )  # fmt: skip
        ranks.make_ready(all_exchanges(algorithm))
        ranks.check_rounds(algorithm.exchanges, first_rounds(job, data.clients, algorithm.exchanges))
    ranks.agree_on_keys()
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    clients = ClientStates(
        blocks.first, lambda i: algorithm.start_clients(blocks[i], everybody), job.data.state_gib * 2**30
    )
    with agreed(comm):
        server = algorithm.start_server(everybody) if ranks.serves else None
        start = algorithm.problem.start
        if server is not None and start is not None:
            pairs = zip(bare_leaves(algorithm.model(server)), bare_leaves(start), strict=True)
            if not all(np.allclose(one, other, rtol=1e-5) for one, other in pairs):
                raise UsageError(
                    f'[model] start: "{job.algorithm["name"]}" begins at a model of its own, since '
                    f"{algorithm.why_no_start}; leave it out, or take another method"
                )
        if len(blocks):
            check_state(job.algorithm["name"], "start_clients()", clients.take(0), clients=blocks.size(0))
        specs = check_state(job.algorithm["name"], "start_server()", server)
        own = None
        if tests_clients(job, data):  # in the memory that training rows leave
            left = space - float(data.nbytes("", hosted.clients).sum())
            own = hosted_blocks(data, *hosted, job.compute.dtype, left, tests=True)
        y, common = None, None
        chunks = range(*(number * -(-data.test_samples // CHUNK) // comm.size for number in (comm.rank, comm.rank + 1)))
        if data.test_samples and job.record.evaluate_every:
            y = data.labels("test/")
            shard = common_shard(data, CHUNK * chunks.start, min(CHUNK * chunks.stop, data.test_samples))
            common = Block((shard,), job.compute.dtype) if shard else None
        tests = TestRows(algorithm.problem, comm, y, chunks, common, own, data.test_counts)
    key = comm.bcast(os.urandom(32) if ranks.serves else None) if secret and is_secure(job) else None
    return Ready(job, algorithm, data, ranks, server, clients, specs, tests, everybody, key)


def _opened(job: Job, comm: Comm) -> store.Federation:
    """The data, of which rank 0 alone reads and checks what there is once. Collective.

    Raises
    ------
    DataError
        where a rank sees others than rank 0, as of its node's disk, by the digests of clients' rows and test labels;
        with `[data] verify` a rank of each node compares all test rows.
    """
    path = job.data.path
    with agreed(comm):
        data = store.open_federation(path) if comm.rank == 0 or path.startswith(store.MEMORY) else None
    about = comm.bcast(None if data is None else data.about)
    with agreed(comm):
        try:
            if data is None:
                data = store.of_folder(about, Path(path))
                whole = job.data.verify and comm.node_rank == 0
                for name in about.arrays:
                    if name in ("digests", "test/y") or (whole and name.startswith("test/")):
                        data.array(name)
        except DataError as error:
            remedy = "or give a folder that all nodes see, and start all ranks in one folder"
            raise DataError(f"rank {comm.rank} sees other data than rank 0: {error}; {remedy}") from error
        return data


def held(data: store.Federation, axis: str) -> Holdings:
    """Which clients hold which "rows", or "columns"."""
    column, length = {"rows": (0, data.samples), "columns": (1, data.features)}[axis]
    return Holdings(length, data.holds[:, column], Members(data.bounds[axis], lambda: data.members(axis)))


def all_exchanges(algorithm: Algorithm) -> list[Exchange]:
    """The exchanges of set-up, rounds and evaluation, each once."""
    measured = [exchange for measure in algorithm.measures for exchange in measure.exchanges]
    every = (*algorithm.setup, *algorithm.exchanges, *measured)
    return list({exchange.name: exchange for exchange in every}.values())


def measures_of(job: Job, algorithm: Algorithm) -> tuple[Measure, ...]:
    """The measures over training data; none where only releases are recorded."""
    return () if job.record.released_only else algorithm.measures


def tests_clients(job: Job, data: store.Federation) -> bool:
    """Whether the model is evaluated on the clients' own test rows: the server then learns a number of each client."""
    asked = job.record.client_tests
    if asked is None:
        asked = job.channel == "plain" and not job.record.released_only
    return bool(asked and job.record.evaluate_every and data.test_counts.any())
