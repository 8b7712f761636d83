"""[privacy], [regularizer] and a budget in a job: what is written out, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table
from scipy.optimize import brentq
from scipy.stats import norm

from mpifed import FedAvg
from mpifed.core.errors import UsageError
from mpifed.maths.objectives import Softmax
from mpifed.maths.privacy.release import Release
from mpifed.maths.problem import Problem
from mpifed.privacy.calibration import settle
from mpifed.testing import Job

PRIVATE = {"delta": 1e-3, "clip": 1.0, "noise_multiplier": 2.0}


@dataclass(frozen=True)
class Told(FedAvg):
    """Says what it releases: one mechanism a round."""

    rate: float = 1.0

    def check(self) -> list[str]:
        return []

    def released(self) -> Release:
        ones = np.ones(self.problem.clients)
        z = ones * self.problem.privacy.noise_multiplier
        return Release(1, z, self.rate * ones)


def table(**changes: Any) -> dict[str, Any]:
    own = fedavg() | {"name": f"{__name__}:Told"}
    return job_table(**{"algorithm": own, "privacy": dict(PRIVATE)} | changes)


def problem(job: Job) -> Problem:
    counts, own = np.array([10, 20, 30]), {"regularizer": job.make_regularizer(), "privacy": job.privacy}
    return Problem(Softmax(), "rows", counts, samples=60, features=2, outputs=3, **own)  # type: ignore[arg-type]


def said_of(table_: dict[str, Any], with_data: bool = False) -> str:
    """The one thing that is wrong with a job, or with it and its data."""
    if with_data:
        job = checked(table_)
    with pytest.raises(UsageError) as caught:
        _ = job.make_algorithm(problem(job)) if with_data else checked(table_)
    (_, line) = str(caught.value).splitlines()
    return line.strip()


# --- [privacy] ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clip": None}, "[privacy] clip: missing; without a bound"),
        ({"clip": float("inf")}, "[privacy] clip = Infinity: expected a number of at most 1e+30"),
        ({"noise_multiplier": None}, "[privacy] epsilon, noise_multiplier: each follows from the other"),
        ({"epsilon": 2.0}, "[privacy] epsilon, noise_multiplier: each follows from the other"),
        ({"epsilon": 0, "noise_multiplier": None}, "[privacy] epsilon = 0: expected a number above 0"),
        ({"delta": 1.0}, "[privacy] delta = 1.0: expected a number below 1"),
        ({"delta": None}, "[privacy] delta: missing"),
        ({"level": "record"}, '[privacy] level = "record": '),
        ({"level": "client", "sampling": "poisson", "trust": "central"}, '"client": each client takes part by a coin'),
        ({"trust": "central"}, '[privacy] level = "sample" with trust = "central"'),
    ],
)
def test_what_is_wrong_by_itself(changes: dict[str, Any], said: str) -> None:
    assert said in said_of(table(privacy={k: value for k, value in (PRIVATE | changes).items() if value is not None}))


@pytest.mark.parametrize(("level", "fits", "n"), [("sample", 0.016, 60), ("client", 0.33, 3)])
def test_delta_must_lie_below_one_of_all(level: str, fits: float, n: int) -> None:
    job = checked(table(privacy=PRIVATE | {"delta": fits, "level": level}))
    job.make_algorithm(problem(job))
    line = said_of(table(privacy=PRIVATE | {"delta": 1 / n, "level": level}), True)
    assert line.startswith(f"[privacy] delta = {1 / n:g}: must lie below 1/{n} = {1 / n:.2g}")


def test_what_has_no_proof_depends_on_sampling() -> None:
    """Leaving a client out of a fixed number of them: fine where nothing is sampled."""
    left_out = PRIVATE | {"level": "client", "trust": "central", "delta": 0.1}
    own = table()["algorithm"]
    line = said_of(table(privacy=left_out, algorithm=own | {"rate": 0.5}), True)
    assert 'at level "client"' in line and 'sampling = "poisson"' in line
    job = checked(table(privacy=left_out, algorithm=own | {"rate": 1.0}))
    job.make_algorithm(problem(job))


# --- budgets -----------------------------------------------------------------------------------------------------


def test_a_budget_needs_privacy() -> None:
    without = {key: value for key, value in table(stop={"epsilon": 2.0}).items() if key != "privacy"}
    assert said_of(without).startswith("[stop] epsilon = 2: a budget needs the table [privacy]")
    assert said_of(table(stop={"epsilon": 0})) == "[stop] epsilon = 0: expected a number above 0"


def settled(**changes: Any) -> float:
    job = checked(table(**changes))
    return settle(job, job.make_algorithm(problem(job)))


def test_a_budget_that_one_round_exceeds() -> None:
    """One Gaussian mechanism of multiplier 2, by Theorem 8 of Balle and Wang (ICML 2018)."""

    def delta(epsilon: float) -> float:
        return float(norm.cdf(1 / 4 - 2 * epsilon) - np.exp(epsilon) * norm.cdf(-1 / 4 - 2 * epsilon))

    cost = brentq(lambda epsilon: delta(epsilon) - 1e-3, 0.1, 10)
    assert settled(stop={"epsilon": cost * 1.001}) == 2.0
    with pytest.raises(UsageError, match=rf"already spent: one single round costs {cost:.3g} at delta = 0\.001"):
        settled(stop={"epsilon": cost * 0.999})
    with pytest.raises(UsageError, match="one single round costs inf"):
        settled(stop={"epsilon": 100.0}, privacy=PRIVATE | {"noise_multiplier": 0})
