"""Duals of losses: steps against brute force, conjugates against suprema; ascent row by row; weights on the simplex."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from definitions import dual_gain, margin_loss
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse import csr_matrix
from scipy.special import expit

import mpifed.maths.coordinates
from mpifed.maths.coordinates import ascend
from mpifed.maths.duals import FLOATS, HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual
from mpifed.maths.simplex import least_on_simplex

DUALS: dict[str, Any] = {
    "hinge": HingeDual(), "squared-hinge": SquaredHingeDual(), "logistic": LogisticDual(),
    "least-squares": LeastSquaresDual(),
}  # fmt: skip
CLASSIFIERS = ["hinge", "squared-hinge", "logistic"]
CURVATURES = [0.0, 1e-8, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e8]
SCORES = [-50.0, -1.0, -0.9, 0.0, 0.3, 1.0, 1.0001, 4.0, 50.0]
every_loss = pytest.mark.parametrize("name", list(DUALS))


def gain(name: str, alpha: Any, y: Any) -> Any:
    """-l*(-alpha); y is a class, or a target."""
    return alpha * y - alpha**2 / 2 if name == "least-squares" else dual_gain(name, (2 * y - 1) * alpha)


def grid(name: str) -> tuple[Any, ...]:
    """(alpha, m, y, curvature), all combinations; alpha at both ends of its domain and within."""
    bounded, found = name in ("hinge", "logistic"), []
    for y in [0, 1] if name in CLASSIFIERS else [-2.5, 0.0, 0.7]:
        sizes = [0.0, 0.3, 0.5, 0.999, 1e-9, 1.0] if bounded else [0.0, 0.3, 2.0, 11.0, 1e-9]
        sign = 2 * y - 1 if name in CLASSIFIERS else 1
        found += [(sign * b, m, y, c) for b, m, c in product(sizes, SCORES, CURVATURES)]
    alpha, m, y, c = map(np.array, zip(*found, strict=True))
    return alpha, m, y.astype(np.int64) if name in CLASSIFIERS else y, c


@every_loss
def test_a_step_is_as_good_as_brute_force(name: str) -> None:
    """It maximizes gain(alpha + d) - m d - c/2 d^2; a single one is the same, and within the domain."""
    alpha, m, y, c = grid(name)
    dual, reached = DUALS[name], alpha + DUALS[name].step(alpha, m, y, c)

    def value(a: Any, i: Any) -> Any:
        return gain(name, a, y[i]) - m[i] * (a - alpha[i]) - c[i] / 2 * (a - alpha[i]) ** 2

    found = value(reached, slice(None))
    for i in range(0, len(alpha), 3):  # a third of them: each takes 0.5 ms
        t, far = 2 * y[i] - 1, 1.0 if name in ("hinge", "logistic") else 1e3
        low, high = (-1e3, 1e3) if name == "least-squares" else (min(0.0, t * far), max(0.0, t * far))
        best = minimize_scalar(
            lambda a, i=i: -float(value(a, i)), bounds=(low, high), method="bounded",
            options={"xatol": 1e-12, "maxiter": 500},
        ).x  # fmt: skip
        top = max(value(a, i) for a in (best, low, high, alpha[i]))
        assert found[i] >= top - 1e-9 * max(1, abs(top)), (alpha[i], m[i], y[i], c[i], reached[i], best)
    singles = [dual.best(*row, FLOATS) for row in zip(*(v.tolist() for v in (alpha, m, y, c)), strict=True)]
    np.testing.assert_allclose(singles - alpha, reached - alpha, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(dual.feasible(np.array(singles), y), singles)


def test_the_logistic_step_solves_its_equation() -> None:
    """logit(v) + t m + c (v - b) = 0, by bisection in the logit, to double precision."""
    rng = np.random.default_rng(0)
    for b in rng.random(80):
        y, c, margin = (
            int(rng.integers(2)),
            10.0 ** rng.uniform(-10, 10),
            rng.choice([-1, 1]) * 10.0 ** rng.uniform(-9, 4),
        )
        t = 2 * y - 1

        def equation(q: float, c: float = c, b: float = b, margin: float = margin) -> float:
            return q + margin + c * (float(expit(q)) - b)

        root = brentq(equation, -margin - c * (1 - b) - 1, -margin + c * b + 1, xtol=1e-13, rtol=1e-14)
        found = t * b + DUALS["logistic"].step(np.array([t * b]), np.array([t * margin]), np.array([y]), c)[0]
        assert t * found == pytest.approx(expit(root), abs=1e-14 * max(1.0, abs(margin)), rel=1e-9)


@every_loss
def test_the_conjugate_is_the_supremum(name: str) -> None:
    """l*(-alpha) = sup over m of -alpha m - l(m), by a fine grid whose ends it does not touch; infinite outside."""
    m = np.linspace(-60, 60, 240001)
    within = {"hinge": [0, 0.3, 1], "logistic": [0.01, 0.3, 0.5, 0.99], "squared-hinge": [0, 0.3, 5]}
    for y, b in product([0, 1] if name in CLASSIFIERS else [-2.5, 0.0, 0.7], within.get(name, [-3.0, 0.0, 2.2])):
        alpha = float((2 * y - 1) * b if name in CLASSIFIERS else b)
        loss = margin_loss(name, (2 * y - 1) * m) if name in CLASSIFIERS else (m - y) ** 2 / 2
        found = DUALS[name].conjugate(np.array([alpha]), np.array([y]))[0]
        assert found == pytest.approx((-alpha * m - loss).max(), abs=1e-6)  # the grid's step, squared
        assert found == pytest.approx(-gain(name, alpha, y), abs=1e-14)
    if name in CLASSIFIERS:
        dual, alpha, y = DUALS[name], np.array([-0.1, 0.1, -2.0, 1e30]), np.array([1, 0, 1, 0])
        assert np.isposinf(dual.conjugate(alpha, y)).all() and not dual.feasible(alpha, y).any()
        above = dual.conjugate(np.array([1.1, -1.1]), np.array([1, 0]))
        assert np.isposinf(above).all() == (name != "squared-hinge")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_towards_what_alpha_moves_is_minus_the_slope_of_the_loss(name: str) -> None:
    """By differences, away from kinks."""
    m, h = np.array([-3.0, -0.4, 0.0, 0.7, 2.5]), 1e-6
    for y in 0, 1:
        up, down = (margin_loss(name, (2 * y - 1) * (m + s)) for s in (h, -h))
        slope = (up - down) / (2 * h)
        np.testing.assert_allclose(DUALS[name].toward(m, np.full(5, y)), -slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("classes", ["int64", "uint8"])
def test_rounding_leaves_no_domain(name: str, classes: str) -> None:
    """In single precision, over and over, with scores and curvatures of all sizes."""
    rng, n, dual = np.random.default_rng(4), 4000, DUALS[name]
    y, alpha = rng.integers(0, 2, n).astype(classes), np.zeros(n, "f4")
    for _ in range(6):
        m = (rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 6, n)).astype("f4")
        c = (10.0 ** rng.uniform(-8, 8, n)).astype("f4")
        delta = dual.step(alpha, m, y, c)
        assert delta.dtype == np.float32
        alpha = alpha + delta
        assert np.isfinite(dual.conjugate(alpha, y)).all()
        np.testing.assert_array_equal(dual.feasible(alpha, y), alpha)
        shorter = alpha + dual.step(alpha, -m, y, c)
        assert np.isfinite(dual.conjugate(dual.feasible(shorter, y), y)).all()
        np.testing.assert_allclose(dual.feasible(shorter, y), shorter, rtol=1e-6, atol=1e-7)


# --- coordinate ascent -----------------------------------------------------------------------------------------------


@every_loss
def test_row_after_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of dense and sparse rows against a plain loop; wide sparse rows are not made dense, in single precision too."""
    rng, dual = np.random.default_rng(0), DUALS[name]
    X = rng.standard_normal((40, 12)) * (rng.random((40, 12)) < 0.4)
    X[7] = 0
    y = rng.integers(0, 2, 40) if name in CLASSIFIERS else rng.standard_normal(40)
    alpha, w = dual.feasible(0.3 * rng.standard_normal(40), y), rng.standard_normal(12)  # which is not that of alpha
    before, expected, moved = alpha.copy(), alpha.copy(), w.copy()
    for i, x in enumerate(X):
        step = dual.step(expected[i : i + 1], np.array([x @ moved]), y[i : i + 1], 0.3 * (x @ x))[0]
        expected[i] += step
        moved += 0.3 * step * x
    near = {"f8": {"rtol": 1e-11, "atol": 1e-12}, "f4": {"rtol": 1e-5, "atol": 1e-5}}  # a hundred roundings

    def compare(rows: Any, dtype: str) -> None:
        found = ascend(dual, rows.astype(dtype), y, alpha.astype(dtype), w.astype(dtype), 0.3)
        for one, other in zip(found, (expected, moved), strict=True):
            assert one.dtype == dtype
            np.testing.assert_allclose(one, other, **near[dtype])

    compare(X, "f8")
    compare(csr_matrix(X), "f8")
    monkeypatch.setattr(mpifed.maths.coordinates, "_WIDEST", 0)
    monkeypatch.setattr(csr_matrix, "toarray", None)
    for dtype in near:
        compare(csr_matrix(X), dtype)
    np.testing.assert_array_equal(alpha, before)


# --- least weights on the simplex ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["any", "twice", "opposite", "same slope", "no slope", "nearly alike"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_no_support_is_better(kind: str, scale: float) -> None:
    """Of planes that are alike, opposite, or none: every support is tried, with optimal weights of either sign."""
    rng = np.random.default_rng(7)
    for K in range(1, 7):
        V, b = rng.normal(size=(K, 4)), rng.normal(size=K)
        if kind == "twice":
            V[-1], b[-1] = V[0], b[0]
        elif kind == "opposite":
            V[-1] = -V[0]
        elif kind == "same slope":
            V[:] = V[0]
        elif kind == "no slope":
            V[:] = 0
        elif kind == "nearly alike":
            V, b = V[0] + 1e-6 * V, b[0] + 1e-6 * b
        Q, values = V @ V.T, []
        for at in (list(some) for size in range(1, K + 1) for some in combinations(range(K), size)):
            ones = np.ones((len(at), 1))
            system, beta = np.block([[Q[np.ix_(at, at)], ones], [ones.T, np.zeros((1, 1))]]), np.zeros(K)
            beta[at] = np.linalg.lstsq(system, np.append(b[at], 1.0), rcond=None)[0][:-1]
            if (beta >= -1e-12).all() and abs(beta.sum() - 1) < 1e-9:
                values.append(beta @ Q @ beta / 2 - b @ beta)
        beta = least_on_simplex(scale * Q, scale * b)
        assert (beta >= 0).all() and beta.sum() == pytest.approx(1, abs=1e-12)
        near = 1e-9 * (abs(min(values)) + np.abs(Q).max())
        assert beta @ Q @ beta / 2 - b @ beta == pytest.approx(min(values), abs=near)
