"""Accountants: against dp-accounting by hand, closed forms; calibrate as their inverse."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from scipy.optimize import brentq

from mpifed.core.errors import UsageError
from mpifed.maths.privacy import accounting
from mpifed.maths.privacy.accounting import calibrate, epsilon, unamplified

DELTA = 1e-5
SAMPLING = pytest.mark.parametrize("sampling", ["fixed", "poisson"])


# --- closed forms ----------------------------------------------------------------------------------------------------


def textbook_delta(eps: float, m: float) -> float:
    from scipy.stats import norm

    return float(norm.cdf(1 / (2 * m) - eps * m) - math.exp(eps) * norm.cdf(-1 / (2 * m) - eps * m))


@pytest.mark.parametrize(("m", "q"), [(0.8, 0.1), (0.5, 0.3), (2.0, 0.01)])
def test_a_single_amplified_mechanism(m: float, q: float) -> None:
    """delta'(log(1 + q (e^eps - 1))) = q delta(eps): rounded up, and by no more than a grid."""
    eps = brentq(lambda e: q * textbook_delta(e, m) - DELTA, 0, 200)
    exact = math.log1p(q * math.expm1(eps))
    assert exact <= epsilon(m, q, 1, DELTA) <= exact * 1.003


@pytest.mark.parametrize(("m", "q"), [(0.8, 0.1), (0.35, 0.05), (2.0, 0.01), (50.0, 0.3)])
def test_losses_of_one_mechanism_dominate_both_directions(m: float, q: float) -> None:
    """At every loss of either sign the grid's profile is above that by quadrature of the mixture, and hardly."""
    single = accounting._single(m, q, "fixed", 2.0**-10)
    x = np.linspace(-12 * m, 12 * m + 1, 200_001)

    def density(mean: float) -> Any:
        return np.exp(-(((x - mean) / m) ** 2) / 2) / (m * math.sqrt(2 * math.pi))

    P, Q = (1 - q) * density(0) + q * density(1), density(0)
    for e in (-0.3, -0.05, -1e-3, 1e-3, 0.05, 0.3, 1.0):
        profiles = [np.trapezoid(np.maximum(a - math.exp(e) * b, 0), x) for a, b in ((P, Q), (Q, P))]
        stated = float(single.get_delta_for_epsilon(e))
        # to the pair's own, the larger of the two for positive losses, mirrored for negative ones
        exact = profiles[0] if e > 0 else 1 - math.exp(e) * (1 - np.trapezoid(np.maximum(P - math.exp(-e) * Q, 0), x))
        assert exact - 1e-6 <= stated <= exact * 1.01 + 1e-5
        assert max(profiles) <= stated + 1e-6


@SAMPLING
def test_unamplified_mechanisms_are_one_gaussian(sampling: str) -> None:
    found = epsilon(2.0, 1.0, 3, DELTA, sampling=sampling)
    assert found == unamplified(2.0, 3, DELTA)
    assert textbook_delta(found, 2 / math.sqrt(3)) == pytest.approx(DELTA, rel=1e-9)


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
    assert epsilon(multiplier, q, count, DELTA, sampling="poisson") == pytest.approx(by_hand, rel=1e-3)


# --- composition ---------------------------------------------------------------------------------------------------


@SAMPLING
def test_nothing_costs_nothing_and_no_noise_everything(sampling: str) -> None:
    for nothing in ((math.inf, 0.3, 7), (1.0, 0.0, 7), (1.0, 0.5, 0)):
        assert epsilon(*nothing, DELTA, sampling=sampling) == 0.0
    assert epsilon(0.0, 0.1, 1, DELTA, sampling=sampling) == math.inf


@SAMPLING
@pytest.mark.parametrize(
    ("multiplier", "q", "count"),
    [(0.02, 0.5, 300), (0.1, 0.01, 1000), (0.3, 0.9, 3), (1e3, 0.01, 10), (1.0, 1e-6, 10), (5.0, 0.01, 10**12)],
)
def test_extremes_are_numbers(sampling: str, multiplier: float, q: float, count: int) -> None:
    found = epsilon(multiplier, q, count, DELTA, sampling=sampling)
    assert 0 <= found <= unamplified(multiplier, count, DELTA)


def test_a_tiny_delta_is_not_amplified() -> None:
    """Below the rounding errors of a convolution, losses say nothing."""
    assert epsilon(1.0, 0.05, 100, 1e-13) == unamplified(1.0, 100, 1e-13) > 10 * epsilon(1.0, 0.05, 100, 1e-10)


@SAMPLING
def test_monotone_in_every_argument(sampling: str) -> None:
    def cost(multiplier: float = 1.1, q: float = 0.05, count: int = 60, delta: float = DELTA) -> float:
        return epsilon(multiplier, q, count, delta, sampling=sampling)

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
    long_unless(
        lambda *one: one == ("fixed", 7.0), [("fixed", 7.0), ("poisson", 7.0), ("fixed", 0.2), ("fixed", 200.0)]
    ),
)
def test_calibrate_is_the_inverse(sampling: str, target: float) -> None:
    """Both ways: the epsilon of the noise is the target, never above; the noise of an epsilon is the noise."""

    def cost(multiplier: float) -> float:
        return epsilon(multiplier, 0.05, 100, DELTA, sampling=sampling)

    multiplier = calibrate(cost, target)
    assert target * 0.998 <= cost(multiplier) <= target < cost(multiplier / 1.0002)
    if target == 7.0:
        assert calibrate(cost, cost(1.3)) == pytest.approx(1.3, rel=2e-4)


def test_calibrate_without_amplification() -> None:
    multiplier = calibrate(lambda z: unamplified(z, 4, DELTA), 1.0)
    assert textbook_delta(1.0, multiplier / 2) == pytest.approx(DELTA, rel=3e-3)
    assert textbook_delta(1.0, multiplier / 2) <= DELTA


@pytest.mark.parametrize("spent", [(1.0, 0.05, 0), (0.0, 0.05, 3), (math.inf, 0.05, 3)])
def test_calibrate_needs_something_to_hide(spent: Any) -> None:
    with pytest.raises(UsageError, match="noise_multiplier instead"):
        calibrate(lambda _: epsilon(*spent, DELTA), 1.0)
