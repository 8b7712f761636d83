"""Margins that are steered: the mean excess that they keep, whatever the scale and the surrogates' bias."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.algorithms.ssca_tuning import SURE, WIDEST, Margins, steer

RHO = 0.1


def steered(bias: float, sigma: float, rounds: int, kept: float = 0.0, unit: float = 1.0) -> tuple[np.ndarray, Margins]:
    """([t] true excess, the last margins), where models lie `bias` above the limit less the margin."""
    rng, margins, found, error = np.random.default_rng(3), Margins(*np.zeros((3, 2))), [], 0.0
    for t in range(1, rounds + 1):
        true = bias - margins.margin[0] / unit
        error = kept * error + (1 - kept) * sigma * rng.normal()
        margins = steer(margins, t, np.array([unit * (true + error), 0.0]), RHO, kept)
        found.append(true)
    return np.array(found), margins


@pytest.mark.parametrize(("bias", "kept"), [(-0.1, 0.0), (0.0, 0.9), (0.5, 0.0)])
def test_the_mean_excess_is_some_standard_errors_below_the_limit(bias: float, kept: float) -> None:
    """From independent values, and from those that share nine tenths of their errors."""
    found, margins = steered(bias, 1.0, 8000, kept)
    assert np.sqrt(margins.variance[0]) == pytest.approx(1, rel=0.1)  # of one value by itself
    goal = -SURE * np.sqrt(RHO / (2 - RHO))
    assert found[-2000:].mean() == pytest.approx(goal, abs=0.05)
    assert found[-2000:].std() < 0.1


def test_without_noise_the_limit_is_where_it_ends() -> None:
    """The spread that what the model moves has left is forgotten, and the margin is nothing but the bias."""
    rng, margins = np.random.default_rng(4), Margins(*np.zeros((3, 1)))
    for t in range(1, 3001):
        excess = 1 - margins.margin + (t < 200) * rng.normal()
        margins = steer(margins, t, excess, RHO, 0.0)
    assert abs(float(margins.margin[0])) <= 1 and np.sqrt(margins.variance[0]) < 0.1


def test_out_of_reach_it_does_not_grow_without_end() -> None:
    rng, margins = np.random.default_rng(5), Margins(*np.zeros((3, 1)))
    for t in range(1, 2001):
        margins = steer(margins, t, np.array([50 + rng.normal()]), RHO, 0.0)
    assert margins.margin[0] == WIDEST * np.sqrt(margins.variance[0]) == pytest.approx(WIDEST, rel=0.2)


def test_scale_is_of_no_account() -> None:
    found, one = steered(0.2, 1.0, 300)
    other, two = steered(0.2, 1.0, 300, unit=1024.0)
    assert (found == other).all()
    np.testing.assert_array_equal(two.margin, 1024 * one.margin)
    assert one.margin[1] == 0  # exact values of a constraint without samples
