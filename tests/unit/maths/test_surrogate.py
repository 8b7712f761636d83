"""Surrogates against the explicit weighted sums of quadratics that they stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import check_grad, minimize

from mpifed import StepSize
from mpifed.core.record import leaves, map_leaves
from mpifed.maths.surrogate import (
    Start,
    Surrogate,
    forms,
    gram,
    level_at,
    move,
    slope_at,
    start_again,
    start_surrogate,
    track,
)

TAU, K, D = 0.3, 3, 7
PENALTIES = [0.02, 0.0, 0.5]
AIMS = [0.0, 1.5, -0.25]  # F_0 has none; the levels that are tracked have them taken off already
WEIGHT = 2.5  # what the estimates are multiples of

starts = pytest.mark.parametrize("start", ["exact", "paper"])


class Model(NamedTuple):
    a: Any  # [2, 2]
    b: Any  # [3]


def model(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    return Model(rng.standard_normal((2, 2)), rng.standard_normal(3))


def gradients(seed: int, functions: int = K) -> Model:
    rng = np.random.default_rng(seed + 1000)
    return Model(rng.standard_normal((functions, 2, 2)), rng.standard_normal((functions, 3)))


def flat(record: Model) -> Any:
    return np.concatenate([record.a.reshape(-1), record.b])


def flat_each(record: Model) -> Any:
    """[K, 7]"""
    return np.concatenate([record.a.reshape(len(record.a), -1), record.b], axis=1)


def record(w: Any) -> Model:
    return Model(w[:4].reshape(2, 2), w[4:])


class Taken(NamedTuple):
    """One round's quadratics, with what is left of their weight."""

    weight: float
    gradient: Any  # [K, 7]
    level: Any  # [K] F_k - aim_k
    at: Any  # [7]

    def value(self, k: int, w: Any) -> float:
        """(6), (11), and the penalty linearized at w_t."""
        away = w - self.at
        exact = self.level[k] + self.gradient[k] @ away + TAU * away @ away
        return float(exact + 2 * PENALTIES[k] * self.at @ w)


def tracked(rounds: int, rho_1: float) -> tuple[Surrogate, list[Taken]]:
    """(the surrogates, what they are the sum of) after some rounds at random points."""
    found, taken = start_surrogate(model(0), K), []
    for t in range(1, rounds + 1):
        rho, gradient, at = StepSize(rho_1, 0.4).at(t), gradients(t), model(t)
        level = np.random.default_rng(t).standard_normal(K) * 3
        scaled = map_leaves(lambda leaf: leaf * WEIGHT, gradient)
        found = track(found, rho, scaled, level * WEIGHT, at, TAU, PENALTIES, WEIGHT)
        taken = [one._replace(weight=one.weight * (1 - rho)) for one in taken]
        taken.append(Taken(rho, flat_each(gradient), level, flat(at)))
    return found, taken


def explicit(k: int, taken: list[Taken], start: Start) -> Any:
    """The k-th surrogate as a function of w [7]."""
    missing = 1 - sum(one.weight for one in taken)

    def value(w: Any) -> float:
        there = sum(one.weight * one.value(k, w) for one in taken)
        # curvature and limit in full from the first round on
        return float(there + missing * (TAU * w @ w - AIMS[k]) if start == "paper" else there)

    return value


def quadratics(found: Surrogate, start: Start) -> list[Any]:
    """The surrogates of F_0 to F_2 as `forms` describes them."""
    constants, curvatures, rows = forms(found, AIMS, [True] * K, TAU, start)
    linear = flat_each(found.linear)
    constants = [float(found.constant[0]), *constants]  # that of F_0 is left out
    return [
        lambda w, k=k, row=row: constants[k] + linear[row] @ w + curvatures[k] * w @ w for k, row in enumerate(rows)
    ]


@starts
@pytest.mark.parametrize("rho_1", [0.4, 1.0])
@pytest.mark.parametrize("rounds", [1, 5])
def test_they_are_weighted_sums_of_quadratics(start: Start, rho_1: float, rounds: int) -> None:
    found, taken = tracked(rounds, rho_1)
    assert float(found.weight) == pytest.approx(sum(one.weight for one in taken))
    rng = np.random.default_rng(0)
    for k, quadratic in enumerate(quadratics(found, start)):
        expected = explicit(k, taken, start)
        for w in rng.standard_normal((4, D)) * 2:
            assert quadratic(w) == pytest.approx(expected(w), rel=1e-12, abs=1e-12)


@starts
@pytest.mark.parametrize("rho_1", [0.4, 1.0])
@pytest.mark.parametrize("nu", [[0.0, 0.0], [0.7, 0.0], [0.3, 12.0]])
def test_moving_is_towards_the_minimum(start: Start, rho_1: float, nu: list[float]) -> None:
    """Of F-bar_0 + sum nu_m F-bar_m, found by scipy."""
    (found, taken), at, gamma = tracked(5, rho_1), model(100), 0.35
    each = [explicit(k, taken, start) for k in range(K)]
    multipliers = np.array([1.0, *nu])
    best = minimize(lambda w: sum(f(w) * m for f, m in zip(each, multipliers, strict=True)), np.zeros(D), tol=1e-12).x
    curvatures = forms(found, AIMS, [True] * K, TAU, start).curvatures
    factors = (multipliers / (2 * multipliers @ curvatures)).tolist()
    np.testing.assert_allclose(flat(move(found, factors, 1.0, at)), best, rtol=0, atol=1e-5)  # scipy's differences
    expected = (1 - gamma) * flat(at) + gamma * flat(move(found, factors, 1.0, at))
    np.testing.assert_allclose(flat(move(found, factors, gamma, at)), expected, rtol=1e-12)


@starts
def test_a_round_of_the_unconstrained_problem(start: Start) -> None:
    """One function, from round to round at the points that it leads to: Algorithm 1."""
    at, found, taken = model(100), start_surrogate(model(100), 1), []
    for t in range(1, 6):
        rho, gamma, gradient = StepSize(0.4, 0.4).at(t), 0.35, gradients(t, 1)
        found = track(found, rho, gradient, (), at, TAU, [PENALTIES[0]])
        taken = [one._replace(weight=one.weight * (1 - rho)) for one in taken]
        taken.append(Taken(rho, flat_each(gradient), [0.0], flat(at)))
        best = minimize(explicit(0, taken, start), np.zeros(D), method="BFGS", options={"gtol": 1e-8}).x
        (curvature,) = forms(found, [0.0], [True], TAU, start).curvatures
        assert curvature == pytest.approx(TAU * (1.0 if start == "paper" else sum(one.weight for one in taken)))
        new = move(found, [1 / (2 * curvature)], gamma, at)
        np.testing.assert_allclose(flat(new), (1 - gamma) * flat(at) + gamma * best, rtol=0, atol=1e-6)
        at = new
    assert found.constant.tolist() == [0.0]  # nobody asked for it


def test_the_gram_matrix() -> None:
    found, _ = tracked(3, 0.4)
    linear = flat_each(found.linear)
    np.testing.assert_allclose(gram(found, (0, 1, 2)), linear @ linear.T, rtol=1e-12)
    with_norm = gram(found, (None, 0, None, 1, 2))
    assert with_norm.dtype == np.float64
    there = [1, 3, 4]
    np.testing.assert_allclose(with_norm[np.ix_(there, there)], linear @ linear.T, rtol=1e-12)
    assert not with_norm[[0, 2]].any() and not with_norm[:, [0, 2]].any()


def test_slopes_and_levels_at_a_point() -> None:
    (found, taken), w = tracked(4, 0.4), model(50)
    curvature = TAU * float(found.weight)
    values = level_at(found, curvature, w)
    slopes = flat_each(slope_at(found, curvature, w))
    for k in range(K):
        value = explicit(k, taken, "exact")
        assert values[k] == pytest.approx(value(flat(w)), rel=1e-12)
        assert check_grad(value, lambda _, k=k: slopes[k], flat(w)) < 1e-5


def test_starting_again() -> None:
    found, _ = tracked(4, 0.4)
    before = [leaf.copy() for _, leaf in leaves(found)]
    again = start_again(found)
    fresh = start_surrogate(model(0), K)
    for (_, one), (_, other) in zip(leaves(again), leaves(fresh), strict=True):
        assert (np.shape(one), np.asarray(one).dtype) == (np.shape(other), np.asarray(other).dtype)
        assert not np.any(one) and not np.any(other)
    for (_, leaf), old in zip(leaves(found), before, strict=True):
        np.testing.assert_array_equal(leaf, old)
