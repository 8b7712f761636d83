"""Measures of predictions, which are scikit-learn's, and step sizes with the conditions of convergence theorems."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn
from sklearn.exceptions import UndefinedMetricWarning

from mpifed import CosineDecay, PowerDecay, StepDecay, StepSize
from mpifed.maths import metrics
from mpifed.maths.schedules import unmet


def random_targets(seed: int) -> tuple[Any, Any]:
    rng, targets = np.random.default_rng(seed), 1 + 2 * (seed % 2)
    y, z = rng.normal(size=(2, 30, targets)) * rng.uniform(0.1, 100, targets)
    return y, z


# constant and right, constant and wrong, one row, one of two constant
CONSTANT = [
    ([[2.0], [2.0]], [[2.0], [2.0]]), ([[2.0], [2.0]], [[2.0], [3.0]]), ([[1.0]], [[1.0]]),
    ([[2.0, 1.0], [2.0, 3.0]], [[2.0, 1.5], [2.0, 2.0]]),
]  # fmt: skip


@pytest.mark.parametrize(("y", "z"), [*CONSTANT, *map(random_targets, range(10))])
def test_rmse_and_r2(y: Any, z: Any) -> None:
    """NaN where scikit-learn warns that r2 is not defined."""
    y, z = np.array(y), np.array(z)
    squares = ((y - z) ** 2).sum(axis=0)
    expected = np.mean([np.sqrt(sklearn.mean_squared_error(*pair)) for pair in zip(y.T, z.T, strict=True)])
    assert metrics.rmse(squares, len(y)) == pytest.approx(expected, rel=1e-13)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        assert metrics.r2(squares, y) == pytest.approx(sklearn.r2_score(y, z), rel=1e-12, nan_ok=True)


def test_summary_of_clients() -> None:
    """Mean, deviation of all n, and the ceil(n / 10) worst, at which end depends on what is better."""
    values = np.arange(21.0)[::-1]
    assert metrics.summary(values, "more") == {"mean": 10.0, "std": np.sqrt(110 / 3), "worst_tenth": 1.0}
    assert metrics.summary(values, "less")["worst_tenth"] == 19.0
    assert metrics.summary(np.array([0.5]), "more") == {"mean": 0.5, "std": 0.0, "worst_tenth": 0.5}
    for better in "more", "less":
        assert np.isnan([*metrics.summary(np.array([1.0, np.nan, 2.0]), better).values()]).all()


@pytest.mark.parametrize(("rate", "expected"), [
    (StepSize(0.5), [0.5] * 3),
    (StepSize(0.4, 1.0), [0.4, 0.2, 0.4 / 3]),
    (PowerDecay(0.6, exponent=1.0, offset=1.0, warmup=2), [0.15, 0.2, 0.15]),
    (StepDecay(0.8, 0.5, every=3), [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]),
    # PyTorch's CosineAnnealingLR after t - 1 steps, T_max = 4, eta_min = 0.1
    (CosineDecay(1.1, rounds=5, final=0.1), [1.1, 0.6 + 0.5**1.5, 0.6, 0.6 - 0.5**1.5, 0.1, 0.1]),
    (CosineDecay(1.0, rounds=1, final=0.25), [0.25] * 3),
    (CosineDecay(1.0, rounds=2, final=2.0), [1.0, 2.0, 2.0]),
])  # fmt: skip
def test_rates(rate: Any, expected: list[float]) -> None:
    assert [rate.at(t) for t in range(1, len(expected) + 1)] == pytest.approx(expected)


ALL = [
    "rho -> 0", "sum rho = infinity", "sum rho^2 < infinity", "gamma -> 0", "sum gamma = infinity",
    "sum gamma^2 < infinity", "gamma / rho -> 0",
]  # fmt: skip


@pytest.mark.parametrize(("alpha", "beta", "missing"), [
    (0.6, 0.8, []), (0.51, 1.0, []), (0.9, 1.0, []),
    (0.3, 0.35, [2, 5]),  # the paper's
    (0.5, 0.8, [2]),  # sum 1/t
    (0.5, 0.5, [2, 5, 6]), (0.8, 0.6, [6]), (0.7, 0.7, [6]), (0.6, 1.1, [4]), (1.1, 1.2, [1, 4]),
    (0.0, 0.0, [0, 2, 3, 5, 6]), (0.0, 0.7, [0, 2]),
])  # fmt: skip
def test_conditions(alpha: float, beta: float, missing: list[int]) -> None:
    assert unmet(StepSize(0.9, alpha), StepSize(0.4, beta)) == [ALL[i] for i in missing]
