"""`mpifed check JOB.toml`: who will receive what, and the bytes, memory and time that a run will take.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened. Time and memory are
those of a rehearsal: the rank with the most to do plays a round in this process, on random rows in the shapes of its
shards.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpifed.comm.masking.graph import enough
from mpifed.comm.placement import place
from mpifed.comm.sums import make_sum
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Exchange, Field, ToClients
from mpifed.core.record import leaves, nbytes
from mpifed.core.round import SETUP, Round
from mpifed.forecast.cost import NOTHING, Cost
from mpifed.forecast.outlook import outlook
from mpifed.forecast.rehearsal import (
    agreement_s,
    load_libraries,
    rehearse_measuring,
    rehearse_round,
    typical_round,
)
from mpifed.forecast.scenery import Stage, stock_like
from mpifed.forecast.visibility import View, in_general, learns
from mpifed.forecast.wording import forecast_text as forecast_text
from mpifed.run import goals
from mpifed.run.calibration import settle
from mpifed.run.config import Job, read_table
from mpifed.run.costs import KEYS
from mpifed.run.environment import peak_rss_bytes
from mpifed.run.fit import data_warnings, with_noise
from mpifed.run.job_file import check_data
from mpifed.run.memory import keep_freed_memory
from mpifed.run.network import described, played_once, simulate
from mpifed.run.own_modules import own_modules
from mpifed.run.participation import most_summed
from mpifed.run.protection import warnings_of
from mpifed.run.setup import cells_of, measures_of, problem_of
from mpifed.run.spending import without_epsilon
from mpifed.run.sweep import points
from mpifed.shards import store
from mpifed.shards.hosted import SHARD_NBYTES, STREAMED_NBYTES


def forecast(job_path: Path, changes: tuple[str, ...], ranks: int) -> dict[str, Any]:
    """What a job will send, to whom, and what it will take on so many ranks; of a sweep, its first point.

    Raises
    ------
    UsageError, DataError
        as `mpifed run` would before its first round.
    """
    table = read_table(job_path, changes)
    imports = own_modules(table)
    found = points(table, str(job_path))
    job, process_bytes = found[0].job, peak_rss_bytes()
    check_data(job_path, Path(job.data.path))
    data = store.open_federation(job.data.path)
    placement = place(data.counts, job.data.block, ranks, job.dedicated)
    hosts = len(np.unique(placement.ranks))
    stage = Stage(job, data, algorithm_of(job, data), stock_like(data), hosts)
    host = placement.hosts  # [N] each client's rank
    now, busiest = typical_round(job, data, stage.algorithm.exchanges, host)
    keep_freed_memory()
    load_libraries(job.privacy)
    with threadpool_limits(1):
        if job.privacy is not None:
            rehearse_round(stage, placement, now, busiest)  # the first makes what all others only use
        a_round = rehearse_round(stage, placement, now, busiest)
        most = int(np.bincount(host, data.counts).max())
        measuring, certifying = (
            rehearse_measuring(stage, most, certify) if goals.measured(job) else NOTHING for certify in (False, True)
        )
    view = _view(job, data, now, ranks, host, a_round.partners)
    asked = _Asked(job, stage.algorithm, view, a_round, certifying)
    everybody = asked._replace(view=view._replace(present=np.ones(data.clients, dtype=bool), leave=0))
    measures = measures_of(job, stage.algorithm) if goals.measured(job) else ()
    measurements = _measurements(job)
    certificates = _certificates(job, measurements) if any(one.certificate for one in measures) else 0
    training_s = min(job.rounds * a_round.seconds, job.stop.seconds or np.inf)
    keys = _keys(job, data, now, a_round)
    turns = Counter(one.name for one in stage.algorithm.setup)
    once = {one.name: one for one in stage.algorithm.setup}
    setup = [{**everybody.exchange(one), "times": turns[name]} for name, one in once.items()]
    exchanges = [asked.exchange(one) for one in stage.algorithm.exchanges]
    per_round = {key: sum(one[key] for one in exchanges) for key in KEYS}
    before = {key: keys[key] + sum(one["times"] * one[key] for one in setup) for key in KEYS}
    whole = {key: before[key] + job.rounds * per_round[key] for key in KEYS}
    memory = {
        "process": process_bytes,
        "data": _data_bytes(job, data, host) + _states_bytes(stage, host, now),
        "work": max(a_round.memory, certifying.memory),
    }
    return {
        "job": job.name,
        "points": len(found),
        "imports": [module._asdict() for module in imports],
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": int(now.present.sum()),
        "security": job.channel,
        "arithmetic": job.aggregation.arithmetic,
        "keys": keys,
        "setup": setup,
        "exchanges": exchanges,
        "measures": [everybody.exchange(one) for measure in measures for one in measure.exchanges],
        "privacy": outlook(job, stage.algorithm),
        "warnings": [
            *stage.algorithm.warnings(),
            *data_warnings(job, data),
            *warnings_of(job, stage.algorithm.problem.privacy, without_epsilon(stage.algorithm)),
        ],
        **{f"{key}_per_round": value for key, value in per_round.items()},
        **whole,
        "dropout_rate": job.participation.dropout_rate,
        "void_chance": _void_chance(job, int(now.present.sum())),
        "who_learns": in_general(stage.algorithm, view, bool(measures)),
        "ranks": ranks,
        "placement": [
            {"rank": rank, "clients": clients, "rows": int(rows)}
            for rank, (clients, rows) in enumerate(
                zip(np.bincount(host, minlength=ranks).tolist(), np.bincount(host, data.counts, ranks), strict=True)
            )
        ],
        "memory_bytes": {**memory, "largest_rank": sum(memory.values())},
        "extrapolated": list(dict.fromkeys((*a_round.extrapolated, *measuring.extrapolated))),
        "simulated": _simulated(stage, a_round, keys),
        "seconds": {
            "round": a_round.seconds,
            "evaluation": measuring.seconds,
            "evaluations": measurements,
            "certificate": max(certifying.seconds - measuring.seconds, 0.0),
            "certificates": certificates,
            "elapsed": training_s,
            "run": training_s
            + measurements * measuring.seconds
            + certificates * max(certifying.seconds - measuring.seconds, 0.0),
        },
    }


def algorithm_of(job: Job, data: store.Federation) -> Algorithm:
    """The job's algorithm, with as much noise as it needs."""
    algorithm = job.make_algorithm(problem_of(job, data))
    return algorithm if job.privacy is None else with_noise(algorithm, settle(job, algorithm))


def _simulated(stage: Stage, a_round: Cost, keys: dict[str, float]) -> dict[str, Any] | None:
    """What a round, and all that comes before it, would take over the job's network, if it has one."""
    network = stage.job.simulated_network
    if network is None:
        return None
    accounts = {"keys": keys, **a_round.accounts}
    return described(network, simulate(network, accounts, played_once(stage.algorithm), stage.data.clients))


def _measurements(job: Job) -> int:
    """How many rounds are measured, the first and the last among them."""
    if not goals.measured(job):
        return 0
    return len(range(0, job.rounds, job.record.evaluate_every or job.rounds)) + 1


def _certificates(job: Job, measurements: int) -> int:
    """How many of the measured rounds are certified."""
    every, record = job.record.certify_every, job.record
    if job.stop.certificates:
        return measurements
    return len(range(0, job.rounds, math.lcm(every, record.evaluate_every) or job.rounds)) + 1


def _data_bytes(job: Job, data: store.Federation, host: NDArray[np.int64]) -> int:
    """Bytes on the rank that holds most, if all its clients are ever present: values in memory, labels; test data."""
    beside = SHARD_NBYTES + 8 * data.counts  # also of clients whose values stay in their files
    whole, labels = np.bincount(host, data.nbytes + beside), np.bincount(host, beside)
    room = job.data.memory_gib * 2**30
    values = np.where(whole <= room, whole, room + np.minimum(labels, STREAMED_NBYTES))
    if goals.measured(job):
        values[0] += data.test_samples * (data.nbytes.sum() / data.counts.sum() + 16)
    return int(values.max())


def _states_bytes(stage: Stage, host: NDArray[np.int64], now: Round) -> int:
    """Bytes that the clients of a rank keep who are not in the rehearsed round, as far as they stay in memory."""
    largest = stage.block([int((stage.data.counts * stage.data.widths).argmax())])
    everybody = Round(SETUP, stage.job.seed, np.ones(stage.data.clients, dtype=bool))
    absent = int(np.bincount(host, ~now.present).max())
    each = nbytes(stage.algorithm.start_clients(largest, everybody)) if absent else 0
    return int(min(absent * each, stage.job.data.state_gib * 2**30))


def _view(job: Job, data: store.Federation, now: Round, ranks: int, host: NDArray[np.int64], partners: int) -> View:
    withstands = enough(int(now.present.sum()), job.participation.max_dropouts) if partners else 0
    at_server = int((host == 0).sum())
    leave = job.participation.max_dropouts if job.participation.dropout_rate else 0
    return View(job.protection(), cells_of(data), now.present, ranks, at_server, partners, withstands, leave)


def _keys(job: Job, data: store.Federation, now: Round, a_round: Cost) -> dict[str, float]:
    """What keys cost, those included that pairs of clients agree on when they first meet."""
    keys = a_round.exchanges["keys"]
    if job.channel == "plain":
        return dict.fromkeys(keys, 0)
    if a_round.partners:
        met = min(data.clients - 1, a_round.partners * max(1.0, job.rounds * now.present.mean()))
        keys = keys | {"crypto_s": keys["crypto_s"] + data.clients * met * agreement_s()}
    return keys


def _void_chance(job: Job, present: int) -> float:
    """That more leave within a round than may."""
    rate, most = job.participation.dropout_rate, job.participation.max_dropouts
    if not rate:
        return 0.0
    leave, stay, lgamma = math.log(rate), math.log1p(-rate), math.lgamma  # of so many clients binomials overflow
    few = range(min(most, present) + 1)
    logs = (k * leave + (present - k) * stay - lgamma(k + 1) - lgamma(present - k + 1) for k in few)
    return max(0.0, 1 - math.fsum(math.exp(lgamma(present + 1) + log) for log in logs))


class _Asked(NamedTuple):
    """What is known of the exchanges."""

    job: Job
    algorithm: Algorithm
    view: View
    a_round: Cost
    certifying: Cost

    def exchange(self, exchange: Exchange) -> dict[str, Any]:
        """One exchange: what is broadcast, what is uploaded, who receives the sum, how it is summed, what it costs."""
        question = (self.a_round.questions | self.certifying.questions)[exchange.name]
        adder = make_sum(exchange, most_summed(self.job, self.algorithm, exchange), **self.job.sum_settings())
        cost = {} if exchange.off_clock else self.a_round.exchanges.get(exchange.name, dict.fromkeys(KEYS, 0))
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
                for name, leaf in leaves(question)
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
            "broadcast_bytes": nbytes(question),
            "upload_bytes": adder.nbytes,
            "learns": learns(exchange, adder.places, self.view),
            **cost,
        }


def _numbers(job: Job, exchange: Exchange) -> str:
    """What is added: of blocks, only where the exchange can give their sums."""
    by_blocks = job.aggregation.arithmetic == "exact-blocks" and exchange.fused is None
    return "exact" if by_blocks else job.aggregation.arithmetic


def _receiver(exchange: Exchange) -> str:
    if not isinstance(exchange, ToClients):
        return "server"
    return "clients" if exchange.hearer is None else f"client {exchange.hearer}"


def _of_whom(field: Field) -> dict[str, str]:
    """Where clients fill a field in parts, which."""
    if field.axis is not None:
        return {"of": "own columns" if field.columns is not None else "own rows"}
    return {} if field.sender is None else {"of": f"client {field.sender}"}
