"""`mpifed check JOB.toml`: who will receive what, and the bytes, memory and time that a run will take.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened. Time and memory come
from a rehearsal: this process runs a round as the busiest rank would, on random rows in the shapes of its shards.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpifed.comm.accumulate import make_sum
from mpifed.comm.placement import place
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Exchange, Field, ToClients
from mpifed.core.record import leaves, nbytes
from mpifed.core.round import SETUP, Round
from mpifed.core.tables import Table
from mpifed.forecast.disclosure import View, general_statements, learns, observer_statement, test_statements
from mpifed.forecast.extrapolated import NO_COST, MeasuredCost
from mpifed.forecast.outlook import outlook
from mpifed.forecast.rehearsal import (
    agreement_s,
    load_libraries,
    rehearse_measuring,
    rehearse_round,
    typical_round,
)
from mpifed.forecast.synthetic_shards import Scenario, random_rows_like
from mpifed.forecast.text import forecast_text as forecast_text
from mpifed.job import goals
from mpifed.job.job import Job, read_table
from mpifed.job.loading import check_data
from mpifed.job.own_sources import own_modules
from mpifed.job.participation import most_summed
from mpifed.job.sweep import points
from mpifed.job.time_model import described, played_once, simulate
from mpifed.job.validation import data_warnings, with_noise
from mpifed.maths.objectives import NeuralNetwork
from mpifed.privacy.calibration import settle
from mpifed.privacy.protection import warnings_of
from mpifed.privacy.spending import without_epsilon
from mpifed.results.costs import KEYS
from mpifed.run.environment import keep_freed_memory, peak_rss_bytes
from mpifed.run.observation import checked_observers
from mpifed.run.setup import cells_of, measures_of, problem_of, tests_clients
from mpifed.shards import store
from mpifed.shards.hosted import SHARD_NBYTES, STREAMED_NBYTES


def forecast(job_path: Path, changes: tuple[str, ...], ranks: int) -> Table:
    """The forecast of a job on `ranks` ranks, of a sweep its first point: who learns what, bytes, memory and time.

    Raises UsageError or DataError as `mpifed run` would before its first round.
    """
    table = read_table(job_path, changes)
    imports = own_modules(table)
    all_points = points(table, str(job_path))
    job = all_points[0].job
    observers = checked_observers(job.make_observers())
    check_data(job_path, Path(job.data.path))
    data = store.open_federation(job.data.path)
    placement = place(data.counts, job.data.block, ranks, job.dedicated)
    hosts = len(np.unique(placement.ranks))
    scenario = Scenario(job, data, algorithm_of(job, data), random_rows_like(data), hosts)
    process_bytes = peak_rss_bytes()  # with the libraries that the job needs
    host = placement.hosts  # [N] each client's rank
    now, busiest = typical_round(job, data, scenario.algorithm.exchanges, host)
    keep_freed_memory()
    load_libraries(job.privacy)
    with threadpool_limits(1):
        if job.privacy is not None:
            rehearse_round(scenario, placement, now, busiest)  # the first one fills caches
        round_cost = rehearse_round(scenario, placement, now, busiest)
        most_rows = int(np.bincount(host, data.counts + data.tests.counts * tests_clients(job, data)).max())
        evaluating, certifying = (
            rehearse_measuring(scenario, most_rows, certify) if goals.measured(job) else NO_COST
            for certify in (False, True)
        )
    view = _view(job, data, now, ranks, host, round_cost.partners)
    describer = _ExchangeDescriber(job, scenario.algorithm, view, round_cost, certifying)
    everybody = describer._replace(view=view._replace(present=np.ones(data.clients, dtype=bool), leave=0))
    measures = measures_of(job, scenario.algorithm) if goals.measured(job) else ()
    evaluations = _measurements(job)
    certificates = _certificates(job, evaluations) if any(measure.certificate for measure in measures) else 0
    training_s = min(job.rounds * round_cost.seconds, job.stop.seconds or np.inf)
    keys = _keys(job, data, now, round_cost)
    times = Counter(exchange.name for exchange in scenario.algorithm.setup)
    setup_exchanges = {exchange.name: exchange for exchange in scenario.algorithm.setup}
    setup = [{**everybody.exchange(exchange), "times": times[name]} for name, exchange in setup_exchanges.items()]
    exchanges = [describer.exchange(exchange) for exchange in scenario.algorithm.exchanges]
    per_round = {key: sum(exchange[key] for exchange in exchanges) for key in KEYS}
    before = {key: keys[key] + sum(exchange["times"] * exchange[key] for exchange in setup) for key in KEYS}
    whole = {key: before[key] + job.rounds * per_round[key] for key in KEYS}
    work = max(round_cost.memory, certifying.memory)
    if isinstance(scenario.algorithm.problem.objective, NeuralNetwork):  # its library's memory is not traced
        work = max(work, float(peak_rss_bytes() - process_bytes))
    memory = {
        "process": process_bytes,
        "data": _data_bytes(job, data, host) + _states_bytes(scenario, host, now),
        "work": work,
    }
    return {
        "job": job.name,
        "points": len(all_points),
        "imports": [module._asdict() for module in imports],
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": int(now.present.sum()),
        "security": job.channel,
        "arithmetic": job.aggregation.arithmetic,
        "keys": keys,
        "setup": setup,
        "exchanges": exchanges,
        "measures": [everybody.exchange(exchange) for measure in measures for exchange in measure.exchanges],
        "privacy": outlook(job, scenario.algorithm),
        "warnings": [
            *scenario.algorithm.warnings(),
            *data_warnings(job, data),
            *warnings_of(job, scenario.algorithm.problem.privacy, without_epsilon(scenario.algorithm)),
        ],
        **{f"{key}_per_round": value for key, value in per_round.items()},
        **whole,
        "dropout_rate": job.participation.dropout_rate,
        "void_chance": _void_chance(job, int(now.present.sum())),
        "who_learns": [
            *general_statements(scenario.algorithm, view, bool(measures)),
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
        "memory_bytes": {**memory, "largest_rank": sum(memory.values())},
        "extrapolated": list(dict.fromkeys((*round_cost.extrapolated, *evaluating.extrapolated))),
        "simulated": _simulated(scenario, round_cost, keys),
        "seconds": {
            "round": round_cost.seconds,
            "evaluation": evaluating.seconds,
            "evaluations": evaluations,
            "certificate": max(certifying.seconds - evaluating.seconds, 0.0),
            "certificates": certificates,
            "elapsed": training_s,
            "run": training_s
            + evaluations * evaluating.seconds
            + certificates * max(certifying.seconds - evaluating.seconds, 0.0),
        },
    }


def algorithm_of(job: Job, data: store.ShardFolder) -> Algorithm:
    """The job's algorithm, with calibrated noise if the job is private."""
    algorithm = job.make_algorithm(problem_of(job, data))
    return algorithm if job.privacy is None else with_noise(algorithm, settle(job, algorithm))


def _simulated(scenario: Scenario, round_cost: MeasuredCost, keys: dict[str, float]) -> Table | None:
    """The simulated times of the setup and of a round; None if the job has no [simulated_network]."""
    network = scenario.job.simulated_network
    if network is None:
        return None
    accounts = {"keys": keys, **round_cost.accounts}
    return described(network, simulate(network, accounts, played_once(scenario.algorithm), scenario.data.clients))


def _measurements(job: Job) -> int:
    """The number of evaluated rounds, including the first and the last."""
    if not goals.measured(job):
        return 0
    return len(range(0, job.rounds, job.record.evaluate_every or job.rounds)) + 1


def _certificates(job: Job, evaluations: int) -> int:
    """The number of evaluated rounds with a certificate."""
    every, record = job.record.certify_every, job.record
    if job.stop.certificates:
        return evaluations
    return len(range(0, job.rounds, math.lcm(every, record.evaluate_every) or job.rounds)) + 1


def _data_bytes(job: Job, data: store.ShardFolder, host: NDArray[np.int64]) -> int:
    """Bytes of data on the rank with the most, if all its clients participate: values, labels and test data."""
    beside = SHARD_NBYTES + 8 * data.counts  # also for clients whose values stay in their files
    held = data.nbytes + beside + (data.tests.nbytes if tests_clients(job, data) else 0)
    whole, labels = np.bincount(host, held), np.bincount(host, beside)
    room = job.data.memory_gib * 2**30
    values = np.where(whole <= room, whole, room + np.minimum(labels, STREAMED_NBYTES))
    if goals.measured(job):
        values[0] += data.test_samples * (data.nbytes.sum() / data.counts.sum() + 16)
    return int(values.max())


def _states_bytes(scenario: Scenario, host: NDArray[np.int64], now: Round) -> int:
    """Bytes in memory of the states of a rank's clients that do not participate in the rehearsed round."""
    largest = scenario.block([int((scenario.data.counts * scenario.data.widths).argmax())])
    everybody = Round(SETUP, scenario.job.seed, np.ones(scenario.data.clients, dtype=bool))
    absent = int(np.bincount(host, ~now.present).max())
    each = nbytes(scenario.algorithm.start_clients(largest, everybody)) if absent else 0
    return int(min(absent * each, scenario.job.data.state_gib * 2**30))


def _view(job: Job, data: store.ShardFolder, now: Round, ranks: int, host: NDArray[np.int64], partners: int) -> View:
    leave, of_server = job.participation.max_dropouts if job.participation.dropout_rate else 0, int((host == 0).sum())
    return View(job.protection(), cells_of(data), now.present, ranks, of_server, partners, leave)


def _keys(job: Job, data: store.ShardFolder, now: Round, round_cost: MeasuredCost) -> dict[str, float]:
    """The cost of keys, including those that pairs of clients agree on when they first participate together."""
    keys = round_cost.exchanges["keys"]
    if job.channel == "plain":
        return dict.fromkeys(keys, 0)
    if round_cost.partners:
        met = min(data.clients - 1, round_cost.partners * max(1.0, job.rounds * now.present.mean()))
        keys = keys | {"crypto_s": keys["crypto_s"] + data.clients * met * agreement_s()}
    return keys


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
    round_cost: MeasuredCost
    certifying: MeasuredCost

    def exchange(self, exchange: Exchange) -> Table:
        """One exchange: what is broadcast and uploaded, who receives the sum, how it is summed, and its cost."""
        broadcast = (self.round_cost.broadcasts | self.certifying.broadcasts)[exchange.name]
        settings = self.job.sum_settings(self.algorithm.problem)
        adder = make_sum(exchange, most_summed(self.job, self.algorithm, exchange), **settings)
        cost = {} if exchange.off_clock else self.round_cost.exchanges.get(exchange.name, dict.fromkeys(KEYS, 0))
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
                    **({} if self.job.aggregation.arithmetic == "float" else place.form._asdict()),
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
