"""Statistics of columns and targets that decide whether a model needs an intercept, or has two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from mpifed.core.record import Array
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.block import Piece, of_vectors
from mpifed.data.scaling import extremes

_MOST = 100  # columns that are stored


def statistics(parts: Iterable[Piece], y: Array, regression: bool) -> Table:
    """Statistics of the training rows, as stored in `federation.json`.

    Parameters
    ----------
    parts : scaled rows [b, p], dense or CSR; read until no column is constant
    y : [s] targets or labels
    regression : whether `y` are real targets

    Returns
    -------
    `constant_columns`: columns with the same value in all rows, not zero; for regression also `target_mean` and
    `target_deviation`, the standard deviation.
    """
    low, high = np.array(np.inf), np.array(-np.inf)
    constant: Array = np.zeros(0)
    for X in parts:
        low, high = extremes(X, low, high)
        constant = np.flatnonzero((low == high) & (low != 0))
        if not len(constant):
            break
    measured: Table = {"constant_columns": constant[:_MOST].tolist()}
    if regression:
        values = of_vectors(y)
        measured |= {"target_mean": float(values.mean(dtype="f8")), "target_deviation": float(values.std(dtype="f8"))}
    return measured


def intercept_warnings(measured: ReadOnlyTable, bias: bool, names: Sequence[str] | None = None) -> list[str]:
    """Warnings for a model with or without intercept on data with these statistics.

    Parameters
    ----------
    measured : from `statistics`
    bias : whether the model has an intercept
    names : [p] of the columns
    """
    columns, deviation = measured.get("constant_columns", ()), measured.get("target_deviation", 0.0)
    mean = measured.get("target_mean", 0.0)
    if bias and columns:
        shown = ", ".join(repr(names[at]) if names else str(at) for at in columns[:5])
        return [
            f"column{'s'[: len(columns) > 1]} {shown}{', ...' if len(columns) > 5 else ''}: the same value in all "
            "rows, beside an intercept; the penalty decides how they share the constant: leave it out of the data, or "
            "set [model] bias = false"
        ]
    if not bias and not columns and abs(mean) > deviation:
        return [
            f"targets have mean {mean:.6g} and standard deviation {deviation:.6g}, and the model "
            "has no intercept: the targets are mostly a constant; set [model] bias = true where the algorithm has "
            "intercepts, or subtract the mean, or add a column of ones"
        ]
    return []


def target_scale(measured: ReadOnlyTable) -> float:
    """The power of two between half of the root mean square of the targets and all of it; at least 1."""
    size = float(np.hypot(measured.get("target_mean", 0.0), measured.get("target_deviation", 0.0)))
    return float(2.0 ** max(0, int(np.ceil(np.log2(size / 2))))) if size > 0 else 1.0
