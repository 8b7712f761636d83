"""Certificates: by hand, free of units, and at solutions that scipy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from mpifed.maths.certificates import (
    CertifiedPoint,
    FirstIterate,
    best_multipliers,
    certificate,
    lower_bound,
    prox_stationarity,
)


def point(objective: float, gradient: Any, excess: Any = (), gradients: Any = (), limits: Any = None) -> CertifiedPoint:
    e = np.array(excess, dtype=float)
    return CertifiedPoint(
        objective, np.array(gradient, dtype=float), e, np.array(gradients, dtype=float).reshape(len(e), len(gradient)),
        np.ones(len(e)) if limits is None else np.array(limits, dtype=float), np.full(len(e), 0.5),
    )  # fmt: skip


def first(objective: float = 0.0, gradient: float = 0.0, excess: Any = (), M: int = 0) -> FirstIterate:
    e = np.array(excess if len(excess) else [0.0] * M, dtype=float)
    return FirstIterate(objective, gradient, e, 1.0)


def test_by_hand() -> None:
    at = point(-8.0, [1.0, -2.0], [0.125, -1.5], [[0.5, 1.0], [2.0, 0.0]], limits=[0.25, -3.0])
    found = certificate(at, first(2.0, 1.0, [0.5, 1.0]), np.array([2.0, 0.5]))
    # (1, -2) + 2 (0.5, 1) + 0.5 (2, 0) = (3, 0), and the longest of its parts is 2 (0.5, 1) or (1, -2): sqrt(5)
    assert found.stationarity == pytest.approx(3 / np.sqrt(5))
    assert found.feasibility == 0.125 / 0.5
    assert found.complementarity == max(2 * 0.125, 0.5 * 1.5) / 8
    assert found.kkt_residual == found.stationarity


def test_an_objective_of_zero_that_starts_at_a_zero() -> None:
    """The norm at w = 0, where its gradient vanishes too: nothing but the limit is left."""
    at, start = point(0.0, [0.0, 0.0], [2.1], [[-1.0, 3.0]], limits=[0.2]), first(0.0, 0.0, [2.1])
    nu = best_multipliers(at, start)
    assert nu.tolist() == [0.0]
    assert certificate(at, start, nu) == (1.0, 0.0, 1.0, 0.0)


# --- multipliers --------------------------------------------------------------------------------------------------


def random_point(seed: int, d: int = 6, M: int = 3) -> tuple[CertifiedPoint, FirstIterate]:
    rng = np.random.default_rng(seed)
    gradients = rng.standard_normal((M, d))
    gradient = -rng.uniform(0, 2, M) @ gradients + 0.3 * rng.standard_normal(d)
    at = point(rng.normal(), gradient, 0.1 * rng.standard_normal(M), gradients, rng.uniform(0.1, 2, M))
    return at, FirstIterate(rng.normal(), 3.0, rng.uniform(0, 1, M), 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_multipliers_are_the_best(seed: int) -> None:
    at, start = random_point(seed)
    slope, value = max(3.0, np.linalg.norm(at.gradient)), max(abs(at.objective), abs(start.objective))

    def squares(nu: Any) -> float:
        return float((at.lagrangian(nu) ** 2).sum() / slope**2 + ((nu * at.excess) ** 2).sum() / value**2)

    nu = best_multipliers(at, start)
    assert (nu >= 0).all()
    solved = minimize(squares, np.ones(3), bounds=[(0, None)] * 3, options={"ftol": 1e-16, "gtol": 1e-12})
    assert squares(nu) <= solved.fun + 1e-12
    np.testing.assert_allclose(nu, solved.x, atol=1e-4)
    assert 0 in {int((best_multipliers(*random_point(s)) == 0).sum()) for s in range(20)} - {3}


@pytest.mark.parametrize("of", ["objective", "constraint"])
def test_units_change_no_number(of: str) -> None:
    for seed in range(10):
        at, start = random_point(seed)
        k = np.array([1.0, 1000.0, 1.0]) if of == "constraint" else np.ones(3)
        s = 1000.0 if of == "objective" else 1.0
        scaled = CertifiedPoint(
            at.objective * s, at.gradient * s, at.excess * k, at.gradients * k[:, None], at.limits * k, at.spreads * k
        )
        begun = FirstIterate(start.objective * s, start.gradient * s, start.excess * k, 1.0)
        nu, other = best_multipliers(at, start), best_multipliers(scaled, begun)
        np.testing.assert_allclose(other, nu * s / k, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(certificate(scaled, begun, other), certificate(at, start, nu), rtol=1e-8)
        mu = np.array([1.0, 0.5, 2.0, 0.0])
        scaled_mu = mu * np.append(s, k)
        bound, bound_scaled = lower_bound(at, nu, mu), lower_bound(scaled, other, scaled_mu)
        assert bound_scaled == pytest.approx(bound * s, rel=1e-7)


# --- solutions known otherwise ------------------------------------------------------------------------------------


def quadratic_program(seed: int, d: int = 5, M: int = 4) -> tuple[Any, Any, Any, Any]:
    """min w'Pw/2 + q'w subject to Aw <= b"""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((d, d))
    return root @ root.T + np.eye(d), rng.standard_normal(d) * 3, rng.standard_normal((M, d)), rng.uniform(0.1, 0.5, M)


def solved_program(seed: int) -> tuple[Any, float, float]:
    """(w*, the least eigenvalue of P, P*)"""
    P, q, A, b = quadratic_program(seed)
    limits = {"type": "ineq", "fun": lambda w: b - A @ w, "jac": lambda w: -A}
    found = minimize(
        lambda w: w @ P @ w / 2 + q @ w, np.zeros(5), jac=lambda w: P @ w + q, constraints=[limits], method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    return found.x, float(np.linalg.eigvalsh(P)[0]), found.fun


def at_program(seed: int, w: Any) -> CertifiedPoint:
    P, q, A, b = quadratic_program(seed)
    return point(w @ P @ w / 2 + q @ w, P @ w + q, A @ w - b, A, b)


@pytest.mark.parametrize("seed", range(6))
def test_at_the_solution_of_a_quadratic_program(seed: int) -> None:
    w, mu, least = solved_program(seed)
    curvatures = np.array([mu, 0, 0, 0, 0])
    start = FirstIterate(0.0, float(np.linalg.norm(quadratic_program(seed)[1])), -np.ones(4), 1.0)
    at = at_program(seed, w)
    nu = best_multipliers(at, start)
    assert max(certificate(at, start, nu)) < 1e-5
    assert lower_bound(at, nu, curvatures) == pytest.approx(least, abs=1e-6)
    # and nowhere else
    for other in np.random.default_rng(seed).standard_normal((5, 5)):
        near = at_program(seed, w + 0.1 * other)
        nu = best_multipliers(near, start)
        assert certificate(near, start, nu).kkt_residual > 1e-3
        bound = lower_bound(near, nu, curvatures)
        assert bound < least
        for tried in np.abs(np.random.default_rng(seed).standard_normal((20, 4))):  # any multipliers give a bound
            value = near.objective + tried @ near.excess - (near.lagrangian(tried) ** 2).sum() / (2 * mu)
            assert value <= bound + 1e-9 * abs(bound)


@pytest.mark.parametrize("apart", [1e-3, 1.0])
def test_limits_that_contradict_each_other_leave_no_bound_but_large_ones(apart: float) -> None:
    """x <= -apart and -x <= -apart, and within balls around 1 and -1, for the least 1 + x^2 / 2."""
    for gradients, curvature in ([[1.0, 0.0], [-1.0, 0.0]], 0.0), ([[-2.0, 0.0], [2.0, 0.0]], 2.0):
        both = point(1.0, [0.0, 0.0], [apart, apart], gradients)
        assert lower_bound(both, np.zeros(2), np.array([1.0, curvature, curvature])) > 1e4 * apart


# --- regularizers -------------------------------------------------------------------------------------------------


def test_the_prox_map_by_hand() -> None:
    """||x||_1 with weight 1/2 at w = (3, -4), grad F = (0, 10): s = 5 / 10."""
    w, slope = np.array([3.0, -4.0]), np.array([0.0, 10.0])

    def prox(u: Any, step: float) -> Any:
        return np.sign(u) * np.maximum(np.abs(u) - step * 0.5, 0)  # of w - 0.5 grad F: (2.75, -8.75)

    assert prox_stationarity(w, slope, 7.0, prox) == pytest.approx(np.hypot(0.25, 4.75) / 5)
    # at w = 0 the step is 0.7, and the prox gives (0, -6.65)
    assert prox_stationarity(np.zeros(2), slope, 7.0, prox) == pytest.approx(0.95)
