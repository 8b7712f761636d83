"""Surrogates against a direct minimization of the quadratic they stand for, and step sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize

from mpifed.maths.schedules import StepSize
from mpifed.maths.surrogate import Start, move, start_surrogate, track

TAU, PENALTY = 0.3, 0.02


class Model(NamedTuple):
    a: Any  # [2, 2]
    b: Any  # [3]


def model(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    return Model(rng.standard_normal((2, 2)), rng.standard_normal(3))


def flat(record: Model) -> Any:
    return np.concatenate([record.a.reshape(-1), record.b])


def quadratic(w: Any, gradient: Any, at: Any) -> float:
    """(6), and the penalty linearized at w_t."""
    return float(gradient @ (w - at) + TAU * ((w - at) ** 2).sum() + 2 * PENALTY * at @ w)


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize("rho_1", [0.4, 1.0])
def test_against_explicit_minimization(start: Start, rho_1: float) -> None:
    at, gamma = model(100), 0.35
    surrogate = start_surrogate(at, TAU, start)
    terms: list[tuple[float, Any, Any]] = []  # weight of each round's quadratic
    for t in range(1, 6):
        rho, gradient = StepSize(rho_1, 0.4).at(t), model(t)
        surrogate = track(surrogate, rho, gradient, at, TAU, PENALTY)
        terms = [(w * (1 - rho), g, v) for w, g, v in terms] + [(rho, flat(gradient), flat(at))]
        left = 1 - sum(w for w, _, _ in terms)  # what is still missing of 1, where rho_1 is less

        def tracked(w: Any, terms: Any = terms, left: float = left) -> float:
            extra = left * TAU * (w**2).sum() if start == "paper" else 0.0  # curvature tau from the first round on
            return sum(weight * quadratic(w, g, v) for weight, g, v in terms) + extra

        best = minimize(tracked, np.zeros(7), method="BFGS", options={"gtol": 1e-8}).x
        new = move(surrogate, gamma, at)
        np.testing.assert_allclose(flat(new), (1 - gamma) * flat(at) + gamma * best, rtol=0, atol=1e-6)
        np.testing.assert_allclose(flat(move(surrogate, 1.0, at)), best, rtol=0, atol=1e-6)
        assert float(surrogate.curvature) == pytest.approx(TAU * (1.0 if start == "paper" else 1 - left))
        at = new


def test_the_starts_are_alike_when_the_first_step_is_whole() -> None:
    at = model(0)
    for start in ("exact", "paper"):
        tracked = track(start_surrogate(at, TAU, start), 1.0, model(1), at, TAU, 0.0)
        np.testing.assert_allclose(flat(move(tracked, 1.0, at)), flat(at) - flat(model(1)) / (2 * TAU), rtol=1e-12)


def test_inputs_stand_and_dtypes_stay() -> None:
    at = Model(*(leaf.astype("f4") for leaf in model(0)))
    gradient = Model(*(leaf.astype("f4") for leaf in model(1)))
    before = flat(at).copy(), flat(gradient).copy()
    first = track(start_surrogate(at, TAU, "exact"), 0.5, gradient, at, TAU)
    linear = flat(first.linear).copy()
    second = track(first, 0.5, gradient, at, TAU)
    new = move(second, 0.5, at)
    np.testing.assert_array_equal(flat(first.linear), linear)
    np.testing.assert_array_equal(flat(at), before[0])
    np.testing.assert_array_equal(flat(gradient), before[1])
    assert {leaf.dtype for leaf in (*new, *second.linear)} == {np.dtype("f4")}


@pytest.mark.parametrize(
    ("scale", "decay", "t", "expected"), [(0.5, 0.0, 9, 0.5), (0.4, 0.5, 4, 0.2), (1.0, 1.0, 8, 0.125)]
)
def test_step_sizes(scale: float, decay: float, t: int, expected: float) -> None:
    assert StepSize(scale, decay).at(t) == pytest.approx(expected)


def test_step_sizes_do_not_decay_unless_told_to() -> None:
    assert StepSize(0.3).at(1) == StepSize(0.3).at(1000) == 0.3
    steps = [StepSize(0.9, 0.3).at(t) for t in range(1, 50)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 0.9
