"""KKT residuals: by hand, and at solutions that scipy finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from mpifed.maths.certificates import certificate


def test_by_hand() -> None:
    """Multipliers (1, 2, 0.5) are divided by 3.5."""
    found = certificate(
        np.array([1.0, -2.0]),
        np.array([[0.5, 1.0], [2.0, 0.0]]),
        np.array([0.125, -1.5]),
        np.array([2.0, 0.5]),
    )
    # (1, -2) + 2 (0.5, 1) + 0.5 (2, 0) = (3, 0)
    assert found.stationarity == pytest.approx(3 / 3.5)
    assert found.infeasibility == 0.125
    assert found.complementarity == pytest.approx(max(2 * 0.125, 0.5 * 1.5) / 3.5)
    assert found.kkt_residual == found.stationarity


@pytest.mark.parametrize("which", ["stationarity", "infeasibility", "complementarity"])
def test_the_residual_is_the_largest_part(which: str) -> None:
    gradient, excess, nu = {
        "stationarity": ([5.0], [-0.1], [0.0]),
        "infeasibility": ([0.0], [0.7], [0.0]),
        "complementarity": ([0.0], [-3.0], [1.0]),
    }[which]
    found = certificate(np.array(gradient), np.zeros((1, 1)), np.array(excess), np.array(nu))
    assert found.kkt_residual == getattr(found, which) == max(found) > 0


def test_without_constraints_it_is_the_norm_of_the_gradient() -> None:
    found = certificate(np.array([3.0, -4.0]), np.zeros((0, 2)), np.zeros(0), np.zeros(0))
    assert found == (5.0, 5.0, 0.0, 0.0)


def test_nothing_is_asked_of_constraints_that_do_not_bind() -> None:
    found = certificate(np.zeros(3), np.ones((2, 3)), np.array([-1.0, -5.0]), np.zeros(2))
    assert found == (0.0, 0.0, 0.0, 0.0)


def test_large_multipliers_are_weighed() -> None:
    """The residual of a problem whose multiplier is 1000 is not 1000 times that of its constraint."""
    found = certificate(np.zeros(1), np.array([[1e-3]]), np.array([1e-3]), np.array([1e3]))
    assert found.kkt_residual == pytest.approx(1e-3, rel=1e-2)


def quadratic_program(seed: int, d: int = 5, M: int = 4) -> tuple[Any, Any, Any, Any]:
    """min w'Pw/2 + q'w subject to Aw <= b"""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((d, d))
    return root @ root.T + np.eye(d), rng.standard_normal(d) * 3, rng.standard_normal((M, d)), rng.uniform(0.1, 0.5, M)


@pytest.mark.parametrize("seed", range(6))
def test_at_the_solution_of_a_quadratic_program(seed: int) -> None:
    P, q, A, b = quadratic_program(seed)
    limits = {"type": "ineq", "fun": lambda w: b - A @ w, "jac": lambda w: -A}
    solved = minimize(
        lambda w: w @ P @ w / 2 + q @ w, np.zeros(5), jac=lambda w: P @ w + q, constraints=[limits], method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    w = solved.x
    binding = np.flatnonzero(A @ w - b > -1e-6)
    nu = np.zeros(len(b))
    nu[binding] = nnls(A[binding].T, -(P @ w + q))[0] if len(binding) else []
    found = certificate(P @ w + q, A, A @ w - b, nu)
    assert max(found) < 1e-5
    # and nowhere else
    for other in np.random.default_rng(seed).standard_normal((5, 5)):
        v = w + 0.1 * other
        assert certificate(P @ v + q, A, A @ v - b, nu).kkt_residual > 1e-3


def test_the_programs_differ_in_how_many_constraints_bind() -> None:
    """So that the test above is about more than one thing."""
    counts = set()
    for seed in range(6):
        P, q, A, b = quadratic_program(seed)
        limits = {"type": "ineq", "fun": lambda w, A=A, b=b: b - A @ w}
        w = minimize(lambda w, P=P, q=q: w @ P @ w / 2 + q @ w, np.zeros(5), constraints=[limits], method="SLSQP").x
        counts.add(int((A @ w - b > -1e-5).sum()))
    assert len(counts) > 1
