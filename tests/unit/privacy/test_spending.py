"""What clients have released, and the epsilons it comes to: against the accountants called by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpifed import Privacy
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.accounting import calibrate
from mpifed.maths.privacy.release import Release
from mpifed.privacy.ledger_file import columns_of
from mpifed.privacy.spending import Costs, Spending

DELTA = 1e-4
PRIVACY = Privacy(delta=DELTA, clip=1.0, noise_multiplier=10.0)


def nothing(multiplier: Any, rate: Any = 1.0, mechanisms: int = 1, clients: int = 4, **changes: Any) -> Spending:
    ones = np.ones(clients)
    return Spending(
        PRIVACY, Release(mechanisms, multiplier * ones, rate * ones, **changes), np.zeros(clients, np.int64)
    )


def present(*clients: int, of: int = 4) -> NDArray[np.bool_]:
    return np.isin(np.arange(of), clients)


def by_hand(multiplier: float, rate: float, count: int) -> float:
    """What is drawn as integers has a billionth of delta set aside for how close they are."""
    return accounting.epsilon(multiplier, rate, count, DELTA * (1 - 1e-9))


def test_nothing_is_free() -> None:
    assert nothing(2.0, paper_rate=np.full(4, 0.5)).costs()[:3] == (0.0, 0.0, 0.0)
    assert nothing(np.inf).after(present(0, 1)).costs()[:2] == (0.0, 0.0)


def test_rounds_are_counted_for_those_present() -> None:
    spending = nothing(5.0, 0.25, mechanisms=3, paper_rate=np.full(4, 0.125))
    for who in [(0, 1, 2), (0, 1), (0,), (0, 1)]:
        spending = spending.after(present(*who))
    assert spending.rounds.tolist() == [4, 3, 1, 0]
    found = spending.costs()
    assert found.epsilon == by_hand(5.0, 0.25, 12)
    assert found.epsilon_unamplified == accounting.unamplified(5.0, 12, DELTA * (1 - 1e-9))
    assert found.epsilon_paper == pytest.approx(paper.composed(10.0, 0.125, 12, DELTA), rel=1e-12)
    assert found.epsilon_unamplified > found.epsilon > 0
    assert spending.after(present(0)).worst() > spending.worst() == found.epsilon  # which is no other's
    assert math.isnan(nothing(5.0).after(True).worst_paper())


def test_all_count_where_who_takes_part_is_secret() -> None:
    assert nothing(3.0, 0.5, by_chance=True).after(present(1)).rounds.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("seed", range(6))
def test_the_worst_is_the_worst_of_all(seed: int) -> None:
    """Rates, multipliers and counts at random: no client spends more than what is found without asking each."""
    rng = np.random.default_rng(seed)
    spending = nothing(rng.choice([2.0, 3.0], 12), rng.choice([0.05, 0.1, 0.2, 1.0], 12), clients=12)
    spending = replace(spending, rounds=rng.integers(0, 7, 12))
    release = spending.release
    clients = list(zip(release.multiplier, release.rate, spending.rounds.tolist(), strict=True))
    assert spending.worst() == max(by_hand(*one) for one in clients)
    unamplified = [accounting.unamplified(m, n, DELTA * (1 - 1e-9)) for m, _, n in clients]
    assert spending.unamplified() == max(unamplified)


@pytest.mark.parametrize("target", [1.0, 3.0])
def test_noise_covers_every_client(target: float) -> None:
    """Much noise and no sampling beside little noise and rare sampling: now the one, now the other spends most."""
    multiplier, rate = np.array([4.0, 0.5]), np.array([1.0, 0.02])

    def spending(z: float) -> Spending:
        return nothing(z * multiplier, rate, clients=2).after(True)

    z = calibrate(lambda z: spending(z).worst(), target)
    costs = [by_hand(z * m, q, 1) for m, q in zip(multiplier, rate, strict=True)]
    assert spending(z).worst() == max(costs) <= target < 1.001 * max(costs)


def test_without_noise_epsilon_is_infinite() -> None:
    found = columns_of(nothing(0.0, 0.5).after(present(0, 1, 2)))
    assert found == dict.fromkeys(Costs._fields)
