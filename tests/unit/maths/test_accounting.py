"""Accountants against worst pairs, closed forms and test vectors, with the paper's formula beside; `calibrate`."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering, long_unless
from scipy.stats import norm

from mpifed.core.errors import UsageError
from mpifed.maths.privacy import paper
from mpifed.maths.privacy.accounting import calibrate, epsilon, unamplified

DELTA = 1e-5
SAMPLING = pytest.mark.parametrize("sampling", ["fixed", "poisson"])
# epsilons as version 0.1 computed them, the last five by dp-accounting's accountant; the first six are of jobs/fedpdm
VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("privacy_vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", VECTORS["epsilons"])
def test_epsilons_stay(row: dict[str, Any]) -> None:
    """No bound of a grid is below it by more than dp-accounting's rounding, or above by more than a coarser one's."""
    (mechanisms,) = row["mechanisms"]
    found = epsilon(*mechanisms, row["delta"], sampling=row["sampling"])
    assert row["epsilon"] * (1 - 1e-3) <= found <= row["epsilon"] * 1.002


@pytest.mark.parametrize("row", VECTORS["multipliers"])
def test_calibrated_noise_stays(row: dict[str, Any]) -> None:
    ((factor, rate, count),) = row["mechanisms"]
    found = calibrate(lambda z: epsilon(z * factor, rate, count, row["delta"]), row["epsilon"])
    assert found == pytest.approx(row["multiplier"], rel=1e-9)


# --- worst pairs of distributions, integrated numerically ------------------------------------------------------------

GRID = np.linspace(-14.0, 14.0, 5601)  # in units of the noise


def density(mean: float) -> Any:
    return np.exp(-((GRID - mean) ** 2) / 2) / math.sqrt(2 * math.pi) * (GRID[1] - GRID[0])


def pairs(sampling: str, multiplier: float, q: float) -> list[tuple[Any, Any]]:
    """What two neighbours' outputs may be: (1 - q) A + q B and (1 - q) A + q B', noise of standard deviation 1."""
    reach = 1 / multiplier
    triples = [(0.0, reach, 0.0), (0.0, 0.0, reach)]  # a client is there, or is not
    if sampling == "fixed":  # someone else's record is in the place of one that is not drawn
        triples += [(0.0, -reach / 2, reach / 2)]
    return [tuple((1 - q) * density(a) + q * density(other) for other in (b, c)) for a, b, c in triples]  # type: ignore[misc]


def hockey_stick(p: Any, q: Any, eps: float, times: int) -> float:
    if times == 2:
        p, q = np.outer(p[::4], p[::4]).ravel() * 16, np.outer(q[::4], q[::4]).ravel() * 16
    return float(np.maximum(p - math.exp(eps) * q, 0).sum())


@covering({
    "times": [1, 2], "sampling": ["fixed", "poisson"],
    "multiplier, q": [(1.0, 0.05), (0.7, 0.3), (2.0, 0.5), (1.5, 0.9)],
})  # fmt: skip
def test_against_integrated_worst_pairs(sampling: str, multiplier: float, q: float, times: int) -> None:
    """No pair exceeds delta at the epsilon found, and a slightly smaller epsilon some pair does exceed."""
    delta = 1e-4
    found = epsilon(multiplier, q, times, delta, sampling=sampling)
    worst, less = (
        max(hockey_stick(a, b, eps, times) for a, b in pairs(sampling, multiplier, q))
        for eps in (found, 0.995 * found - 1e-4)
    )
    assert worst <= delta * (1 + 1e-5)  # what the kinks of the integrand cost on the grid
    # of a composition the pairs above need not be the worst
    assert less > delta * (1 if times == 1 or sampling == "poisson" else 0.7)


# --- closed forms, and extremes --------------------------------------------------------------------------------------


def textbook_delta(eps: float, m: float) -> float:
    return float(norm.cdf(1 / (2 * m) - eps * m) - math.exp(eps) * norm.cdf(-1 / (2 * m) - eps * m))


@SAMPLING
def test_what_has_a_closed_form(sampling: str) -> None:
    """No amplification: one Gaussian, also for a delta below the rounding of convolutions. Nothing, and no noise."""
    found = epsilon(2.0, 1.0, 3, DELTA, sampling=sampling)
    assert found == unamplified(2.0, 3, DELTA)
    assert textbook_delta(found, 2 / math.sqrt(3)) == pytest.approx(DELTA, rel=1e-9)
    for nothing in ((math.inf, 0.3, 7), (1.0, 0.0, 7), (1.0, 0.5, 0)):
        assert epsilon(*nothing, DELTA, sampling=sampling) == 0.0
    assert epsilon(0.0, 0.1, 1, DELTA, sampling=sampling) == math.inf
    tiny = epsilon(1.0, 0.05, 100, 1e-13, sampling=sampling)
    assert tiny == unamplified(1.0, 100, 1e-13) > 10 * epsilon(1.0, 0.05, 100, 1e-10, sampling=sampling)


@pytest.mark.parametrize("delta", [1e-8, 1e-9])
@pytest.mark.parametrize("multiplier", [1e5, 1e6, 1e7, 3e7])
def test_much_noise_is_no_reason_to_say_too_little(multiplier: float, delta: float) -> None:
    assert textbook_delta(unamplified(multiplier, 1, delta), multiplier) <= delta


@pytest.mark.parametrize(("mechanisms", "delta", "sampling", "least"), [
    ((0.6, 1e-4, 10**5), 1.1e-11, "fixed", 3.560), ((1.0, 1e-3, 10**5), 1.01e-11, "poisson", 2.7455),
])  # fmt: skip
def test_many_mechanisms_and_a_tiny_delta(mechanisms: Any, delta: float, sampling: str, least: float) -> None:
    """Epsilons below which no privacy holds, by losses tilted to the tail (2^22 points): rounding hides them."""
    assert epsilon(*mechanisms, delta, sampling=sampling) >= least


@SAMPLING
@pytest.mark.parametrize("mechanisms", [
    (0.02, 0.5, 300), (0.1, 0.01, 1000), (0.3, 0.9, 3), (1e3, 0.01, 10), (1.0, 1e-6, 10), (5.0, 0.01, 10**12),
    (2.0, 1 - 1e-9, 3),
])  # fmt: skip
def test_extremes_are_numbers(sampling: str, mechanisms: tuple[float, float, int]) -> None:
    multiplier, _, count = mechanisms
    assert 0 <= epsilon(*mechanisms, DELTA, sampling=sampling) <= unamplified(multiplier, count, DELTA)


@SAMPLING
def test_monotone_in_every_argument(sampling: str) -> None:
    def cost(**changed: Any) -> float:
        kind = {"multiplier": 1.1, "rate": 0.05, "count": 60, "delta": DELTA, "sampling": sampling} | changed
        return epsilon(**kind)  # type: ignore[arg-type]

    for name, values in {
        "multiplier": (8.0, 1.5, 1.2, 0.5), "rate": (0.001, 0.05, 0.06, 0.9, 1.0), "count": (1, 2, 59, 61, 62, 200),
        "delta": (1e-3, 1e-5, 1e-7),
    }.items():  # fmt: skip
        found = [cost(**{name: value}) for value in values]
        assert all(a <= b * (1 + 1e-4) for a, b in itertools.pairwise(found)), found
        assert found[0] < found[-1]


# --- the inverse -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sampling", "target"), long_unless(
    lambda *one: one == ("fixed", 7.0), [("fixed", 7.0), ("poisson", 7.0), ("fixed", 0.2), ("fixed", 200.0)]
))  # fmt: skip
def test_calibrate_is_the_inverse(sampling: str, target: float) -> None:
    """Both ways: the epsilon of the noise is the target, never above; the noise of an epsilon is the noise."""

    def cost(multiplier: float) -> float:
        return epsilon(multiplier, 0.05, 100, DELTA, sampling=sampling)

    multiplier = calibrate(cost, target)
    assert target * 0.998 <= cost(multiplier) <= target < cost(multiplier / 1.0002)
    if target == 7.0:
        assert calibrate(cost, cost(1.3)) == pytest.approx(1.3, rel=2e-4)


@pytest.mark.parametrize("spent", [(1.0, 0.05, 0), (0.0, 0.05, 3), (math.inf, 0.05, 3)])
def test_calibrate_needs_something_to_hide(spent: Any) -> None:
    with pytest.raises(UsageError, match="noise_multiplier instead"):
        calibrate(lambda _: epsilon(*spent, DELTA), 1.0)


# --- the paper's formula, as printed, beside what it is worth --------------------------------------------------------


def test_the_paper_s_total() -> None:
    """(18) gives a round's epsilon, (20) the total, with q for q^2; and where it has no value."""
    delta, multiplier, q, p, rounds = 1e-4, 1.7, 0.05, 0.3, 300
    a_round = math.sqrt(2 * math.log(1.25 / delta)) / multiplier
    constant = math.sqrt(2 * math.log(1 / delta) / math.log(1.25 / delta))
    expected = constant * q * a_round * math.sqrt(p * rounds / (1 - q))
    assert paper.composed(multiplier, q, p * rounds, delta) == pytest.approx(expected)
    assert paper.composed(1.0, 1.0, 1, delta) == paper.composed(0.0, 0.5, 1, delta) == math.inf
    assert paper.composed(1.0, 0.5, 0, delta) == paper.composed(math.inf, 0.5, 3, delta) == 0.0
    assert math.isnan(paper.composed(math.nan, 0.1, 1, delta))


def test_what_the_paper_claims_and_what_is_true() -> None:
    """Lemma 1's noise is enough up to an epsilon of about 8.4; 7 is claimed, by (20) with the printed q^2."""
    enough = {e: unamplified(math.sqrt(2 * math.log(1.25 / DELTA)) / e, 1, DELTA) <= e for e in (1.0, 8.4, 8.5, 30.0)}
    assert enough == {1.0: True, 8.4: True, 8.5: False, 30.0: False}
    q, rounds, delta = 0.05, 300, 1e-4
    printed = paper.composed(1.0, q, rounds, delta) / 7.0 * q
    assert paper.composed(printed, q, rounds, delta) == pytest.approx(7.0 / q)
    assert 161 < epsilon(printed, q, rounds, delta) < 80_000
