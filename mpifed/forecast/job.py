"""`mpifed check JOB.toml`: who will receive what, the bytes of each exchange, and what a private job will spend.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.placement import place
from mpifed.core.algorithm import Algorithm, with_noise
from mpifed.core.exchange import Exchange, Field
from mpifed.core.protocols import Piece
from mpifed.core.record import Record, bare_leaves, leaves, nbytes, of_columns
from mpifed.core.round import SETUP, Round
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.block import Block
from mpifed.data.shards import PIECE_NBYTES, SHARD_NBYTES, Shard
from mpifed.forecast.counting import Counting
from mpifed.forecast.disclosure import View, general_statements, learns, observer_statement, receiver, test_statements
from mpifed.forecast.outlook import outlook
from mpifed.forecast.text import forecast_text as forecast_text
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
from mpifed.run.own_classes import refuse_own_by_laws
from mpifed.run.setup import block_of, held, measures_of, problem_of, tests_clients

_BYTES = ("up_bytes", "down_bytes")
_BESIDE = 10 << 20  # bytes of what a run imports beside what this does
_OF_MPI = 20 << 20  # bytes of MPI's buffers on a rank of several


def forecast(job_path: Path, changes: tuple[str, ...], ranks: int) -> Table:
    """What is known of a job on `ranks` ranks before it runs, of a sweep of its first point: who learns what, bytes.

    Raises UsageError or DataError as `mpifed run` would before its first round.
    """
    all_points = points(read_table(job_path, changes), str(job_path))
    job = all_points[0].job
    observers = checked_observers(job.make_observers())
    if not job.data.path.startswith(store.MEMORY):
        check_data(job_path, Path(job.data.path))
    data = store.open_federation(job.data.path)
    block = block_of(job, data)
    host = place(data.counts, block, ranks, job.dedicated).hosts  # [N] each client's rank
    algorithm = algorithm_of(job, data)
    refuse_own_by_laws(job, algorithm.problem)
    measures = measures_of(job, algorithm) if goals.measured(job) else ()
    counting = Counting(job, algorithm)
    counting.measure(measures)
    now = counting.now
    view = _view(job, data, algorithm.exchanges, counting, ranks, host)
    describer = _ExchangeDescriber(job, algorithm, view, counting)
    everybody = describer._replace(view=view._replace(now=counting.everybody, leave=0))
    keys = counting.bytes_of("keys")
    times = Counter(exchange.name for exchange in algorithm.setup)
    setup_exchanges = {exchange.name: exchange for exchange in algorithm.setup}
    setup = [{**everybody.exchange(exchange), "times": times[name]} for name, exchange in setup_exchanges.items()]
    exchanges = [describer.exchange(exchange) for exchange in algorithm.exchanges]
    per_round = {key: sum(exchange[key] for exchange in exchanges) for key in _BYTES}
    before = {key: keys[key] + sum(exchange["times"] * exchange[key] for exchange in setup) for key in _BYTES}
    takes_part = min(data.clients, job.rounds * int(now.present.sum()))
    privacy = outlook(job, algorithm)  # takes memory, as in the run
    memory = _memory(job, data, algorithm, counting.model(), takes_part, ranks, host)
    return {
        "job": job.name,
        "points": len(all_points),
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": int(now.present.sum()),
        "security": job.channel,
        "arithmetic": job.aggregation.arithmetic,
        "keys": keys,
        "setup": setup,
        "exchanges": exchanges,
        "measures": [everybody.exchange(exchange) for measure in measures for exchange in measure.exchanges],
        "privacy": privacy,
        "warnings": [
            *algorithm.warnings(),
            *data_warnings(job, data),
            *warnings_of(job, algorithm.problem.privacy, without_epsilon(algorithm)),
        ],
        **{f"{key}_per_round": value for key, value in per_round.items()},
        **{key: before[key] + job.rounds * per_round[key] for key in _BYTES},
        "dropout_rate": job.participation.dropout_rate,
        "void_chance": _void_chance(job, int(now.present.sum())),
        "who_learns": [
            *general_statements(algorithm, view, bool(measures)),
            *(observer_statement(observer, job) for observer in observers),
        ],
        "tests": list(test_statements(job, data, tests_clients(job, data))),
        "ranks": ranks,
        "block": block,
        "placement": [
            {"rank": rank, "clients": clients, "rows": int(rows)}
            for rank, (clients, rows) in enumerate(
                zip(np.bincount(host, minlength=ranks).tolist(), np.bincount(host, data.counts, ranks), strict=True)
            )
        ],
        "memory": memory,
        "memory_bytes": sum(memory.values()),
    }


def algorithm_of(job: Job, data: store.Federation) -> Algorithm:
    """The job's algorithm, with calibrated noise if the job is private."""
    algorithm = job.make_algorithm(problem_of(job, data))
    return algorithm if job.privacy is None else with_noise(algorithm, settle(job, algorithm))


def _memory(
    job: Job,
    data: store.Federation,
    algorithm: Algorithm,
    model: Record,
    takes_part: int,
    ranks: int,
    host: NDArray[np.int64],
) -> dict[str, int]:
    """Bytes of memory of the rank that needs the most, by what has them; mapped data are not counted.

    Parameters
    ----------
    takes_part : the number of clients who may have taken part by the end of the run
    """
    tested, hosted = tests_clients(job, data), np.bincount(host, minlength=ranks)
    training = data.nbytes()
    stored = np.bincount(host, training + (data.nbytes(store.TESTS) if tested else 0))
    loaded = np.where((stored <= job.data.memory_gib * 2**30) & (data.path is not None), stored, 0)
    values = loaded + np.bincount(host, SHARD_NBYTES + 8 * data.counts)
    if job.record.evaluate_every:  # the common test rows, a part on each rank
        values += data.test_samples / ranks * (training.sum() / data.counts.sum() + 16)
    rank = int(values.argmax())
    room, states = job.data.state_gib * 2**30, min(int(hosted.max()), takes_part) * _state_bytes(job, data, algorithm)
    beside = rss_bytes(peak=True) + _BESIDE + _OF_MPI * (ranks > 1)
    return {
        "data": int(values[rank]),
        "states": int(min(states, room)),
        "evaluation": _evaluation_bytes(job, data, model),
        "libraries and messages": beside + min(int(loaded[rank]), store.PART),
    }


def _state_bytes(job: Job, data: store.Federation, algorithm: Algorithm) -> int:
    """Bytes of the state of the client with the most rows; 0 where an own method does not begin on rows of zeros."""
    client = int(data.counts.argmax())
    shape = int(data.counts[client]), int(data.widths[client])
    values: Piece = np.broadcast_to(np.zeros((), job.compute.dtype), shape)
    if data.sparse:
        from scipy.sparse import csr_matrix  # slow to import

        values = csr_matrix(shape, dtype=job.compute.dtype)
    y = np.zeros((shape[0],) if data.targets == 1 else (shape[0], data.targets), np.int64 if data.classes else float)
    shard = Shard(client, partial(data.held, client), y, values, cache(data.scaling.to))
    everybody = Round(SETUP, job.seed, np.ones(data.clients, dtype=bool))
    try:
        return nbytes(algorithm.start_clients(Block((shard,), job.compute.dtype), everybody))
    except Exception:  # whatever an own method raises
        return 0


def _evaluation_bytes(job: Job, data: store.Federation, model: Record) -> int:
    """Bytes of the outputs of all layers for a piece of rows, and of their differences; the most that PyTorch's are."""
    if not goals.measured(job):
        return 0
    if job.model["name"] == "torch":
        return PASS_BYTES
    features = int(data.widths.max())
    row = 4 * features if not data.sparse else max(1, int(data.nbytes().sum() // data.counts.sum()))
    rows = min(PIECE_NBYTES // row, job.record.evaluate_rows or data.samples)
    outputs = sum(sum(np.shape(leaf)) for leaf in bare_leaves(model) if np.ndim(leaf) == 2) - data.features
    return int(1.5 * rows * max(outputs, 0) * np.dtype(job.compute.dtype).itemsize)


def _view(
    job: Job, data: store.Federation, exchanges: Sequence[Exchange], counting: Counting, ranks: int,
    host: NDArray[np.int64],
) -> View:  # fmt: skip
    leave, of_server = job.participation.max_dropouts if job.participation.dropout_rate else 0, int((host == 0).sum())
    by_columns = any(of_columns(counting.broadcasts[exchange.name]) for exchange in exchanges)
    return View(
        job.protection(), held(data, "columns"), counting.now, by_columns, ranks, of_server, counting.partners, leave
    )


def _void_chance(job: Job, present: int) -> float:
    """The probability that more clients drop out within a round than allowed."""
    rate, most = job.participation.dropout_rate, job.participation.max_dropouts
    if not rate:
        return 0.0
    leave, stay, lgamma = math.log(rate), math.log1p(-rate), math.lgamma  # binomials of many clients overflow
    few = range(min(most, present) + 1)
    logs = (k * leave + (present - k) * stay - lgamma(k + 1) - lgamma(present - k + 1) for k in few)
    return max(0.0, 1 - math.fsum(math.exp(lgamma(present + 1) + log) for log in logs))


class _ExchangeDescriber(NamedTuple):
    """Describes exchanges for the forecast."""

    job: Job
    algorithm: Algorithm
    view: View
    counting: Counting

    def exchange(self, exchange: Exchange) -> Table:
        """One exchange: what is broadcast and uploaded, who receives the sum, how it is summed, and its cost."""
        broadcast = self.counting.broadcasts[exchange.name]
        message, cost = self.counting.plan(exchange).message, self.counting.bytes_of(exchange.name)
        return {
            "name": exchange.name,
            "receives": receiver(exchange, self.view.now),
            "security": "plain" if exchange.clear else self.job.channel,
            "broadcast": [
                {
                    "field": name,
                    "shape": list(np.shape(leaf)),
                    "dtype": str(np.asarray(leaf).dtype),
                    "bytes": nbytes(leaf),
                    **({"of": "own columns"} if name in of_columns(broadcast) else {}),
                }
                for name, leaf in leaves(broadcast)
            ],
            "upload": [
                {
                    "field": place.name.removeprefix(exchange.name + "."),
                    "shape": list(place.field.shape),
                    "dtype": str(message.dtype),
                    "bytes": (place.stop - place.start) * message.dtype.itemsize,
                    **place.form._asdict(),
                    **_of_whom(place.field),
                }
                for place in message.places
            ],
            "broadcast_bytes": nbytes(broadcast),
            "upload_bytes": message.nbytes,
            "learns": learns(exchange, message.places, self.view),
            **cost,
        }


def _of_whom(field: Field) -> dict[str, str]:
    """The part of a field that a client fills, if not all of it."""
    if field.held is not None:
        return {"of": "own rows" if field.to_holders else "own columns"}
    return {} if field.sender is None else {"of": f"client {field.sender}"}
