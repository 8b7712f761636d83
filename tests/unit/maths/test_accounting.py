"""Accountants: against dp-accounting by hand, closed forms; calibrate as their inverse."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mpifed.core.errors import UsageError
from mpifed.maths.privacy.accounting import DISTINCT, calibrate, epsilon, unamplified
from mpifed.maths.privacy.profile import amplified_delta, gaussian_delta

DELTA = 1e-5
SAMPLING = pytest.mark.parametrize("sampling", ["fixed", "poisson"])


# --- closed forms ----------------------------------------------------------------------------------------------------


def textbook_delta(eps: float, m: float) -> float:
    from scipy.stats import norm

    return float(norm.cdf(1 / (2 * m) - eps * m) - math.exp(eps) * norm.cdf(-1 / (2 * m) - eps * m))


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 4.0, 50.0])
def test_the_gaussian_profile(multiplier: float) -> None:
    scale = 1 / multiplier
    losses = np.array([-3 * scale, -scale, 0.0, 0.5 * scale, 2 * scale, 4 * scale])
    expected = [textbook_delta(eps, multiplier) for eps in losses]
    np.testing.assert_allclose(gaussian_delta(losses, multiplier), expected, rtol=1e-9)


def test_the_amplified_profile() -> None:
    """delta'(log(1 + q (e^eps - 1))) = q delta(eps), and exchanged below 0."""
    q, m = 0.1, 0.8
    for eps in (0.0, 1e-9, 0.3, 5.0, 40.0):
        amplified = math.log1p(q * math.expm1(eps))
        assert float(amplified_delta(amplified, m, q)) == pytest.approx(q * float(gaussian_delta(eps, m)), rel=1e-6)
        assert float(amplified_delta(-amplified, m, q)) == pytest.approx(
            1 - math.exp(-amplified) + math.exp(-amplified) * q * float(gaussian_delta(eps, m)), rel=1e-9
        )


@SAMPLING
def test_unamplified_mechanisms_are_one_gaussian(sampling: str) -> None:
    spent = {(2.0, 1.0): 3, (5.0, 1.0): 10}
    together = 1 / math.sqrt(3 / 4 + 10 / 25)
    found = epsilon(spent, DELTA, sampling=sampling)
    assert found == unamplified(spent, DELTA)
    assert textbook_delta(found, together) == pytest.approx(DELTA, rel=1e-9)
    assert unamplified({(2.0, 0.1): 3, (5.0, 0.7): 10}, DELTA) == found


# --- dp-accounting by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "q", "count"), [(1.0, 0.05, 100), (0.8, 0.01, 300), (3.0, 0.3, 40), (2.0, 1 - 1e-9, 3)]
)
def test_coins_of_clients_against_dp_accounting(multiplier: float, q: float, count: int) -> None:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(multiplier))
    by_hand = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-3).compose(event, count).get_epsilon(DELTA)
    assert epsilon({(multiplier, q): count}, DELTA, sampling="poisson") == pytest.approx(by_hand, rel=1e-3)


# --- composition ---------------------------------------------------------------------------------------------------


def test_amplified_and_plain_mechanisms_together() -> None:
    """More than either alone, less than their sum; and without order."""
    amplified, plain = {(1.0, 0.05): 50}, {(4.0, 1.0): 2}
    both = epsilon({**amplified, **plain}, DELTA)
    alone = [epsilon(amplified, DELTA), epsilon(plain, DELTA)]
    assert max(alone) < both < sum(alone)
    assert both == epsilon({**plain, **amplified}, DELTA)
    assert epsilon({(1.0, 0.05): 50, (1.0, 0.050000001): 50}, DELTA) == pytest.approx(
        epsilon({(1.0, 0.05): 100}, DELTA), rel=1e-3
    )


def test_many_different_multipliers_are_rounded_down() -> None:
    many = {(1.0 + 0.001 * i, 0.05): 2 for i in range(2 * DISTINCT)}
    found = epsilon(many, DELTA)
    assert epsilon({(1.0 + 0.002 * DISTINCT, 0.05): 4 * DISTINCT}, DELTA) < found
    assert found <= epsilon({(1 / 1.02, 0.05): 4 * DISTINCT}, DELTA) * (1 + 1e-3)


def test_what_releases_nothing_costs_nothing() -> None:
    nothing = {(math.inf, 0.3): 7, (1.0, 0.0): 7, (1.0, 0.5): 0}
    assert epsilon({}, DELTA) == epsilon(nothing, DELTA) == unamplified(nothing, DELTA) == 0.0
    assert epsilon({**nothing, (1.0, 0.1): 3}, DELTA) == epsilon({(1.0, 0.1): 3}, DELTA)


@SAMPLING
def test_no_noise_costs_everything(sampling: str) -> None:
    assert epsilon({(0.0, 0.1): 1, (1.0, 0.1): 5}, DELTA, sampling=sampling) == math.inf


@SAMPLING
@pytest.mark.parametrize(
    ("multiplier", "q", "count"),
    [(0.02, 0.5, 300), (0.1, 0.01, 1000), (0.3, 0.9, 3), (1e3, 0.01, 10), (1.0, 1e-6, 10), (5.0, 0.01, 10**12)],
)
def test_extremes_are_numbers(sampling: str, multiplier: float, q: float, count: int) -> None:
    found = epsilon({(multiplier, q): count}, DELTA, sampling=sampling)
    assert 0 <= found <= unamplified({(multiplier, q): count}, DELTA)


def test_a_tiny_delta_is_not_amplified() -> None:
    """Below the rounding errors of a convolution, losses say nothing."""
    spent = {(1.0, 0.05): 100}
    assert epsilon(spent, 1e-13) == unamplified(spent, 1e-13) > 10 * epsilon(spent, 1e-10)


@SAMPLING
def test_monotone_in_every_argument(sampling: str) -> None:
    def cost(multiplier: float = 1.1, q: float = 0.05, count: int = 60, delta: float = DELTA) -> float:
        return epsilon({(multiplier, q): count}, delta, sampling=sampling)

    more = [
        [cost(multiplier=m) for m in (8.0, 1.5, 1.2, 0.5)],
        [cost(q=q) for q in (0.001, 0.05, 0.06, 0.9, 1.0)],
        [cost(count=n) for n in (1, 2, 59, 61, 62, 200)],
        [cost(delta=d) for d in (1e-3, 1e-5, 1e-7)],
    ]
    for values in more:
        assert all(a <= b * (1 + 1e-4) for a, b in itertools.pairwise(values)), values
        assert values[0] < values[-1]


# --- the inverse ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "target"),
    [("fixed", 7.0), ("poisson", 7.0), *(pytest.param("fixed", t, marks=pytest.mark.long) for t in (0.2, 200.0))],
)
def test_calibrate_is_the_inverse(sampling: str, target: float) -> None:
    """Both ways: the epsilon of the noise is the target, never above; the noise of an epsilon is the noise."""
    multiplier = calibrate(target, DELTA, [(1.0, 0.05, 100), (2.0, 0.05, 20)], sampling=sampling)
    reached = epsilon({(multiplier, 0.05): 100, (2 * multiplier, 0.05): 20}, DELTA, sampling=sampling)
    assert target * 0.998 <= reached <= target
    less = multiplier / 1.0002
    assert epsilon({(less, 0.05): 100, (2 * less, 0.05): 20}, DELTA, sampling=sampling) > target
    if target == 7.0:
        again = calibrate(
            epsilon({(1.3, 0.05): 100}, DELTA, sampling=sampling), DELTA, [(1.0, 0.05, 100)], sampling=sampling
        )
        assert again == pytest.approx(1.3, rel=2e-4)


def test_calibrate_without_amplification() -> None:
    multiplier = calibrate(1.0, DELTA, [(1.0, 1.0, 4)])
    assert textbook_delta(1.0, multiplier / 2) == pytest.approx(DELTA, rel=3e-3)
    assert textbook_delta(1.0, multiplier / 2) <= DELTA


@pytest.mark.parametrize("plan", [[], [(1.0, 0.05, 0)], [(0.0, 0.05, 3)], [(math.inf, 0.05, 3)]])
def test_calibrate_needs_something_to_hide(plan: list[tuple[float, float, int]]) -> None:
    with pytest.raises(UsageError, match="noise_multiplier instead"):
        calibrate(1.0, DELTA, plan)
