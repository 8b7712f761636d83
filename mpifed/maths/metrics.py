"""Measures of predictions on test rows, by the definitions of scikit-learn, which need not be installed.

Where scikit-learn raises an error or warns that a measure is not defined, it is NaN here.
"""

from __future__ import annotations

import numpy as np

from mpifed.core.record import Array


def rmse(squares: Array, rows: int | Array) -> Array:
    """[...] `root_mean_squared_error`: the mean over targets of the root of the mean squared error.

    Parameters
    ----------
    squares : [..., t] sums over rows of squared errors
    rows : how many, or [..., 1]
    """
    mean: Array = np.sqrt(squares / rows).mean(axis=-1)
    return mean


def r2(squares: Array, y: Array) -> float:
    """`r2_score`: the mean over targets of 1 - squared errors / squared deviations from the targets' mean.

    A target that is constant counts 1 where all its errors are 0, else 0. NaN for fewer than two rows.

    Parameters
    ----------
    squares : [t] sums over rows of squared errors
    y : [s, t] targets
    """
    deviations = ((y - y.mean(axis=0)) ** 2).sum(axis=0)
    if len(y) < 2 or np.isnan(squares).any():
        return float("nan")
    constant = deviations == 0
    each = 1 - np.where(constant, squares != 0, squares) / np.where(constant, 1.0, deviations)
    return float(each.mean())


def label_counts(predicted: Array, y: Array) -> Array:
    """Sums over rows, of which measures of several labels are made: right labels, rows that are right, and for F1.

    Parameters
    ----------
    predicted, y : [..., s, L] 0 or 1

    Returns
    -------
    [..., 4] labels that are right; rows all of whose labels are; labels that are rightly 1; that are 1, of both
    """
    right = predicted == y
    each = right.sum(axis=-1), right.all(axis=-1), (right & (y == 1)).sum(axis=-1), (predicted + y).sum(axis=-1)
    return np.stack([counts.sum(axis=-1) for counts in each], axis=-1)


def micro_f1(counts: Array) -> float:
    """`f1_score` with average="micro", of the sums of `label_counts` [4]; 0 where no label is 1."""
    return float(2 * counts[2] / counts[3]) if counts[3] else 0.0


def summary(values: Array, better: str) -> dict[str, float]:
    """Mean, standard deviation and mean of the worst tenth of values [n]; NaN is worse than any number.

    The standard deviation is that of the n values, divided by n; the worst tenth are ceil(n / 10) of them, the lowest
    where `better` is "more", the largest where it is "less".
    """
    tenth = -(-len(values) // 10)
    ascending = np.sort(values)  # NaN last
    worst = ascending[:tenth] if better == "more" and not np.isnan(ascending[-1]) else ascending[-tenth:]
    return {"mean": float(values.mean()), "std": float(values.std()), "worst_tenth": float(worst.mean())}
