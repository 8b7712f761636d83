"""`mpifed check JOB.toml`: who will receive what, the bytes of each exchange, memory, and what privacy costs.

All of it follows from the job and its data, of which the rows of one block are read; MPI is not started.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.mpi import Comm, agreed
from mpifed.comm.placement import place
from mpifed.comm.sums import INTEGER_BYTES
from mpifed.core.errors import NotCertified, UsageError
from mpifed.core.exchange import Exchange
from mpifed.core.holdings import of_columns
from mpifed.core.record import Integers, bare_leaves, leaves, nbytes
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.shards import MOST_OPEN, PIECE_NBYTES, SHARD_NBYTES, hosted_blocks
from mpifed.files.json_file import read_json
from mpifed.forecast.counting import Counting
from mpifed.forecast.disclosure import View, general_statements, learns, observer_statement, receiver, test_statements
from mpifed.job import goals
from mpifed.job.combinations import device_pays
from mpifed.job.job import Job, read_table
from mpifed.job.reading import check_data
from mpifed.job.sweep import points
from mpifed.maths.objectives.torch_model import PASS_BYTES
from mpifed.privacy.calibration import budget_of, rounds_within, settle, spending_of, with_noise
from mpifed.privacy.protection import not_private, shares, warnings_of, what_is_protected
from mpifed.privacy.spending import Spending, without_epsilon
from mpifed.run.agreement import begin_call, settings
from mpifed.run.api import run
from mpifed.run.environment import rss_bytes
from mpifed.run.launch import guarded
from mpifed.run.observation import checked_observers
from mpifed.run.own_classes import check_by_laws, refuse_own
from mpifed.run.setup import block_of, held, measures_of, problem_of, tests_clients

_BESIDE = 10 << 20  # bytes of what a run imports beside what this does
_OF_MPI = 20 << 20  # bytes of MPI's buffers on a rank of several
_TIMED = 3  # rounds, of which the median is reported: the first fills caches
_DENSE = (
    "[compression]: masked and encrypted uploads travel whole, and are counted so; only what they say is compressed"
)
_PASSING = (
    "[simulated_network]: rounds differ; those above are of many clients, and the bytes of all are counted one by one; "
    "in {} of {} too few are there, or too few answers come, and the model stays as it was"
)


def read(path: Path, changes: tuple[str, ...]) -> tuple[Job, int]:
    """The job of a file, of a sweep that of its first point, and how many points there are."""
    jobs = points(read_table(path, changes), str(path))
    check_data(path, Path(jobs[0].job.data.path))
    return jobs[0].job, len(jobs)


def forecast(job: Job, ranks: int) -> Table:
    """What is known of a job on `ranks` ranks before it runs: who learns what, bytes, memory, epsilon.

    Raises UsageError or DataError as `mpifed run` would before its first round.
    """
    observers = checked_observers(job.make_observers())
    data = store.open_federation(job.data.path)
    block = block_of(job, data)
    host = place(data.counts, block, ranks, job.dedicated).hosts  # [N] each client's rank
    algorithm = job.make_algorithm(problem_of(job, data))
    if job.privacy is not None:
        algorithm = with_noise(algorithm, settle(job, algorithm))
    refuse_own(job, algorithm.problem, check_by_laws)
    measures = measures_of(job, algorithm) if goals.measured(job) else ()
    counting = Counting(job, algorithm)
    counting.measure(measures)
    by_columns = any(of_columns(counting.broadcasts[exchange.name]) for exchange in algorithm.exchanges)
    view = View(
        job.protection(), held(data, "columns"), counting.now, by_columns, ranks, int((host == 0).sum()),
        counting.partners, job.participation.max_dropouts if job.participation.dropout_rate else 0,
    )  # fmt: skip
    of_all = view._replace(now=counting.everybody, leave=0)
    of_rounds, passing = counting.of_rounds(job, algorithm.exchanges)
    keys, times = counting.bytes_of("keys"), Counter(exchange.name for exchange in algorithm.setup)
    once = {exchange.name: exchange for exchange in algorithm.setup}.values()
    setup = [{**_described(exchange, of_all, counting), "times": times[exchange.name]} for exchange in once]
    exchanges = [_described(exchange, view, counting) for exchange in algorithm.exchanges]
    per_round = {key: sum(exchange[key] for exchange in exchanges) for key in keys}
    privacy = _privacy(job, algorithm)  # takes memory, as in the run
    memory = _memory(job, data, algorithm, counting, ranks, host, block)
    return {
        "job": job.name,
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": view.clients,
        "security": job.channel,
        "keys": keys,
        "setup": setup,
        "exchanges": exchanges,
        "measures": [_described(exchange, of_all, counting) for measure in measures for exchange in measure.exchanges],
        "privacy": privacy,
        "warnings": [
            *algorithm.warnings(),
            *([_DENSE] if job.compression is not None and job.channel != "plain" else []),
            *([_PASSING.format(passing, job.rounds)] if job.unsteady else []),
            *warnings_of(job, algorithm.problem.privacy, without_epsilon(algorithm)),
        ],
        **{f"{key}_per_round": value for key, value in per_round.items()},
        **{key: count + sum(one[key] * one["times"] for one in setup) + of_rounds[key] for key, count in keys.items()},
        "who_learns": [
            *general_statements(algorithm, view, bool(measures)),
            *(observer_statement(observer, job) for observer in observers),
        ],
        "tests": list(test_statements(job, data, tests_clients(job, data))),
        "ranks": ranks,
        "block": block,
        "device": device_pays(data, algorithm)[1] if job.compute.device == "auto" else job.compute.device,
        "clients_of_ranks": np.bincount(host, minlength=ranks).tolist(),
        "memory": memory,
        "memory_bytes": sum(memory.values()),
    }


def _described(exchange: Exchange, view: View, counting: Counting) -> Table:
    """One exchange: what is broadcast and uploaded, who receives the sum, how it is summed, and its cost."""
    question, message = counting.broadcasts[exchange.name], counting.plan(exchange).message
    own = of_columns(question)
    sent = [
        ("broadcast", name, np.shape(leaf), str(np.asarray(leaf).dtype), nbytes(leaf), "own columns" * (name in own))
        for name, leaf in leaves(question)
    ]
    for part in message.places:
        field, size = part.field, (part.stop - part.start) * INTEGER_BYTES
        of = "" if field.sender is None else f"client {field.sender}"
        if field.held is not None:
            of = "own rows" if field.to_holders else "own columns"
        kind = "int64"
        if field.coded is not None and view.protection.channel == "plain":
            kind, size = "coded", field.coded
        sent.append(("upload", part.name.removeprefix(f"{exchange.name}."), field.shape, kind, size, of))
    return {
        "name": exchange.name,
        "receives": receiver(exchange, view.now),
        "security": "plain" if exchange.clear else view.protection.channel,
        "fields": [
            {"sent": how, "field": name, "shape": list(shape), "dtype": dtype, "bytes": size, "of": of}
            for how, name, shape, dtype, size, of in sent
        ],
        "learns": learns(exchange, message.places, view),
        **counting.bytes_of(exchange.name),
    }


def _memory(
    job: Job, data: store.Federation, algorithm: Algorithm, counting: Counting, ranks: int, host: Integers, block: int
) -> dict[str, int]:
    """Bytes of memory of the rank that needs the most, by what has them; mapped data are not counted.

    Parameters
    ----------
    host : [N] each client's rank
    block : number of clients computed together
    """
    tested = data.nbytes(store.TESTS) if tests_clients(job, data) else 0
    stored, hosted = np.bincount(host, data.nbytes() + tested), np.bincount(host)
    most = int(stored.argmax())  # the rank that stores the most
    loaded = int(stored[most]) if stored[most] <= job.data.memory_gib * 2**30 and data.path is not None else 0
    opened = 8 * int(data.counts[host == most].sum()) + SHARD_NBYTES * min(int(hosted[most]), MOST_OPEN * block)
    row = data.nbytes().sum() / data.counts.sum()
    common = int(data.test_samples / ranks * (row + 16)) if job.record.evaluate_every else 0  # a part on each rank
    largest = int(data.counts.argmax())
    (one,) = hosted_blocks(data, range(largest, largest + 1), np.arange(2), job.compute.dtype, 0)
    took_part = min(int(hosted.max()), job.rounds * int(counting.now.present.sum()))
    states = took_part * nbytes(algorithm.start_clients(one, counting.everybody))
    evaluated = PASS_BYTES if job.model["name"] == "torch" else 0
    if not evaluated:  # outputs of all layers for a piece of rows, and their differences
        rows = min(PIECE_NBYTES // max(1, int(row)), job.record.evaluate_rows or data.samples)
        model = algorithm.model(counting.server)
        widths = [sum(np.shape(leaf)) for leaf in bare_leaves(model) if np.ndim(leaf) == 2]
        evaluated = int(1.5 * rows * max(sum(widths) - data.features, 0) * np.dtype(job.compute.dtype).itemsize)
    beside = rss_bytes(peak=True) + _BESIDE + _OF_MPI * (ranks > 1)
    return {
        "data": loaded + opened + common,
        # of clients, and of what the server has sent to those still at work
        "states": int(min(states, job.data.state_gib * 2**30)) + nbytes(getattr(counting.server, "out", ())),
        "evaluation": evaluated if goals.measured(job) else 0,
        "libraries and messages": beside + min(loaded, store.PART),
    }


def _privacy(job: Job, algorithm: Algorithm) -> Table | None:
    """The privacy cost after all rounds of a job, None if it is not private; `algorithm` has its noise multiplier."""
    privacy, budget = algorithm.problem.privacy, budget_of(job)
    if privacy is None:
        return None
    nothing = Spending.of(algorithm)
    ends = rounds_within(job, nothing).stop
    spending, rate = spending_of(job, nothing, 0, job.rounds), algorithm.released().rate
    return {
        **asdict(privacy),
        "protects": what_is_protected(privacy),
        "not_private": not_private(privacy),
        "noise_on": "gradients" if privacy.on_gradients else "upload",
        "rates": [float(rate.min()), float(rate.max())],
        "most_sampled": [client := int(rate.argmax()), int(algorithm.problem.counts[client])],
        **spending.epsilons(shares(job, algorithm.problem.clients)),
        "budget": None if budget is None else f"{budget.key} = {budget.epsilon:g}",
        "budget_ends_after": ends if ends < job.rounds else None,
    }


# --- `mpifed check JOB.toml --time` -----------------------------------------------------------------------------------


def timed_forecast(path: Path, changes: tuple[str, ...]) -> Table:
    """The forecast of a job on these ranks, and what its first rounds took; empty on ranks but 0. Collective.

    They are played in a folder of their own beneath `runs`, which all ranks must see, and which is removed.
    """
    comm, job = begin_call("mpifed check --time", lambda: read(path, changes)[0], settings, guarded)
    found: Table = guarded(comm, None, lambda: _played(comm, job))
    return found


def _played(comm: Comm, job: Job) -> Table:
    """The forecast with its "time", on rank 0."""
    facts, folder = Table(), Path()
    with agreed(comm):
        if comm.rank == 0:
            if job.released_only:
                raise UsageError("--time: a job with released_only tells nobody its seconds or memory")
            facts = forecast(job, comm.size)
            Path("runs").mkdir(exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".check-", dir="runs"))
    folder, begun = comm.bcast(folder), time.perf_counter()
    short = job.table() | {"rounds": _TIMED, "stop": {}, "observe": []}
    short["record"] |= {"evaluate_every": _TIMED if job.record.evaluate_every else 0, "checkpoint_every": 0}
    try:
        with suppress(NotCertified):  # of so few rounds, a [[constraint]] may not be met yet
            run(Job.check(short), comm, folder / "run")
        if comm.rank == 0:
            said = read_json(folder / "run" / "run.json")
            beside_s = time.perf_counter() - begun - said["elapsed_s"]
            facts["time"] = {name: said[name] for name in ("seconds_per_round", "peak_rss_bytes")}
            facts["time"]["beside_s"] = beside_s
    finally:
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return facts
