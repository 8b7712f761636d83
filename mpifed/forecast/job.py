"""`mpifed check JOB.toml`: who will receive what, the bytes of each exchange, and what a private job will spend.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accumulate import make_sum
from mpifed.comm.placement import place
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Exchange, Field, ToClients
from mpifed.core.record import leaves, nbytes
from mpifed.core.round import Round
from mpifed.core.tables import Table
from mpifed.data import store
from mpifed.data.shards import SHARD_NBYTES
from mpifed.forecast.counting import Counting
from mpifed.forecast.disclosure import View, general_statements, learns, observer_statement, test_statements
from mpifed.forecast.outlook import outlook
from mpifed.forecast.text import forecast_text as forecast_text
from mpifed.job import goals
from mpifed.job.job import Job, read_table
from mpifed.job.loading import check_data
from mpifed.job.participation import most_summed
from mpifed.job.sweep import points
from mpifed.job.validation import data_warnings, with_noise
from mpifed.privacy.calibration import settle
from mpifed.privacy.protection import warnings_of
from mpifed.privacy.spending import without_epsilon
from mpifed.run.observation import checked_observers
from mpifed.run.own_classes import refuse_own_by_laws
from mpifed.run.setup import cells_of, measures_of, problem_of, tests_clients

_BYTES = ("up_bytes", "down_bytes")


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
    host = place(data.counts, job.data.block, ranks, job.dedicated).hosts  # [N] each client's rank
    algorithm = algorithm_of(job, data)
    refuse_own_by_laws(job, algorithm.problem)
    measures = measures_of(job, algorithm) if goals.measured(job) else ()
    counting = Counting(job, algorithm)
    counting.measure(measures)
    now = counting.now
    view = _view(job, data, now, ranks, host, counting.partners)
    describer = _ExchangeDescriber(job, algorithm, view, counting)
    everybody = describer._replace(view=view._replace(present=np.ones(data.clients, dtype=bool), leave=0))
    keys = counting.bytes_of("keys")
    times = Counter(exchange.name for exchange in algorithm.setup)
    setup_exchanges = {exchange.name: exchange for exchange in algorithm.setup}
    setup = [{**everybody.exchange(exchange), "times": times[name]} for name, exchange in setup_exchanges.items()]
    exchanges = [describer.exchange(exchange) for exchange in algorithm.exchanges]
    per_round = {key: sum(exchange[key] for exchange in exchanges) for key in _BYTES}
    before = {key: keys[key] + sum(exchange["times"] * exchange[key] for exchange in setup) for key in _BYTES}
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
        "privacy": outlook(job, algorithm),
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
        "placement": [
            {"rank": rank, "clients": clients, "rows": int(rows)}
            for rank, (clients, rows) in enumerate(
                zip(np.bincount(host, minlength=ranks).tolist(), np.bincount(host, data.counts, ranks), strict=True)
            )
        ],
        "data_bytes": _data_bytes(job, data, host),
    }


def algorithm_of(job: Job, data: store.Federation) -> Algorithm:
    """The job's algorithm, with calibrated noise if the job is private."""
    algorithm = job.make_algorithm(problem_of(job, data))
    return algorithm if job.privacy is None else with_noise(algorithm, settle(job, algorithm))


def _data_bytes(job: Job, data: store.Federation, host: NDArray[np.int64]) -> int:
    """Bytes of data on the rank with the most, if all its clients participate: values, labels and test data."""
    training = data.nbytes()
    stored = np.bincount(host, training + (data.nbytes(store.TESTS) if tests_clients(job, data) else 0))
    beside = np.bincount(host, SHARD_NBYTES + 8 * data.counts)
    values = np.where(stored <= job.data.memory_gib * 2**30, stored, 0) + beside  # others are mapped
    if goals.measured(job):
        values[0] += data.test_samples * (training.sum() / data.counts.sum() + 16)
    return int(values.max())


def _view(job: Job, data: store.Federation, now: Round, ranks: int, host: NDArray[np.int64], partners: int) -> View:
    leave, of_server = job.participation.max_dropouts if job.participation.dropout_rate else 0, int((host == 0).sum())
    return View(job.protection(), cells_of(data), now.present, ranks, of_server, partners, leave)


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
        settings = self.job.sum_settings(self.algorithm.problem)
        adder = make_sum(exchange, most_summed(self.job, self.algorithm, exchange), **settings)
        cost = {} if exchange.off_clock else self.counting.bytes_of(exchange.name)
        return {
            "name": exchange.name,
            "receives": _receiver(exchange),
            "security": self.job.channel if exchange.private else "plain",
            "arithmetic": _numbers(self.job, exchange),
            "broadcast": [
                {
                    "field": name,
                    "shape": list(np.shape(leaf)),
                    "dtype": str(np.asarray(leaf).dtype),
                    "bytes": nbytes(leaf),
                    **({"of": "own columns"} if name in exchange.told_by_columns else {}),
                }
                for name, leaf in leaves(broadcast)
            ],
            "upload": [
                {
                    "field": place.name.removeprefix(exchange.name + "."),
                    "shape": list(place.field.shape),
                    "dtype": str(adder.message.dtype),
                    "bytes": (place.stop - place.start) * adder.message.itemsize,
                    **place.form._asdict(),
                    **_of_whom(place.field),
                }
                for place in adder.places
            ],
            "broadcast_bytes": nbytes(broadcast),
            "upload_bytes": adder.nbytes,
            "learns": learns(exchange, adder.places, self.view),
            **cost,
        }


def _numbers(job: Job, exchange: Exchange) -> str:
    """The arithmetic of an exchange: "exact-blocks" only if the exchange can compute sums over blocks."""
    by_blocks = job.aggregation.arithmetic == "exact-blocks" and exchange.fused is None
    return "exact" if by_blocks else job.aggregation.arithmetic


def _receiver(exchange: Exchange) -> str:
    if not isinstance(exchange, ToClients):
        return "server"
    return "clients" if exchange.hearer is None else f"client {exchange.hearer}"


def _of_whom(field: Field) -> dict[str, str]:
    """The part of a field that a client fills, if not all of it."""
    if field.axis is not None:
        return {"of": "own columns" if field.columns is not None else "own rows"}
    return {} if field.sender is None else {"of": f"client {field.sender}"}
