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


def macro_f1(y: Any, predicted: Any, classes: int) -> float:
    parts = (y[y == predicted], predicted, y)
    return metrics.macro_f1(*(np.bincount(labels, minlength=classes) for labels in parts))


def random_labels(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    classes, rows = int(rng.integers(2, 9)), int(rng.integers(1, 40))
    return rng.integers(0, classes, rows), rng.integers(0, max(1, classes - seed % 3), rows)


# one class alone, all wrong, one row, never predicted, a class that is absent
FEW = [([0, 0], [0, 0]), ([0, 0], [1, 1]), ([2], [0]), ([0, 1, 1], [1, 1, 1]), ([0, 2, 2], [2, 2, 0])]


@pytest.mark.parametrize(("y", "predicted"), [*FEW, *map(random_labels, range(20))])
def test_macro_f1(y: Any, predicted: Any) -> None:
    expected = sklearn.f1_score(y, predicted, average="macro", zero_division=0)
    assert macro_f1(np.array(y), np.array(predicted), 9) == pytest.approx(expected, rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_auc(seed: int, classes: int, ties: bool) -> None:
    """Of one score, of two, of the softmax of several; with ties of scores."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-2, 3, (60, classes)).astype("f4") if ties else rng.normal(size=(60, classes)).astype("f4")
    y = np.concatenate([np.arange(max(classes, 2)), rng.integers(0, max(classes, 2), 60 - max(classes, 2))])
    expected = expected_auc(y, scores.astype(float))
    assert metrics.auc(y, scores) == pytest.approx(expected, rel=1e-12)
    assert 0 < expected < 1


def expected_auc(y: Any, z: Any) -> float:
    if z.shape[1] == 1:
        return float(sklearn.roc_auc_score(y, z[:, 0]))
    if z.shape[1] == 2:
        return float(sklearn.roc_auc_score(y, z[:, 1] - z[:, 0]))
    largest = z.max(axis=1, keepdims=True)
    odds = np.exp(z - largest)
    share = odds / odds.sum(axis=1, keepdims=True)
    return float(sklearn.roc_auc_score(y, share, multi_class="ovr", average="macro"))


@pytest.mark.parametrize(
    ("y", "scores"),
    [([1, 1, 1], [[0.1], [0.2], [0.3]]), ([0, 0], [[1.0, 2.0], [2.0, 1.0]]), ([0, 1, 1, 0], [[1.0, 2.0, 3.0]] * 4)],
    ids=["one-score", "two-scores", "three-scores"],
)
def test_auc_of_a_class_without_rows_is_nan(y: list[int], scores: list[list[float]]) -> None:
    z = np.array(scores)
    assert np.isnan(defined(lambda: expected_auc(np.array(y), z)))
    assert np.isnan(metrics.auc(np.array(y), z))


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
