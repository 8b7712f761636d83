"""Measures of predictions: those of scikit-learn, on random rows and where little is defined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sklearn

from mpifed.maths import metrics


def defined(value: Callable[[], float]) -> float:
    """A measure by scikit-learn; NaN where it raises an error or warns that it is not defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", sklearn_undefined())
        try:
            return float(value())
        except (ValueError, sklearn_undefined()):
            return float("nan")


def sklearn_undefined() -> type[Warning]:
    from sklearn.exceptions import UndefinedMetricWarning

    return UndefinedMetricWarning


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
    y, z = np.array(y), np.array(z)
    squares = ((y - z) ** 2).sum(axis=0)
    expected = np.mean([np.sqrt(sklearn.mean_squared_error(*pair)) for pair in zip(y.T, z.T, strict=True)])
    assert metrics.rmse(squares, len(y)) == pytest.approx(expected, rel=1e-13)
    r2 = defined(lambda: sklearn.r2_score(y, z))
    assert metrics.r2(squares, y) == pytest.approx(r2, rel=1e-12, nan_ok=True)


def test_summary_of_clients() -> None:
    """Mean, deviation of all n, and the ceil(n / 10) worst, at which end depends on what is better."""
    values = np.arange(21.0)[::-1]
    assert metrics.summary(values, "more") == {"mean": 10.0, "std": np.sqrt(110 / 3), "worst_tenth": 1.0}
    assert metrics.summary(values, "less")["worst_tenth"] == 19.0
    assert metrics.summary(np.array([0.5]), "more") == {"mean": 0.5, "std": 0.0, "worst_tenth": 0.5}
    assert np.isnan([*metrics.summary(np.array([1.0, np.nan, 2.0]), "more").values()]).all()
    assert np.isnan(metrics.summary(np.array([1.0, np.nan, 2.0]), "less")["worst_tenth"])
