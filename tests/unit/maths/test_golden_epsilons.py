"""The accountant against a table of epsilons: what was printed once is printed again."""

from __future__ import annotations

import pytest

from mpifed.maths.privacy.accounting import calibrate, epsilon

Parts = list[tuple[float, float, int]]  # (multiplier, rate, count)
TWENTY = [(1 + 0.05 * i, 0.05, 3) for i in range(20)]
# (sampling, delta, mechanisms, epsilon), as version 0.1 computed them; the first six have the rate of jobs/fedpdm
GOLDEN: list[tuple[str, float, Parts, float]] = [
    ("fixed", 1e-05, [(0.5, 0.05, 28)], 11.801550279732348),
    ("fixed", 1e-05, [(1, 0.05, 28)], 2.2967816606728646),
    ("fixed", 1e-05, [(1, 0.01, 1000)], 2.198916021496523),
    ("fixed", 1e-05, [(2, 0.1, 300)], 4.680452376183497),
    ("fixed", 1e-05, [(0.8, 0.02, 3000)], 14.535288825489408),
    ("fixed", 1e-05, [(0.35, 0.05, 28)], 27.249956032759975),
    ("fixed", 1e-05, [(50, 0.01, 1000)], 0.0164617613580574),
    ("fixed", 1e-05, [(1, 0.05, 1)], 1.032791456181506),
    ("fixed", 1e-05, [(0.7, 0.3, 40)], 26.753756072585986),
    ("fixed", 1e-05, [(3, 0.5, 200)], 13.325475612887459),
    ("fixed", 1e-05, [(1.5, 0.001, 10000)], 0.30996231902642574),
    ("fixed", 1e-05, [(5, 0.25, 5000)], 22.394766225222366),
    ("fixed", 1e-05, [(0.6, 0.02, 100)], 6.123362609441372),
    ("fixed", 1e-05, [(1.1, 0.04, 15000)], 51.05990673704378),
    ("fixed", 1e-05, [(0.4, 0.01, 500)], 22.06866227015983),
    ("fixed", 1e-05, [(10, 0.9, 300)], 7.419079777448573),
    ("fixed", 1e-06, [(2, 0.001, 3000)], 0.12683452501827924),
    ("fixed", 1e-08, [(1, 0.02, 200)], 3.1714589379395512),
    ("fixed", 0.001, [(0.9, 0.1, 50)], 4.5635857330785745),
    ("fixed", 1e-10, [(1, 0.01, 100)], 2.2011176336041),
    ("fixed", 1e-05, [(0.5, 1, 10)], 46.21121019122028),
    ("fixed", 1e-05, [(8, 1, 300)], 11.027894870681713),
    ("fixed", 1e-06, [(100, 1, 1000)], 1.367571475084389),
    ("fixed", 1e-05, [(0.02, 0.01, 5)], 2746.0),
    ("fixed", 1e-05, [(1, 0.05, 20), (2, 0.1, 30)], 2.388296651095664),
    ("fixed", 1e-05, [(1, 0.05, 20), (4, 1, 10)], 3.8234282246559945),
    ("fixed", 1e-05, TWENTY, 1.9250239808244762),
    ("fixed", 1e-05, [(0.8, 0.01, 100), (0.8, 0.02, 100), (0.8, 0.04, 100)], 5.6802906887448135),
    ("poisson", 1e-05, [(1, 0.05, 100)], 3.502185252333001),
    ("poisson", 1e-05, [(0.8, 0.01, 300)], 2.0268797413941066),
    ("poisson", 1e-05, [(3, 0.3, 40)], 2.8475527032466283),
    ("poisson", 1e-05, [(0.5, 0.05, 28)], 11.452857730400593),
    ("poisson", 1e-05, [(1, 0.01, 1000)], 1.8282470637470016),
    ("poisson", 1e-05, [(2, 0.1, 300)], 4.183333095374216),
    ("poisson", 1e-05, [(0.6, 0.005, 2000)], 5.339022522924108),
    ("poisson", 1e-05, [(20, 0.5, 500)], 2.2638842793412715),
    ("poisson", 1e-05, [(1.2, 0.02, 10000)], 10.162832631746733),
    ("poisson", 1e-06, [(1, 0.001, 5000)], 0.39164195012877373),
    ("poisson", 1e-05, [(1, 0.05, 20), (2, 0.05, 30)], 2.0501919254602603),
    ("poisson", 1e-08, [(2, 0.2, 100)], 6.807684099763936),
]
MULTIPLIERS: list[tuple[float, Parts, float]] = [  # (epsilon, plan, the noise multiplier for it at delta 1e-5)
    (7.0, [(1.0, 0.05, 28)], 0.6226612167921903),
    (30.0, [(1.0, 0.05, 28)], 0.33572070292753514),
    (2.0, [(1.0, 0.01, 1000)], 1.0491150789774009),
    (1.0, [(1.0, 1.0, 100)], 37.30675944385413),
]


@pytest.mark.parametrize(("sampling", "delta", "parts", "expected"), GOLDEN)
def test_epsilons_stay(sampling: str, delta: float, parts: Parts, expected: float) -> None:
    """No bound of a grid is below it by more than dp-accounting's rounding, or above by more than a coarser one's."""
    spent = {(multiplier, rate): count for multiplier, rate, count in parts}
    found = epsilon(spent, delta, sampling=sampling)
    assert expected * (1 - 1e-3) <= found <= expected * 1.002


@pytest.mark.parametrize(("target", "plan", "expected"), MULTIPLIERS)
def test_calibrated_noise_stays(target: float, plan: Parts, expected: float) -> None:
    assert calibrate(target, 1e-5, plan) == pytest.approx(expected, rel=1e-9)
