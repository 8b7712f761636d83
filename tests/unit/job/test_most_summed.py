"""How many answers a sum must have room for: those present, where so many are drawn, else all clients'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked, job_table

from mpifed.comm.sums import Message
from mpifed.job.participation import arithmetic
from mpifed.maths.objectives import Softmax
from mpifed.maths.problem import Problem
from mpifed.testing import Job

CLIENTS = 100_000  # times the default bound of 2^50 steps: beyond one int64


def algorithm_of(**changes: Any) -> tuple[Job, Any]:
    job = checked(job_table(**changes))
    given = {"clients_per_round": job.participation.clients_per_round, "privacy": job.privacy}
    problem = Problem(Softmax(), "rows", np.full(CLIENTS, 16), 16 * CLIENTS, features=2, outputs=3, **given)
    return job, job.make_algorithm(problem)


def most_summed(job: Job, algorithm: Any, exchange: Any) -> int:
    return arithmetic(job, algorithm).most.get(exchange.name, CLIENTS)


FEW = {"clients_per_round": 100}
COINS = {
    "delta": 1e-6, "clip": 1.0, "noise_multiplier": 1.0, "level": "client", "sampling": "poisson", "trust": "central"
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "most", "limbs"),
    [({"participation": FEW}, 100, 1), ({}, CLIENTS, 2), ({"participation": FEW, "privacy": COINS}, CLIENTS, 1)],
)
def test_the_most_that_are_summed(more: dict[str, Any], most: int, limbs: int) -> None:
    """Coins may bring any number; measures sum over all."""
    job, algorithm = algorithm_of(**more)
    (exchange,) = algorithm.exchanges
    assert most_summed(job, algorithm, exchange) == most
    message = Message(exchange, CLIENTS, arithmetic(job, algorithm))
    assert {place.form.limbs for place in message.places if place.field.shape} == {limbs}
    measured = [one for measure in algorithm.measures for one in measure.exchanges]
    assert {most_summed(job, algorithm, one) for one in measured} <= {CLIENTS}
