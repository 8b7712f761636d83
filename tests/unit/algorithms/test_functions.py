"""What is reported of a problem with a regularizer and a penalty that is not convex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from mpifed.algorithms.certificate import first_iterate, is_convex, report_certificate
from mpifed.algorithms.functions import Tally, report_levels
from mpifed.maths.objectives import MLP, Logistic, Parameters
from mpifed.maths.problem import Problem
from mpifed.maths.regularizers import L1, Box

SAMPLES, FEATURES = 40, 6
RNG = np.random.default_rng(0)
X = RNG.standard_normal((SAMPLES, FEATURES))
Y = (X @ [2.0, -1.0, 0, 0, 0.3, 0] + RNG.standard_normal(SAMPLES) > 0).astype(np.int64)


class OwnPenalty(Logistic):
    """An objective of a user's, which may have any penalty."""


def problem(objective: Any, regularizer: Any, **changes: Any) -> Problem:
    settings = {"split": "rows", "counts": np.array([SAMPLES]), "samples": SAMPLES, "features": FEATURES, "outputs": 2}
    return Problem(objective, **(settings | changes), regularizer=regularizer)


def smooth(w: Any, penalty: float = 0.0, beta: float = 0.0) -> tuple[float, Any]:
    """Value and gradient of the mean logistic loss with both penalties, written out."""
    signs = 2 * Y - 1
    margins = signs * (X @ w)
    value = np.log1p(np.exp(-margins)).mean() + penalty * w @ w + beta * (w**2 / (1 + w**2)).sum()
    gradient = -(signs / (1 + np.exp(margins))) @ X / SAMPLES + 2 * penalty * w + beta * 2 * w / (1 + w**2) ** 2
    return float(value), gradient


def total_of(w: Any) -> Tally:
    loss = smooth(w)[0]
    return Tally(np.array([SAMPLES * loss]), np.array([SAMPLES * loss**2]), np.array([float(SAMPLES)]))


def certificate(found: Problem, w: Any, start: Any = 0.0) -> Any:
    """At w, after a start at `start`."""

    def at(w: Any) -> Any:
        sums = Parameters(SAMPLES * smooth(w)[1][None, :, None], ())
        return Parameters(w[:, None], ()), total_of(w), sums

    return report_certificate(found, *at(w), first_iterate(found, *at(np.zeros(FEATURES) + start)))


def test_the_objective_is_all_that_is_added_up() -> None:
    w = RNG.standard_normal(FEATURES)
    found = problem(Logistic(l2=0.2, nonconvex_penalty=0.3), L1(0.1))
    columns = report_levels(found, Parameters(w[:, None], ()), total_of(w))
    assert columns["train_loss"] == pytest.approx(smooth(w)[0])
    assert columns["objective"] == pytest.approx(smooth(w, 0.2, 0.3)[0] + 0.1 * abs(w).sum(), rel=1e-12)
    outside = report_levels(problem(Logistic(), Box(-0.1, 0.1)), Parameters(w[:, None], ()), total_of(w))
    assert outside["objective"] == np.inf


def test_the_certificate_without_a_regularizer_is_the_relative_norm_of_the_gradient() -> None:
    w = RNG.standard_normal(FEATURES)
    columns = certificate(problem(Logistic(l2=0.2, nonconvex_penalty=0.3), None), w)
    norms = [np.linalg.norm(smooth(at, 0.2, 0.3)[1]) for at in (w, np.zeros(FEATURES))]
    assert columns["kkt_residual"] == columns["stationarity"] == pytest.approx(norms[0] / max(norms), rel=1e-12)
    assert columns["lower_bound"] is None  # the second penalty is not convex


def test_a_penalty_gives_a_bound() -> None:
    """F - ||grad F||^2 / (4 lambda), by hand; none without a penalty, of some rows, or with a regularizer."""
    w = RNG.standard_normal(FEATURES)
    value, gradient = smooth(w, 0.2)
    columns = certificate(problem(Logistic(l2=0.2), None), w)
    assert columns["lower_bound"] == pytest.approx(value - gradient @ gradient / 0.8, rel=1e-9)
    assert columns["duality_gap"] == pytest.approx(gradient @ gradient / 0.8, rel=1e-9)
    least = minimize(lambda w: smooth(w, 0.2), w, jac=True, options={"gtol": 1e-10}).x
    at_least = certificate(problem(Logistic(l2=0.2), None), least)
    assert columns["lower_bound"] < at_least["lower_bound"] == pytest.approx(smooth(least, 0.2)[0], rel=1e-12)
    for other in (
        problem(Logistic(), None), problem(Logistic(l2=0.2), None, measured_rows=7),
        problem(Logistic(l2=0.2), L1(0.1)),
    ):  # fmt: skip
        assert certificate(other, w)["lower_bound"] is certificate(other, w)["duality_gap"] is None
    assert not is_convex(problem(MLP(hidden=2, l2=0.1), None))
    assert is_convex(problem(OwnPenalty(l2=0.1), None))
    assert not is_convex(problem(OwnPenalty(l2=-0.1), None))


def lasso() -> Any:
    """The minimizer with 0.05 ||w||_1, as that of p - q with p, q >= 0."""

    def split(pq: Any) -> tuple[float, Any]:
        value, gradient = smooth(pq[:FEATURES] - pq[FEATURES:], 0.01, 0.02)
        return value + 0.05 * pq.sum(), np.concatenate([gradient, -gradient]) + 0.05

    tight = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000}
    found = minimize(split, np.full(2 * FEATURES, 0.1), jac=True, bounds=[(0, None)] * 2 * FEATURES, options=tight).x
    return found[:FEATURES] - found[FEATURES:]


def boxed() -> Any:
    """The minimizer with 0 <= w <= 0.5."""
    tight = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 5000}
    start, bounds = np.full(FEATURES, 0.1), [(0, 0.5)] * FEATURES
    return minimize(lambda w: smooth(w, 0.01, 0.02), start, jac=True, bounds=bounds, options=tight).x


@pytest.mark.parametrize(("h", "solve"), [(L1(0.05), lasso), (Box(0.0, 0.5), boxed)], ids=["l1", "box"])
def test_the_certificate_at_a_solution_known_otherwise(h: Any, solve: Callable[[], Any]) -> None:
    w = solve()
    found = problem(Logistic(l2=0.01, nonconvex_penalty=0.02), h)
    assert np.isclose(w, [0.0]).any()
    assert np.linalg.norm(smooth(w, 0.01, 0.02)[1]) > 1e-2  # the gradient alone does not vanish
    columns = certificate(found, w)
    assert columns["kkt_residual"] == columns["stationarity"] < 1e-6
    assert columns["feasibility"] == columns["complementarity"] == 0
    for move in np.random.default_rng(1).standard_normal((5, FEATURES)):
        assert certificate(found, w + 0.1 * move)["kkt_residual"] > 1e-3
