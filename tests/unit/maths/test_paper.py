"""The paper's formulas, as printed, beside what they are worth."""

from __future__ import annotations

import math

import pytest

from mpifed.maths.privacy import accounting, paper

DELTA = 1e-4


def total(multiplier: float, rate: float, rounds: float) -> float:
    return paper.composed(multiplier, rate, rounds, DELTA)


def test_total_as_derived_from_the_epsilon_of_a_round() -> None:
    """(18) gives a round's epsilon, (20) the total, with q for q^2."""
    multiplier, q, p, rounds = 1.7, 0.05, 0.3, 300
    a_round = math.sqrt(2 * math.log(1.25 / DELTA)) / multiplier
    constant = math.sqrt(2 * math.log(1 / DELTA) / math.log(1.25 / DELTA))
    expected = constant * q * a_round * math.sqrt(p * rounds / (1 - q))
    assert total(multiplier, q, p * rounds) == pytest.approx(expected)
    assert total(1.0, q, p * rounds) / expected == pytest.approx(multiplier)


def test_where_it_has_no_value() -> None:
    assert total(1.0, 1.0, 1) == math.inf
    assert total(0.0, 0.5, 1) == math.inf
    assert total(1.0, 0.5, 0) == total(math.inf, 0.5, 3) == 0.0
    assert math.isnan(total(math.nan, 0.1, 1))


def test_lemma_1_fails_for_large_epsilon() -> None:
    """Its noise is enough up to an epsilon of about 8.4 (at delta = 1e-5), and not above."""
    delta = 1e-5
    claimed = [1.0, 8.4, 8.5, 30.0]
    noise = {e: math.sqrt(2 * math.log(1.25 / delta)) / e for e in claimed}
    enough = {e: accounting.unamplified(z, 1, delta) <= e for e, z in noise.items()}
    assert enough == {1.0: True, 8.4: True, 8.5: False, 30.0: False}


def test_a_claimed_epsilon_is_far_more_in_truth() -> None:
    """7 is claimed, by (20) with the printed q^2."""
    q, rounds = 0.05, 300
    printed = total(1.0, q, rounds) / 7.0 * q
    assert total(printed, q, rounds) == pytest.approx(7.0 / q)
    assert 161 < accounting.epsilon(printed, q, rounds, DELTA) < 80_000
