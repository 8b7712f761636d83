"""SSCA's convex problem through its dual: by duality, which proves an optimum, and in closed forms."""

from __future__ import annotations

from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from mpifed.core.errors import NumericalError
from mpifed.maths.dual import multipliers

REGIMES = ["inactive", "feasible", "mixed", "far"]


class Problem(NamedTuple):
    """Surrogates a_m + f_m.w + tau_m ||w||^2; those of index 0 are the objective's."""

    a: Any  # [M]
    f: Any  # [M + 1, d]
    tau: Any  # [M + 1]
    c: float

    def values(self, w: Any) -> Any:
        return self.a + self.f[1:] @ w + self.tau[1:] * (w @ w)


def solved(problem: Problem) -> tuple[Any, Any, Any]:
    """(nu, w, s)."""
    nu, levels = multipliers(problem.a, problem.f @ problem.f.T, problem.tau, problem.c)
    assert nu.dtype == np.float64
    assert ((nu >= 0) & (nu <= problem.c)).all()
    return nu, least(problem, nu), np.maximum(levels, 0)


def least(problem: Problem, nu: Any) -> Any:
    """w(nu)"""
    return -(problem.f[0] + nu @ problem.f[1:]) / (2 * (problem.tau[0] + nu @ problem.tau[1:]))


def random_problem(seed: int, regime: str, constraints: int, decades: float) -> Problem:
    """Functions whose sizes differ by up to 10^(2 decades); some are zero, `norm`, linear, or copies."""
    rng = np.random.default_rng((seed, REGIMES.index(regime)))
    d, M = int(rng.integers(1, 7)), int(rng.integers(1, constraints + 1))
    f = rng.standard_normal((M + 1, d)) * 10 ** rng.uniform(-decades, decades, (M + 1, 1))
    tau = np.r_[1.0, rng.random(M) * (rng.random(M) < 0.7)] * 10 ** rng.uniform(-decades / 2, decades / 2, M + 1)
    kinds = rng.choice(["", "copy", "norm", "zero", "same curvature"], M + 1, p=[0.55, 0.15, 0.1, 0.05, 0.15])
    for m in range(1, M + 1):
        if kinds[m] == "copy":
            f[m], tau[m] = f[m - 1], tau[m - 1]
        elif kinds[m] == "same curvature":
            tau[m] = tau[0]
        elif kinds[m]:
            f[m], tau[m] = 0, float(kinds[m] == "norm")
    f[0] *= rng.random() > 0.2
    best = -f[0] / (2 * tau[0])  # of the objective alone
    at = rng.standard_normal(d) * (np.linalg.norm(best) + 0.1) if regime == "feasible" else best
    size = np.abs(f[1:] @ best) + tau[1:] * (best @ best) + 0.1 * np.linalg.norm(f[1:], axis=1)
    noise = {
        "inactive": -0.5 * rng.random(M), "feasible": -0.3 * rng.random(M) * rng.integers(0, 2),
        "mixed": rng.standard_normal(M), "far": 10 * rng.standard_normal(M),
    }[regime]  # fmt: skip
    a = noise * size - (f[1:] @ at + tau[1:] * (at @ at))
    return Problem(a, f, tau, 10 ** rng.uniform(-2, 6))


def sizes(problem: Problem, nu: Any) -> Any:
    """[M] of the terms that a surrogate's value at w(nu) is a sum of, if none cancelled: rounding is eps of that."""
    norms = np.linalg.norm(problem.f, axis=1)
    reach = (norms[0] + nu @ norms[1:]) / (2 * (problem.tau[0] + nu @ problem.tau[1:]))
    size = np.abs(problem.a) + norms[1:] * reach + problem.tau[1:] * reach**2
    return np.where(size > 0, size, 1)


def residual(problem: Problem, nu: Any) -> float:
    """The largest relative error in the KKT conditions.

    With s = max(0, value), they ask: value <= 0 where nu = 0, value >= 0 where nu = c, value = 0 between.
    """
    value = problem.values(least(problem, nu))
    below, above = np.where(nu > 0, np.maximum(-value, 0), 0), np.where(nu < problem.c, np.maximum(value, 0), 0)
    return float((np.maximum(below, above) / sizes(problem, nu)).max())


def dual(problem: Problem, nu: Any) -> float:
    pull = problem.f[0] + nu @ problem.f[1:]
    return float(problem.a @ nu - pull @ pull / (4 * (problem.tau[0] + nu @ problem.tau[1:])))


# A w and a nu of equal value are optimal, both of them, whoever found them: also for copies at a price of 1e6, or
# gradients that differ by 1e8 in length, which no solver of the primal does.
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("decades", "constraints"), [(0.0, 8), (1.0, 8), (4.0, 8), (0.0, 20)])
def test_conditions_and_duality(regime: str, decades: float, constraints: int) -> None:
    for seed in range(60):
        problem = random_problem(seed, regime, constraints, decades)
        nu, w, s = solved(problem)
        assert residual(problem, nu) <= 1e-12
        # the terms that both values are sums of
        terms = abs(problem.f[0] @ w) + problem.tau[0] * (w @ w) + (nu + problem.c * (s > 0)) @ sizes(problem, nu)
        primal = problem.f[0] @ w + problem.tau[0] * (w @ w) + problem.c * s.sum()
        assert abs(primal - dual(problem, nu)) <= 1e-12 * terms
        assert (problem.values(w) <= s + 1e-12 * sizes(problem, nu)).all()


# what is hard, and (a, f, tau, c) of it
HARD: dict[str, tuple[list[float], list[list[float]], list[float], float]] = {
    "a multiplier that went to c, and by rounding beyond": (
        [0, -1271, 1e-4, 0], [[0, 0, 0], [0, 8901, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1]], [2, 0, 0, 0, 0], 206033,
    ),
    "the interior point's T goes up and down by a factor of ten, unless it starts elsewhere": (
        [-0.5, 0], [[5308.875, -5050.5], [0, 0], [931.75, 6432.75]], [133.0546875, 0, 1000], 782196,
    ),
    "a feasible set of one point, no multipliers below c: the second constraint holds like a square root": (
        [0, 0, 0], [[0, 0, 1], [0, 1, 0], [0, 3, 0], [0, -1, 0]], [1, 0, 1, 0], 649,
    ),
    "w = 0 is all that meets the first constraint, whose multiplier is 0 as well": (
        [0, 0, 0], [[-169, 0], [0, -1], [129, 0], [2, -7]], [1e-3, 23, 0, 0], 2,
    ),
    "the first multiplier, 1.5 of 2, can be 0, but not 2": (
        [0, 0, 0], [[1e4, 0], [-129, -1e-3], [-1e4, 0], [40, 6.999]], [0.01, 1, 1, 1e-3], 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", HARD)
def test_conditions_hold_where_it_is_hard(why: str) -> None:
    *arrays, c = HARD[why]
    problem = Problem(*(np.array(each, dtype=float) for each in arrays), float(c))
    assert residual(problem, solved(problem)[0]) <= 1e-11


@pytest.mark.parametrize("regime", REGIMES)
def test_units_and_order_do_not_matter(regime: str) -> None:
    """Other units of values and of w, another order of constraints; w is compared, since nu need not be unique."""
    for seed in range(60):
        problem, rng = random_problem(seed, regime, 8, 1.0), np.random.default_rng(seed)
        nu, w, _ = solved(problem)
        unit, other = 2.0 ** rng.integers(-20, 21, 2)
        order = rng.permutation(len(problem.a))
        k = np.append(0, 1 + order)
        a, f, tau = problem.a[order] * unit, problem.f[k] * unit * other, problem.tau[k] * unit * other**2
        moved = solved(Problem(a, f, tau, problem.c))[1]
        # at best the square root of rounding, of the terms that w is a sum of: a value's change is that of w squared
        reach = np.linalg.norm(problem.f, axis=1) @ np.r_[1, nu] / (2 * (problem.tau[0] + nu @ problem.tau[1:]))
        np.testing.assert_allclose(moved * other, w, rtol=0, atol=1e-6 * reach + 1e-300)


def lemma_1(a: float, b: float, tau: float, c: float) -> float:
    """The multiplier of a single constraint, the objective being ||w||^2."""
    (nu,), _ = multipliers(np.array([a]), np.diag([0.0, b]), np.array([1.0, tau]), c)
    return float(nu)


def test_lemma_1() -> None:
    """Against (42) as printed, and against the minimizer on the line w = -t f_1: slack, to be met, or out of reach."""
    cut = between = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        b, tau, c = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-2, 2), 10 ** rng.uniform(-2, 5)
        a = b / (4 * tau) * rng.uniform(-0.5, 1.5)  # no w makes the surrogate less than a - b / (4 tau)
        nu, depth = lemma_1(a, b, tau, c), b - 4 * tau * a
        printed = np.clip((np.sqrt(b / depth) - 1) / tau, 0, c) if depth > 0 else c
        assert nu == pytest.approx(printed, rel=1e-9, abs=1e-12 / tau)  # that subtracts 1
        found = minimize_scalar(
            lambda t, a=a, b=b, tau=tau, c=c: t * t * b + c * max(0.0, a - t * b + tau * t * t * b),
            bounds=(0, 1 / (2 * tau)), method="bounded", options={"xatol": 1e-12 / tau},
        )  # fmt: skip
        assert nu / (2 * (1 + nu * tau)) == pytest.approx(found.x, abs=1e-6 / tau)  # sqrt(eps) of the interval, or so
        cut, between = cut + (nu == c), between + (0 < nu < c)
    assert min(cut, between) > 30
    # a half-space, 2 a / b, is the limit for tau = 0; where 0 / 0 was printed, w = 0 meets the limit
    for *of, nu in ((0.5, 1, 0, 1), (0.5, 1, 1e-20, 1), (0, 0, 1, 0), (-1, 0, 1, 0), (1, 0, 1, 10)):
        assert lemma_1(*of, 10.0) == nu


def test_out_of_reach_is_cut_by_the_cost() -> None:
    a, f = np.array([1.0, 1.0, -9.0]), np.array([[0.0, 0.2], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    for c in (1e-2, 1.0, 1e3, 1e6):
        problem = Problem(a, f, np.ones(4), c)
        nu, w, s = solved(problem)
        assert nu.tolist() == [c, c, 0.0]  # exactly
        np.testing.assert_allclose(w, [0, -0.1 / (1 + 2 * c)], rtol=1e-9, atol=1e-10)  # f_1 and f_2 cancel at c
        np.testing.assert_allclose(s, problem.values(w).clip(0), rtol=1e-12)
        assert (s[:2] > 0.9).all()


@pytest.mark.parametrize(("changed", "message"), [
    ({"constants": np.array([0.0, nan])}, r"constants \[0.0, nan\]: expected finite numbers.* lower the step"),
    ({"gram": np.diag([inf, 1.0, 1.0])}, "inner products .*inf"),
    ({"curvatures": np.array([1.0, -inf, 1.0])}, "curvatures .*-inf"),
    ({"curvatures": np.array([0.0, 1.0, 1.0])}, "a positive curvature of the objective"),
    ({"cost": -1.0}, "slack_cost .*-1"),
    ({"gram": np.full((3, 3), 1e300), "curvatures": np.full(3, 1e-300)}, "conditions hold up to .* scale the obj"),
])  # fmt: skip
def test_refused(changed: dict[str, Any], message: str) -> None:
    given = {"constants": np.ones(2), "gram": np.eye(3), "curvatures": np.ones(3), "cost": 1.0}
    with pytest.raises(NumericalError, match=message):
        multipliers(**given | changed)
