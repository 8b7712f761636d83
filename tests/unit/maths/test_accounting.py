"""Accountants: against dp-accounting by hand, closed forms; calibrate as their inverse."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from lengths import long_unless

from mpifed.core.errors import UsageError
from mpifed.maths.privacy.accounting import DISTINCT, calibrate, epsilon, unamplified
from mpifed.maths.privacy.profile import amplified_delta, composed_epsilon, gaussian_delta
from mpifed.maths.privacy.renyi import general_curve

DELTA = 1e-5
SCHEMES: list[dict[str, Any]] = [
    {"adjacency": "replace-one", "sampling": "fixed"},
    {"adjacency": "replace-one", "sampling": "poisson"},
    {"adjacency": "add-remove", "sampling": "poisson"},
]
ACCOUNTANTS: list[dict[str, Any]] = [
    *SCHEMES,
    *({**scheme, "accountant": "rdp"} for scheme in SCHEMES),
]


def named(scheme: dict[str, Any]) -> str:
    return "-".join(scheme.values())


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


@pytest.mark.parametrize("scheme", [*SCHEMES, {"adjacency": "add-remove", "sampling": "fixed"}], ids=named)
def test_unamplified_mechanisms_are_one_gaussian(scheme: dict[str, Any]) -> None:
    spent = {(2.0, 1.0): 3, (5.0, 1.0): 10}
    together = 1 / math.sqrt(3 / 4 + 10 / 25)
    found = epsilon(spent, DELTA, **scheme)
    assert found == unamplified(spent, DELTA)
    assert textbook_delta(found, together) == pytest.approx(DELTA, rel=1e-9)
    assert unamplified({(2.0, 0.1): 3, (5.0, 0.7): 10}, DELTA) == found


# --- dp-accounting by hand -------------------------------------------------------------------------------------------


def by_hand(adjacency: str, sampling: str, multiplier: float, q: float, count: int) -> float:
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation as Relation
    from dp_accounting.rdp import RdpAccountant

    if sampling == "fixed":  # out of 600 records; there the multiplier is relative to the distance of two neighbours
        event: Any = dp_event.SampledWithoutReplacementDpEvent(
            600, round(600 * q), dp_event.GaussianDpEvent(multiplier)
        )
        return float(RdpAccountant(neighboring_relation=Relation.REPLACE_ONE).compose(event, count).get_epsilon(DELTA))
    replaced = adjacency == "replace-one"  # and here to the norm of one record, half that distance
    event = dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(multiplier * (2 if replaced else 1)))
    relation = Relation.REPLACE_ONE if replaced else Relation.ADD_OR_REMOVE_ONE
    return float(PLDAccountant(relation, 1e-3).compose(event, count).get_epsilon(DELTA))


@pytest.mark.parametrize(("multiplier", "q", "count"), [(1.0, 0.05, 100), (0.8, 0.01, 300), (3.0, 0.3, 40)])
def test_poisson_against_dp_accounting(multiplier: float, q: float, count: int) -> None:
    for adjacency in ("replace-one", "add-remove"):
        found = epsilon({(multiplier, q): count}, DELTA, adjacency=adjacency, sampling="poisson")
        assert found == pytest.approx(by_hand(adjacency, "poisson", multiplier, q, count), rel=1e-3)


def test_renyi_of_fixed_batches_against_dp_accounting() -> None:
    expected = by_hand("replace-one", "fixed", 1.0, 0.05, 300)
    assert expected <= epsilon({(1.0, 0.05): 300}, DELTA, accountant="rdp") <= expected * 1.001  # fewer orders
    assert epsilon({(1.0, 0.05): 300}, DELTA) < expected


def test_without_amplification_dp_accounting_agrees_on_the_conventions() -> None:
    """q -> 1: in both of our relations the multiplier is that of one and the same Gaussian."""
    for adjacency in ("replace-one", "add-remove"):
        assert by_hand(adjacency, "poisson", 2.0, 1.0, 3) == pytest.approx(
            unamplified({(2.0, 1.0): 3}, DELTA), rel=1e-4
        )
        near = epsilon({(2.0, 1 - 1e-9): 3}, DELTA, adjacency=adjacency, sampling="poisson")
        assert near == pytest.approx(unamplified({(2.0, 1.0): 3}, DELTA), rel=1e-3)


def test_the_general_bound_as_printed() -> None:
    """Wang, Balle, Kasiviswanathan, Theorem 9, term by term; and its second term for little noise."""
    for rho, q, alpha in [(0.02, 0.1, 6), (3.0, 0.01, 5)]:
        two = min(4 * math.expm1(2 * rho), 2 * math.exp(2 * rho))
        total = 1 + q**2 * math.comb(alpha, 2) * two
        total += sum(2 * q**j * math.comb(alpha, j) * math.exp((j - 1) * j * rho) for j in range(3, alpha + 1))
        expected = min(math.log(total) / (alpha - 1), rho * alpha)
        assert general_curve(rho, q, np.array([alpha, 9]))[0] == pytest.approx(expected, rel=1e-12)


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


@pytest.mark.parametrize("settings", ACCOUNTANTS, ids=named)
@pytest.mark.parametrize(
    ("multiplier", "q", "count"), [(0.02, 0.5, 300), (0.1, 0.01, 1000), (0.3, 0.9, 3), (1e3, 0.01, 10), (1.0, 1e-6, 10)]
)
def test_extremes_are_numbers(settings: dict[str, Any], multiplier: float, q: float, count: int) -> None:
    found = epsilon({(multiplier, q): count}, DELTA, **settings)
    assert 0 <= found <= unamplified({(multiplier, q): count}, DELTA)


def test_a_tiny_delta_is_left_to_the_renyi_divergences() -> None:
    """Below the rounding errors of a convolution, losses say nothing."""
    spent, parts = {(1.0, 0.05): 100}, ((1.0, 0.05, 100),)
    assert composed_epsilon(parts, 0.1, 1e-13, "replace-one", "fixed") == math.inf
    assert epsilon(spent, 1e-13) == epsilon(spent, 1e-13, accountant="rdp") < unamplified(spent, 1e-13)


@pytest.mark.parametrize(
    "settings", long_unless(lambda one: one in (*SCHEMES[:2], ACCOUNTANTS[-1]), ACCOUNTANTS), ids=named
)
def test_monotone_in_every_argument(settings: dict[str, Any]) -> None:
    def cost(multiplier: float = 1.1, q: float = 0.05, count: int = 60, delta: float = DELTA) -> float:
        return epsilon({(multiplier, q): count}, delta, **settings)

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
    ("settings", "target"),
    long_unless(
        lambda settings, target: (settings, target) in [(one, 7.0) for one in (SCHEMES[1], ACCOUNTANTS[-1])],
        [(settings, 7.0) for settings in [*ACCOUNTANTS[:4], ACCOUNTANTS[-1]]]
        + [(settings, target) for settings in (ACCOUNTANTS[0], ACCOUNTANTS[-1]) for target in (0.2, 200.0)],
    ),
    ids=str,
)
def test_calibrate_is_the_inverse(settings: dict[str, Any], target: float) -> None:
    """Both ways: the epsilon of the noise is the target, never above; the noise of an epsilon is the noise."""
    multiplier = calibrate(target, DELTA, [(1.0, 0.05, 100), (2.0, 0.05, 20)], **settings)
    reached = epsilon({(multiplier, 0.05): 100, (2 * multiplier, 0.05): 20}, DELTA, **settings)
    assert target * 0.998 <= reached <= target
    less = multiplier / 1.0002
    assert epsilon({(less, 0.05): 100, (2 * less, 0.05): 20}, DELTA, **settings) > target
    if target == 7.0:
        again = calibrate(epsilon({(1.3, 0.05): 100}, DELTA, **settings), DELTA, [(1.0, 0.05, 100)], **settings)
        assert again == pytest.approx(1.3, rel=2e-4)


@pytest.mark.parametrize("plan", [[], [(1.0, 0.05, 0)], [(0.0, 0.05, 3)], [(math.inf, 0.05, 3)]])
def test_calibrate_needs_something_to_hide(plan: list[tuple[float, float, int]]) -> None:
    with pytest.raises(UsageError, match="noise_multiplier instead"):
        calibrate(1.0, DELTA, plan)
