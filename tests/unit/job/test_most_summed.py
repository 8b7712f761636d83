"""How many answers a sum must have room for: those present, where so many are drawn, else all clients'."""

from __future__ import annotations

from typing import Any

import numpy as np
from jobs_in_python import checked

from mpifed.comm.sums import Message
from mpifed.core.exchange import Problem
from mpifed.job.participation import arithmetic
from mpifed.maths.objectives import Softmax
from mpifed.testing import Job

CLIENTS = 100_000  # times the default bound of 2^50 steps: beyond one int64


def algorithm_of(**changes: Any) -> tuple[Job, Any]:
    table: dict[str, Any] = {
        "name": "job", "rounds": 3, "data": {"path": "somewhere"}, "model": {"name": "softmax", "bias": False},
        "algorithm": {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}},
    }  # fmt: skip
    job = checked(table | changes)
    counts = np.full(CLIENTS, 16)
    given = {"clients_per_round": job.participation.clients_per_round, "privacy": job.privacy}
    problem = Problem(Softmax(), "rows", counts, samples=16 * CLIENTS, features=2, outputs=3, **given)
    return job, job.make_algorithm(problem)


def limbs(job: Job, algorithm: Any, exchange: Any) -> list[int]:
    message = Message(exchange, CLIENTS, arithmetic(job, algorithm))
    return [place.form.limbs for place in message.places if place.field.shape]


def most_summed(job: Job, algorithm: Any, exchange: Any) -> int:
    return arithmetic(job, algorithm).most.get(exchange.name, CLIENTS)


def test_few_of_many_clients_need_one_integer_a_value() -> None:
    job, algorithm = algorithm_of(participation={"clients_per_round": 100})
    (exchange,) = algorithm.exchanges
    assert most_summed(job, algorithm, exchange) == 100
    assert set(limbs(job, algorithm, exchange)) == {1}


def test_all_of_them_need_two() -> None:
    job, algorithm = algorithm_of()
    (exchange,) = algorithm.exchanges
    assert most_summed(job, algorithm, exchange) == CLIENTS
    assert set(limbs(job, algorithm, exchange)) == {2}


def test_measures_sum_over_all() -> None:
    job, algorithm = algorithm_of(participation={"clients_per_round": 100})
    measured = [one for measure in algorithm.measures for one in measure.exchanges]
    assert measured
    assert {most_summed(job, algorithm, one) for one in measured} == {CLIENTS}


def test_coins_may_bring_any_number() -> None:
    privacy = {
        "delta": 1e-6, "clip": 1.0, "noise_multiplier": 1.0,
        "level": "client", "sampling": "poisson", "trust": "central",
    }  # fmt: skip
    job, algorithm = algorithm_of(participation={"clients_per_round": 100}, privacy=privacy)
    assert most_summed(job, algorithm, algorithm.exchanges[0]) == CLIENTS
