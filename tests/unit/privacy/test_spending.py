"""What clients have released, and the epsilons it comes to: against the accountants called by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table

from mpifed import Privacy
from mpifed.maths.privacy import accounting, paper
from mpifed.maths.privacy.release import Release
from mpifed.privacy.protection import shares, warnings_of
from mpifed.privacy.spending import Spending
from mpifed.testing import Job

DELTA = 1e-4
PRIVACY = Privacy(delta=DELTA, clip=1.0, noise_multiplier=10.0)


def nothing(multiplier: Any, rate: Any = 1.0, mechanisms: int = 1, clients: int = 4, **changes: Any) -> Spending:
    ones = np.ones(clients)
    release = Release(mechanisms, multiplier * ones, rate * ones, **changes)
    return Spending(PRIVACY, release, np.zeros(clients, np.int64))


def by_hand(multiplier: float, rate: float, count: int) -> float:
    """What is drawn as integers has a billionth of delta set aside for how close they are."""
    return accounting.epsilon(multiplier, rate, count, DELTA * (1 - 1e-9))


def unamplified(multiplier: float, count: int) -> float:
    return accounting.unamplified(multiplier, count, DELTA * (1 - 1e-9))


def test_nothing_is_free_and_no_noise_costs_everything() -> None:
    free = {"epsilon": 0.0, "epsilon_unamplified": 0.0, "epsilon_paper": 0.0, "epsilon_if_secret": None}
    assert nothing(2.0, paper_rate=np.full(4, 0.5)).epsilons() == free
    assert nothing(np.inf).after(True).epsilons() == free | {"epsilon_paper": None}
    assert nothing(0.0, 0.5).after(True).epsilons() == dict.fromkeys(free)


def test_rounds_are_counted_for_those_present() -> None:
    """All count where who takes part is secret."""
    spending = nothing(5.0, 0.25, mechanisms=3, paper_rate=np.full(4, 0.125))
    for who in [(0, 1, 2), (0, 1), (0,), (0, 1)]:
        spending = spending.after(np.isin(np.arange(4), who))
    assert spending.rounds.tolist() == [4, 3, 1, 0]
    found = spending.epsilons()
    assert (found["epsilon"], found["epsilon_unamplified"]) == (by_hand(5.0, 0.25, 12), unamplified(5.0, 12))
    assert found["epsilon_paper"] == pytest.approx(paper.composed(10.0, 0.125, 12, DELTA), rel=1e-12)
    assert found["epsilon_unamplified"] > found["epsilon"] > 0
    assert spending.after(np.arange(4) == 0).worst() > spending.worst() == found["epsilon"]  # which is no other's
    assert math.isnan(nothing(5.0).after(True).worst_paper())
    assert nothing(3.0, 0.5, by_chance=True).after(np.arange(4) == 1).rounds.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("seed", range(6))
def test_the_worst_is_the_worst_of_all(seed: int) -> None:
    """Rates, multipliers and counts at random: no client spends more than what is found without asking each."""
    rng = np.random.default_rng(seed)
    spending = nothing(rng.choice([2.0, 3.0], 12), rng.choice([0.05, 0.1, 0.2, 1.0], 12), clients=12)
    spending = replace(spending, rounds=rng.integers(0, 7, 12))
    release = spending.release
    clients = list(zip(release.multiplier, release.rate, spending.rounds.tolist(), strict=True))
    assert spending.worst() == max(by_hand(*one) for one in clients)
    assert spending.worst(amplified=False) == max(unamplified(m, n) for m, _, n in clients)


@pytest.mark.parametrize("target", [1.0, 3.0])
def test_noise_covers_every_client(target: float) -> None:
    """Much noise and no sampling beside little noise and rare sampling: now the one, now the other spends most."""
    multiplier, rate = np.array([4.0, 0.5]), np.array([1.0, 0.02])

    def worst(z: float) -> float:
        return nothing(z * multiplier, rate, clients=2).after(True).worst()

    z = accounting.calibrate(worst, target)
    costs = [by_hand(z * m, q, 1) for m, q in zip(multiplier, rate, strict=True)]
    assert worst(z) == max(costs) <= target < 1.001 * max(costs)


# --- noise that clients share, by the channel that their uploads travel in --------------------------------------------


def job_of(channel: str, trust: str = "distributed", **tables: Any) -> Job:
    privacy = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0, "level": "client", "trust": trust}
    given = {"algorithm": fedavg(20), "aggregation": {"security": channel}, "privacy": privacy}
    return checked(job_table(**given, **tables))


@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_who_is_warned(trust: str, channel: str) -> None:
    job = job_of(channel, trust)
    said = "sees each client's upload, with its part of the noise, and is not covered"
    assert any(said in one for one in warnings_of(job, job.privacy)) == (trust == "distributed" and channel == "plain")


@pytest.mark.parametrize(("channel", "leave"), [("masked", 0), ("masked", 2), ("encrypted", 0)])
def test_clients_who_tell_the_server_their_noise(channel: str, leave: int) -> None:
    """Of 9 clients, or the 7 who stay, a third: what is left of the variance is the others'."""
    job, ones = job_of(channel, participation={"clients_per_round": 9, "max_dropouts": leave}), np.ones(30)
    assert job.privacy is not None
    spending = Spending(job.privacy, Release(1, 2.0 * ones, ones), np.full(30, 5))
    found, stay = spending.epsilons(shares(job, 30)), 9 - leave
    assert found["colluding"] == [stay // 3, stay]
    for name, who in (("epsilon_colluding", stay // 3), ("epsilon_other_client", 1)):
        expected = accounting.epsilon(2.0 * math.sqrt((stay - who) / stay), 1.0, 5, 1e-5 * (1 - 1e-9))
        assert found[name] == pytest.approx(expected, rel=1e-12)
    assert found["epsilon_colluding"] > found["epsilon_other_client"] > spending.worst()
    assert spending.epsilons(2)["colluding"] == [1, 2]
    unprotected = replace(spending, privacy=replace(job.privacy, noise="test"))
    assert unprotected.epsilons(shares(job, 30)).keys() == spending.epsilons().keys()
    assert shares(job_of("plain"), 30) == 0
