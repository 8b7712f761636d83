"""`mpifed check JOB.toml`: who will receive what, the bytes of each exchange, and what a private job will spend.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.algorithm import Algorithm, with_noise
from mpifed.comm.placement import place
from mpifed.comm.sums import INTEGER_BYTES
from mpifed.core.exchange import Exchange
from mpifed.core.record import bare_leaves, leaves, nbytes, of_columns
from mpifed.core.round import SETUP, Round
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.block import Block, Piece
from mpifed.data.shards import MOST_OPEN, PIECE_NBYTES, SHARD_NBYTES, Shard
from mpifed.forecast.counting import Counting
from mpifed.forecast.disclosure import View, general_statements, learns, observer_statement, receiver, test_statements
from mpifed.forecast.outlook import outlook
from mpifed.job import goals
from mpifed.job.combinations import data_warnings
from mpifed.job.job import Job, read_table
from mpifed.job.reading import check_data
from mpifed.job.sweep import points
from mpifed.maths.objectives.torch_model import PASS_BYTES
from mpifed.privacy.calibration import settle
from mpifed.privacy.protection import warnings_of
from mpifed.privacy.spending import without_epsilon
from mpifed.run.environment import rss_bytes
from mpifed.run.observation import checked_observers
from mpifed.run.own_classes import check_by_laws, refuse_own
from mpifed.run.setup import block_of, held, measures_of, problem_of, tests_clients

_BYTES = ("up_bytes", "down_bytes")
_BESIDE = 10 << 20  # bytes of what a run imports beside what this does
_OF_MPI = 20 << 20  # bytes of MPI's buffers on a rank of several


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
    refuse_own(job, algorithm.problem, partial(check_by_laws, job=job, problem=algorithm.problem))
    measures = measures_of(job, algorithm) if goals.measured(job) else ()
    counting = Counting(job, algorithm)
    counting.measure(measures)
    present = int(counting.now.present.sum())
    by_columns = any(of_columns(counting.broadcasts[exchange.name]) for exchange in algorithm.exchanges)
    view = View(
        job.protection(), held(data, "columns"), counting.now, by_columns, ranks, int((host == 0).sum()),
        counting.partners, job.participation.max_dropouts if job.participation.dropout_rate else 0,
    )  # fmt: skip
    of_all = view._replace(now=counting.everybody, leave=0)
    keys, times = counting.bytes_of("keys"), Counter(exchange.name for exchange in algorithm.setup)
    setup = [
        {**_described(exchange, of_all, counting), "times": times[exchange.name]}
        for exchange in {exchange.name: exchange for exchange in algorithm.setup}.values()
    ]
    exchanges = [_described(exchange, view, counting) for exchange in algorithm.exchanges]
    per_round = {key: sum(exchange[key] for exchange in exchanges) for key in _BYTES}
    before = {key: keys[key] + sum(exchange["times"] * exchange[key] for exchange in setup) for key in _BYTES}
    privacy = outlook(job, algorithm)  # takes memory, as in the run
    memory = _memory(job, data, algorithm, counting, min(data.clients, job.rounds * present), ranks, host, block)
    measured = [_described(exchange, of_all, counting) for measure in measures for exchange in measure.exchanges]
    return {
        "job": job.name,
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": present,
        "security": job.channel,
        "keys": keys,
        "setup": setup,
        "exchanges": exchanges,
        "measures": measured,
        "privacy": privacy,
        "warnings": [
            *algorithm.warnings(),
            *data_warnings(job, data),
            *warnings_of(job, algorithm.problem.privacy, without_epsilon(algorithm)),
        ],
        **{f"{key}_per_round": value for key, value in per_round.items()},
        **{key: before[key] + job.rounds * per_round[key] for key in _BYTES},
        "who_learns": [
            *general_statements(algorithm, view, bool(measures)),
            *(observer_statement(observer, job) for observer in observers),
        ],
        "tests": list(test_statements(job, data, tests_clients(job, data))),
        "ranks": ranks,
        "block": block,
        "clients_of_ranks": np.bincount(host, minlength=ranks).tolist(),
        "memory": memory,
        "memory_bytes": sum(memory.values()),
    }


def _described(exchange: Exchange, view: View, counting: Counting) -> Table:
    """One exchange: what is broadcast and uploaded, who receives the sum, how it is summed, and its cost."""
    question, message = counting.broadcasts[exchange.name], counting.plan(exchange).message
    broadcast = [
        {"field": name, "shape": list(np.shape(leaf)), "dtype": str(np.asarray(leaf).dtype), "bytes": nbytes(leaf)}
        | ({"of": "own columns"} if name in of_columns(question) else {})
        for name, leaf in leaves(question)
    ]
    upload = []
    for part in message.places:
        field, of = part.field, {}
        if field.held is not None:
            of = {"of": "own rows" if field.to_holders else "own columns"}
        elif field.sender is not None:
            of = {"of": f"client {field.sender}"}
        size, name = (part.stop - part.start) * INTEGER_BYTES, part.name.removeprefix(f"{exchange.name}.")
        sent = {"field": name, "shape": list(field.shape), "dtype": "int64", "bytes": size}
        upload.append({**sent, **part.form._asdict(), **of})
    return {
        "name": exchange.name,
        "receives": receiver(exchange, view.now),
        "security": "plain" if exchange.clear else view.protection.channel,
        "broadcast": broadcast,
        "upload": upload,
        "broadcast_bytes": nbytes(question),
        "upload_bytes": message.nbytes,
        "learns": learns(exchange, message.places, view),
        **counting.bytes_of(exchange.name),
    }


def _memory(
    job: Job,
    data: store.Federation,
    algorithm: Algorithm,
    counting: Counting,
    takes_part: int,
    ranks: int,
    host: NDArray[np.int64],
    block: int,
) -> dict[str, int]:
    """Bytes of memory of the rank that needs the most, by what has them; mapped data are not counted.

    Parameters
    ----------
    takes_part : the number of clients who may have taken part by the end of the run
    host : [N] each client's rank
    block : number of clients computed together
    """
    training, hosted = data.nbytes(), np.bincount(host)
    stored = np.bincount(host, training + (data.nbytes(store.TESTS) if tests_clients(job, data) else 0))
    loaded = np.where((stored <= job.data.memory_gib * 2**30) & (data.path is not None), stored, 0)
    values = loaded + np.bincount(host, 8 * data.counts) + SHARD_NBYTES * np.minimum(hosted, MOST_OPEN * block)
    row = training.sum() / data.counts.sum()
    if job.record.evaluate_every:  # the common test rows, a part on each rank
        values += data.test_samples / ranks * (row + 16)
    states = min(int(hosted.max()), takes_part) * _state_bytes(job, data, algorithm)
    evaluated = PASS_BYTES if job.model["name"] == "torch" else 0
    if goals.measured(job) and not evaluated:  # outputs of all layers for a piece of rows, and their differences
        rows = min(PIECE_NBYTES // max(1, int(row)), job.record.evaluate_rows or data.samples)
        widths = [sum(np.shape(leaf)) for leaf in bare_leaves(counting.model()) if np.ndim(leaf) == 2]
        evaluated = int(1.5 * rows * max(sum(widths) - data.features, 0) * np.dtype(job.compute.dtype).itemsize)
    beside = rss_bytes(peak=True) + _BESIDE + _OF_MPI * (ranks > 1)
    return {
        "data": int(values.max()),
        "states": int(min(states, job.data.state_gib * 2**30)),
        "evaluation": evaluated if goals.measured(job) else 0,
        "libraries and messages": beside + min(int(loaded[values.argmax()]), store.PART),
    }


def _state_bytes(job: Job, data: store.Federation, algorithm: Algorithm) -> int:
    """Bytes of the state of the client with the most rows; 0 where an own method does not begin on rows of zeros."""
    client = int(data.counts.argmax())
    shape = int(data.counts[client]), int(data.widths[client])
    values: Piece = np.broadcast_to(np.zeros((), job.compute.dtype), shape)
    if data.sparse:
        from scipy.sparse import csr_matrix  # slow to import

        values = csr_matrix(shape, dtype=job.compute.dtype)
    y = np.zeros(shape[:1] if data.targets == 1 else (shape[0], data.targets), np.int64 if data.classes else float)
    shard = Shard(client, partial(data.held, client), y, values, cache(data.scaling.to))
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    try:
        return nbytes(algorithm.start_clients(Block((shard,), job.compute.dtype), everybody))
    except Exception:  # whatever an own method raises
        return 0
