"""Costs of slack and margins that SSCA finds by itself: what they tend to, whatever the scale, and their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.algorithms.ssca_tuning import (
    MOST,
    SURE,
    WIDEST,
    Margins,
    SlackCosts,
    after_round,
    next_costs,
    recent,
    steer,
)
from mpifed.maths.dual import multipliers


def test_means_are_plain_at_first_then_of_20_rounds_then_of_a_tenth() -> None:
    assert [recent(t) for t in (1, 4, 20, 100, 200, 1000)] == [1, 1 / 4, 1 / 20, 1 / 20, 1 / 20, 1 / 100]


def course(scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """([t, M] costs, [t, 5] minimizers) of random problems of 3 constraints, every function times its `scale` [4]."""
    rng, costs, found, points = np.random.default_rng(1), SlackCosts(*np.zeros((5, 3))), [], []
    for t in range(1, 61):
        f = rng.normal(size=(4, 5)) * scale[:, None]
        curvatures, constants = np.array([0.5, 0.3, 0.2, 0.6]) * scale, rng.normal(3, 1, size=3) * scale[1:]
        cost, cap = next_costs(costs, curvatures)
        nu, _ = multipliers(constants, f @ f.T, curvatures, cost)
        total = curvatures[0] + nu @ curvatures[1:]
        costs = after_round(costs, t, cost, cap, nu, total)
        found.append(cost)
        points.append(-(f[0] + nu @ f[1:]) / (2 * total))
    return np.array(found), np.array(points)


@pytest.mark.parametrize("scale", [[1000.0, 1, 1, 1], [1, 1000.0, 1, 1], [1e-3, 1, 1e3, 7.0]])
def test_multiplying_a_function_moves_no_solution(scale: list[float]) -> None:
    """Each function by itself, with its curvature."""
    (costs, points), (other, same), units = course(np.ones(4)), course(np.array(scale)), np.array(scale)
    assert len(np.unique(costs.round(6))) > 60  # they do change
    np.testing.assert_allclose(other, costs * units[0] / units[1:], rtol=1e-8)
    np.testing.assert_allclose(same, points, rtol=0, atol=1e-8 * np.abs(points).max())


@pytest.mark.long
def test_a_cost_grows_at_the_cap_to_its_bound_and_falls_at_once() -> None:
    curvatures, costs, found = np.array([2.0, 0.5]), SlackCosts(*np.zeros((5, 1))), []
    for t in range(1, 30_001):
        cost, cap = next_costs(costs, curvatures)
        found.append(float(cost[0]))
        costs = after_round(costs, t, cost, cap, cost, float(curvatures[0] + cost[0] * curvatures[1]))
    assert found[0] == 4  # tau_0 / tau_1
    assert (np.diff(found) >= 0).all() and found[100] > 1000 * found[0]
    assert found[-1] == MOST * 4 == cap[0] and costs.capped[0] > 0.99
    for t in range(30_001, 30_301):
        costs = after_round(costs, t, cost, cap, np.array([10.0]), 7.0)
    assert next_costs(costs, curvatures)[0][0] < 250  # 1.5 * 10 in the end; a plain mean would be at 3.6e6


RHO = 0.1


def steered(bias: float, noise: float, rounds: int, kept: float = 0.0, unit: float = 1.0) -> tuple[np.ndarray, Margins]:
    """([t] true excess, the last margins), where models lie `bias` above the limit less the margin."""
    rng, margins, found, error = np.random.default_rng(3), Margins(*np.zeros((3, 2))), [], 0.0
    for t in range(1, rounds + 1):
        true = bias - margins.margin[0] / unit
        error = kept * error + (1 - kept) * noise * rng.normal()
        margins = steer(margins, t, np.array([unit * (true + error), 0.0]), RHO, kept)
        found.append(true)
    return np.array(found), margins


@pytest.mark.parametrize(("bias", "kept"), [(-0.1, 0.0), (0.0, 0.9), (0.5, 0.0)])
def test_the_mean_excess_is_some_standard_errors_below_the_limit(bias: float, kept: float) -> None:
    """From independent values, and from those that share nine tenths of their errors."""
    found, margins = steered(bias, 1.0, 8000, kept)
    assert np.sqrt(margins.variance[0]) == pytest.approx(1, rel=0.1)  # of one value by itself
    assert found[-2000:].mean() == pytest.approx(-SURE * np.sqrt(RHO / (2 - RHO)), abs=0.05)
    assert found[-2000:].std() < 0.1


def test_bounds_and_units_of_margins() -> None:
    """Without noise the limit is where it ends; out of reach it does not grow without end; scale is of no account."""
    rng, margins = np.random.default_rng(4), Margins(*np.zeros((3, 1)))
    for t in range(1, 3001):  # the spread that the first rounds leave is forgotten
        margins = steer(margins, t, 1 - margins.margin + (t < 200) * rng.normal(), RHO, 0.0)
    assert margins.margin[0] <= 1 and np.sqrt(margins.variance[0]) < 0.1
    margins = Margins(*np.zeros((3, 1)))
    for t in range(1, 2001):
        margins = steer(margins, t, np.array([50 + rng.normal()]), RHO, 0.0)
    assert margins.margin[0] == WIDEST * np.sqrt(margins.variance[0]) == pytest.approx(WIDEST, rel=0.2)
    (found, one), (other, two) = steered(0.2, 1.0, 300), steered(0.2, 1.0, 300, unit=1024.0)
    assert (found == other).all()
    np.testing.assert_array_equal(two.margin, 1024 * one.margin)
    assert one.margin[1] == 0  # exact values of a constraint without samples
