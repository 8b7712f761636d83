"""Duals of losses: steps against brute-force maximization, conjugates against numerical suprema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import entr, expit

from mpifed.maths.duals import FLOATS, HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual

DUALS: dict[str, Any] = {
    "hinge": HingeDual(),
    "squared-hinge": SquaredHingeDual(),
    "logistic": LogisticDual(),
    "least-squares": LeastSquaresDual(),
}
CLASSIFIERS = ["hinge", "squared-hinge", "logistic"]
CURVATURES = [0.0, 1e-8, 1e-3, 0.1, 1.0, 7.0, 1e3, 1e8]
SCORES = [-50.0, -1.0, -0.9, 0.0, 0.3, 1.0, 1.0001, 4.0, 50.0]
every_loss = pytest.mark.parametrize("name", list(DUALS))


def loss(name: str, m: Any, y: float) -> Any:
    """Written out; y is a class, or a target."""
    t = 2 * y - 1
    return {
        "hinge": lambda: np.maximum(0, 1 - t * m),
        "squared-hinge": lambda: np.maximum(0, 1 - t * m) ** 2,
        "logistic": lambda: np.logaddexp(0, -t * m),
        "least-squares": lambda: (m - y) ** 2 / 2,
    }[name]()


def gain(name: str, alpha: Any, y: float) -> Any:
    """-l*(-alpha), of alpha in its domain."""
    b = (2 * y - 1) * alpha
    return {
        "hinge": lambda: b,
        "squared-hinge": lambda: b - b * b / 4,
        "logistic": lambda: entr(b) + entr(1 - b),
        "least-squares": lambda: alpha * y - alpha**2 / 2,
    }[name]()


def domain(name: str, y: float) -> tuple[float, float]:
    """Of alpha; a wide range where there is no end."""
    t = 2 * y - 1
    far = {"hinge": 1.0, "logistic": 1.0, "squared-hinge": 1e3}.get(name, 1e3)
    return (-1e3, 1e3) if name == "least-squares" else (min(0.0, t * far), max(0.0, t * far))


def labels(name: str) -> list[float]:
    return [0, 1] if name in CLASSIFIERS else [-2.5, 0.0, 0.7]


def grid(name: str, curvatures: list[float] = CURVATURES) -> tuple[Any, ...]:
    """(alpha, m, y, curvature), all combinations; alpha at both ends of its domain and within."""
    found = []
    for y in labels(name):
        low, high = domain(name, y)
        inner = [0.3, 0.5, 0.999, 1e-9] if name in ("hinge", "logistic") else [0.3, 2.0, 11.0, 1e-9]
        alphas = [0.0, *((2 * y - 1) * v if name in CLASSIFIERS else v for v in inner)]
        alphas += [low, high] if name in ("hinge", "logistic") else []
        found += [(a, m, y, c) for a in alphas for m in SCORES for c in curvatures]
    alpha, m, y, c = map(np.array, zip(*found, strict=True))
    return alpha, m, y.astype(np.int64) if name in CLASSIFIERS else y, c


def best(name: str, alpha: float, m: float, y: float, c: float) -> float:
    """The maximizer of gain(alpha + d) - m d - c/2 d^2 by golden section and parabolas, and the ends of the domain."""
    low, high = domain(name, y)

    def minus(a: float) -> float:
        return -(float(gain(name, a, y)) - m * (a - alpha) - c / 2 * (a - alpha) ** 2)

    found = minimize_scalar(minus, bounds=(low, high), method="bounded", options={"xatol": 1e-12, "maxiter": 500}).x
    return min([found, low, high, alpha], key=minus)


def value(name: str, a: Any, alpha: Any, m: Any, y: Any, c: Any) -> Any:
    return gain(name, a, y) - m * (a - alpha) - c / 2 * (a - alpha) ** 2


@every_loss
def test_a_step_is_as_good_as_brute_force(name: str) -> None:
    alpha, m, y, c = grid(name)
    reached = alpha + DUALS[name].step(alpha, m, y, c)
    found = value(name, reached, alpha, m, y, c)
    for i in range(0, len(alpha), 3):  # a third of them: each takes 0.5 ms
        expected = best(name, *(float(v[i]) for v in (alpha, m, y, c)))
        top = value(name, expected, *(float(v[i]) for v in (alpha, m, y, c)))
        assert found[i] >= top - 1e-9 * max(1, abs(top)), (alpha[i], m[i], y[i], c[i], reached[i], expected)


@every_loss
def test_a_single_step_is_a_step(name: str) -> None:
    alpha, m, y, c = grid(name)
    rows = zip(*(v.tolist() for v in (alpha, m, y, c)), strict=True)
    reached = np.array([DUALS[name].best(*row, FLOATS) for row in rows])
    np.testing.assert_allclose(reached - alpha, DUALS[name].step(alpha, m, y, c), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(DUALS[name].feasible(reached, y), reached)


@settings(max_examples=60)
@given(st.floats(0, 1), st.floats(-1e4, 1e4), st.floats(-10, 10), st.booleans())
def test_the_logistic_step_solves_its_equation(b: float, margin: float, power: float, y: bool) -> None:
    """logit(v) + t m + c (v - b) = 0, by bisection in the logit, to double precision."""
    c, t = 10.0**power, 2 * int(y) - 1

    def equation(q: float) -> float:
        return q + margin + c * (float(expit(q)) - b)

    root = brentq(equation, -margin - c * (1 - b) - 1, -margin + c * b + 1, xtol=1e-13, rtol=1e-14)
    alpha = np.array([t * b])
    found = alpha + DUALS["logistic"].step(alpha, np.array([t * margin]), np.array([int(y)]), c)
    assert t * found[0] == pytest.approx(expit(root), abs=1e-14 * max(1.0, abs(margin)), rel=1e-9)


@every_loss
def test_the_conjugate_is_the_supremum(name: str) -> None:
    """l*(-alpha) = sup over m of -alpha m - l(m), by a fine grid whose ends it does not touch."""
    m = np.linspace(-60, 60, 240001)
    for y in labels(name):
        values = {"hinge": [0, 0.3, 1], "logistic": [0.01, 0.3, 0.5, 0.99], "squared-hinge": [0, 0.3, 5]}
        own = [(2 * y - 1) * b for b in values[name]] if name in values else [-3.0, 0.0, 2.2]
        for alpha in own:
            found = DUALS[name].conjugate(np.array([float(alpha)]), np.array([y]))[0]
            assert found == pytest.approx((-alpha * m - loss(name, m, y)).max(), abs=1e-6)  # the grid's step, squared
            assert found == pytest.approx(-gain(name, alpha, y), abs=1e-14)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_outside_its_domain_the_conjugate_is_infinite(name: str) -> None:
    alpha, y = np.array([-0.1, 0.1, -2.0, 1e30]), np.array([1, 0, 1, 0])
    assert np.isposinf(DUALS[name].conjugate(alpha, y)).all()
    if name != "squared-hinge":
        assert np.isposinf(DUALS[name].conjugate(np.array([1.1, -1.1]), np.array([1, 0]))).all()
    inside = DUALS[name].feasible(alpha, y)
    np.testing.assert_array_equal(inside, 0)
    assert np.isfinite(DUALS[name].conjugate(inside, y)).all()


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("classes", ["int64", "uint8"])
def test_rounding_leaves_no_domain(name: str, classes: str) -> None:
    """In single precision, over and over, with scores and curvatures of all sizes."""
    rng, n, dual = np.random.default_rng(4), 4000, DUALS[name]
    y = rng.integers(0, 2, n).astype(classes)
    alpha = np.zeros(n, "f4")
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
