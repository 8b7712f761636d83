"""Certificates: by hand, by definitions that share no code, free of units, and at solutions that scipy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from certificate import Point
from certificate import certificate as defined
from definitions import forward
from scipy.optimize import minimize

from mpifed.algorithms.certificate import first_iterate, is_convex, report_certificate
from mpifed.algorithms.functions import Tally, report_levels
from mpifed.maths.certificates import (
    CertifiedPoint,
    FirstIterate,
    best_multipliers,
    certificate,
    lower_bound,
    prox_stationarity,
)
from mpifed.maths.objectives import MLP, Logistic, Parameters
from mpifed.maths.problem import Problem
from mpifed.maths.regularizers import L1, Box


def point(objective: float, gradient: Any, excess: Any, gradients: Any, limits: Any = None) -> CertifiedPoint:
    e = np.array(excess, dtype=float)
    return CertifiedPoint(
        objective, np.array(gradient, dtype=float), e, np.array(gradients, dtype=float),
        np.ones(len(e)) if limits is None else np.array(limits, dtype=float), np.full(len(e), 0.5),
    )  # fmt: skip


def test_by_hand() -> None:
    at = point(-8.0, [1.0, -2.0], [0.125, -1.5], [[0.5, 1.0], [2.0, 0.0]], limits=[0.25, -3.0])
    found = certificate(at, FirstIterate(2.0, 1.0, np.array([0.5, 1.0]), 1.0), np.array([2.0, 0.5]))
    # (1, -2) + 2 (0.5, 1) + 0.5 (2, 0) = (3, 0), and the longest of its parts is 2 (0.5, 1) or (1, -2): sqrt(5)
    assert found.stationarity == found.kkt_residual == pytest.approx(3 / np.sqrt(5))
    assert found.feasibility == 0.125 / 0.5
    assert found.complementarity == max(2 * 0.125, 0.5 * 1.5) / 8


def test_an_objective_of_zero_that_starts_at_a_zero() -> None:
    """The norm at w = 0, where its gradient vanishes too: nothing but the limit is left."""
    at, start = point(0.0, [0.0, 0.0], [2.1], [[-1.0, 3.0]], [0.2]), FirstIterate(0.0, 0.0, np.array([2.1]), 1.0)
    nu = best_multipliers(at, start)
    assert nu.tolist() == [0.0]
    assert certificate(at, start, nu) == (1.0, 0.0, 1.0, 0.0)


def random_point(seed: int, d: int = 6, M: int = 3) -> tuple[CertifiedPoint, FirstIterate]:
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((M, d))
    gradient = -rng.uniform(0, 2, M) @ gradients + 0.3 * rng.standard_normal(d)
    at = point(rng.normal(), gradient, 0.1 * rng.standard_normal(M), gradients, rng.uniform(0.1, 2, M))
    return at, FirstIterate(rng.normal(), 3.0, rng.uniform(0, 1, M), 1.0)


MU = np.array([1.0, 0.5, 2.0, 0.0])


ONES = np.ones(3)


@pytest.mark.parametrize(("s", "k"), [(1.0, ONES), (1000.0, ONES), (1.0, np.array([1.0, 1000.0, 1.0]))])
def test_every_number_is_that_of_the_definitions_whatever_the_units(s: float, k: Any) -> None:
    """By trying all sets of constraints that may bind; zeros among the multipliers, and none."""
    zeros = set()
    for seed in range(20):
        at, start = random_point(seed)
        scaled = CertifiedPoint(
            at.objective * s, at.gradient * s, at.excess * k, at.gradients * k[:, None], at.limits * k, at.spreads * k
        )
        begun, mu = FirstIterate(start.objective * s, start.gradient * s, start.excess * k, 1.0), MU * np.append(s, k)
        expected = defined(Point(
            np.append(at.objective, at.limits + at.excess), np.vstack([at.gradient, at.gradients]), at.limits,
            at.spreads, np.append(start.objective, at.limits + start.excess), np.append(start.gradient, ONES), MU, True,
        ))  # fmt: skip
        nu = best_multipliers(scaled, begun)
        known = np.array([expected[f"multiplier_{m}"] for m in (1, 2, 3)])
        np.testing.assert_allclose(nu, known * s / k, rtol=1e-7, atol=1e-12)
        for name, value in certificate(scaled, begun, nu)._asdict().items():
            assert value == pytest.approx(expected[name], rel=1e-7)
        assert lower_bound(scaled, nu, mu) == pytest.approx(expected["lower_bound"] * s, rel=1e-6)
        zeros.add(int((nu == 0).sum()))
    assert 0 in zeros and len(zeros) > 1


@pytest.mark.parametrize("apart", [1e-3, 1.0])
def test_limits_that_contradict_each_other_leave_no_bound_but_large_ones(apart: float) -> None:
    """x <= -apart and -x <= -apart, and within balls around 1 and -1, for the least 1 + x^2 / 2."""
    for gradients, curvature in ([[1.0, 0.0], [-1.0, 0.0]], 0.0), ([[-2.0, 0.0], [2.0, 0.0]], 2.0):
        both = point(1.0, [0.0, 0.0], [apart, apart], gradients)
        assert lower_bound(both, np.zeros(2), np.array([1.0, curvature, curvature])) > 1e4 * apart


def test_the_prox_map_by_hand() -> None:
    """||x||_1 with weight 1/2 at w = (3, -4), grad F = (0, 10): s = 5 / 10."""
    w, slope = np.array([3.0, -4.0]), np.array([0.0, 10.0])

    def prox(u: Any, step: float) -> Any:
        return np.sign(u) * np.maximum(np.abs(u) - step * 0.5, 0)  # of w - 0.5 grad F: (2.75, -8.75)

    assert prox_stationarity(w, slope, 7.0, prox) == pytest.approx(np.hypot(0.25, 4.75) / 5)
    # at w = 0 the step is 0.7, and the prox gives (0, -6.65)
    assert prox_stationarity(np.zeros(2), slope, 7.0, prox) == pytest.approx(0.95)


# --- what is reported of a problem with penalties and a regularizer ---------------------------------------------------

SAMPLES, FEATURES = 40, 6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((SAMPLES, FEATURES))
Y = (X @ [2.0, -1.0, 0, 0, 0.3, 0] + RNG.standard_normal(SAMPLES) > 0).astype(np.int64)
W = RNG.standard_normal(FEATURES)


class OwnPenalty(Logistic):
    """An objective of a user's, which may have any penalty."""


def problem(objective: Any, regularizer: Any = None, **changes: Any) -> Problem:
    settings = {"split": "rows", "counts": np.array([SAMPLES]), "samples": SAMPLES, "features": FEATURES, "outputs": 2}
    return Problem(objective, **(settings | changes), regularizer=regularizer)


def smooth(w: Any, penalty: float = 0.0, beta: float = 0.0) -> tuple[float, Any]:
    """Value and gradient of the mean logistic loss with both penalties."""
    losses, back = forward("logistic", {"first": w[:, None]}, X, Y)
    slope = back(np.full(SAMPLES, 1 / SAMPLES))["first"][:, 0] + 2 * penalty * w + beta * 2 * w / (1 + w**2) ** 2
    return float(losses.mean() + penalty * w @ w + beta * (w**2 / (1 + w**2)).sum()), slope


def measured(w: Any) -> tuple[Parameters, Tally, Parameters]:
    """(model, sums of losses, sum of gradients)."""
    loss, gradient = smooth(w)
    tally = Tally(np.array([SAMPLES * loss]), np.array([SAMPLES * loss**2]), np.array([float(SAMPLES)]))
    return Parameters(w[:, None], ()), tally, Parameters(SAMPLES * gradient[None, :, None], ())


def reported(found: Problem, w: Any = W) -> Any:
    return report_certificate(found, *measured(w), first_iterate(found, *measured(np.zeros(FEATURES))))


def test_the_objective_is_all_that_is_added_up() -> None:
    columns = report_levels(problem(Logistic(l2=0.2, nonconvex_penalty=0.3), L1(0.1)), *measured(W)[:2])
    assert columns["train_loss"] == pytest.approx(smooth(W)[0])
    assert columns["objective"] == pytest.approx(smooth(W, 0.2, 0.3)[0] + 0.1 * abs(W).sum(), rel=1e-12)
    assert report_levels(problem(Logistic(), Box(-0.1, 0.1)), *measured(W)[:2])["objective"] == np.inf


def test_a_penalty_gives_a_bound() -> None:
    """F - ||grad F||^2 / (4 lambda); none without a convex penalty, of some rows, or with a regularizer."""
    (value, gradient), columns = smooth(W, 0.2), reported(problem(Logistic(l2=0.2)))
    assert columns["lower_bound"] == pytest.approx(value - gradient @ gradient / 0.8, rel=1e-9)
    assert columns["duality_gap"] == pytest.approx(gradient @ gradient / 0.8, rel=1e-9)
    least = minimize(lambda w: smooth(w, 0.2), W, jac=True, options={"gtol": 1e-10}).x
    assert reported(problem(Logistic(l2=0.2)), least)["lower_bound"] == pytest.approx(smooth(least, 0.2)[0], rel=1e-12)
    concave = problem(Logistic(l2=0.2, nonconvex_penalty=0.3))
    norms = [np.linalg.norm(smooth(at, 0.2, 0.3)[1]) for at in (W, 0 * W)]
    columns = reported(concave)
    assert columns["kkt_residual"] == columns["stationarity"] == pytest.approx(norms[0] / max(norms), rel=1e-12)
    some = problem(Logistic(l2=0.2), measured_rows=7)
    for other in concave, problem(Logistic()), some, problem(Logistic(l2=0.2), L1(0.1)):
        assert reported(other)["lower_bound"] is reported(other)["duality_gap"] is None
    assert is_convex(problem(OwnPenalty(l2=0.1)))
    assert not is_convex(problem(OwnPenalty(l2=-0.1))) and not is_convex(problem(MLP(hidden=2, l2=0.1)))


@pytest.mark.parametrize(("h", "weight", "low", "high"), [(L1(0.05), 0.05, -1, None), (Box(0.0, 0.5), 0.0, 0, 0.5)])
def test_the_certificate_at_a_solution_known_otherwise(h: Any, weight: float, low: int, high: Any) -> None:
    """The minimizer with 0.05 ||w||_1, as that of p - q with p, q >= 0; and with 0 <= w <= 0.5."""

    def split(pq: Any) -> tuple[float, Any]:
        value, gradient = smooth(pq[:FEATURES] - pq[FEATURES:], 0.01, 0.02)
        return value + weight * pq.sum(), np.concatenate([gradient, -gradient]) + weight

    tight = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000}
    bounds = [(0, high)] * FEATURES + [(0, None if low else 0)] * FEATURES
    pq = minimize(split, [0.1] * FEATURES + [-0.1 * low] * FEATURES, jac=True, bounds=bounds, options=tight).x
    w, found = pq[:FEATURES] - pq[FEATURES:], problem(Logistic(l2=0.01, nonconvex_penalty=0.02), h)
    assert np.isclose(w, 0).any() and np.linalg.norm(smooth(w, 0.01, 0.02)[1]) > 1e-2
    columns = reported(found, w)
    assert columns["kkt_residual"] == columns["stationarity"] < 1e-6
    assert columns["feasibility"] == columns["complementarity"] == 0
    for move in np.random.default_rng(1).standard_normal((5, FEATURES)):
        assert reported(found, w + 0.1 * move)["kkt_residual"] > 1e-3
