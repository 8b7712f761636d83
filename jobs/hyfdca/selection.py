"""Grey Relational Analysis, by which HyFDCA's authors (arXiv:2210.08106) chose hyper-parameters from a Pareto front.

Z. Wang and G. P. Rangaiah, *Application and Analysis of Methods for Selecting an Optimal Solution from the
Pareto-Optimal Front obtained by Multiobjective Optimization*, Ind. Eng. Chem. Res. 56(2), 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from mpifed.results.choose import NOISE, front, groups
from mpifed.results.compare import costs_of
from mpifed.results.frames import RunFrames

TIE = 0.01  # grades that differ by no more are the same, where the clock decides a criterion


def selected(frames: RunFrames, weights: Mapping[str, float]) -> dict[str, Any]:
    """The settings of the front whose grade is the largest, or among the same grades the first criterion the best.

    Parameters
    ----------
    weights : of the criteria, columns of the runs
    """
    costs = DataFrame({column: costs_of(frames, column) for column in weights}).replace(np.inf, np.nan).dropna()
    numbers = costs.apply(lambda column: groups(column, NOISE.get(str(column.name), 0.0)))
    anchors = DataFrame({column: costs[column].groupby(numbers[column]).transform("min") for column in costs})
    unbeaten = front(numbers)
    grades = Series(np.average(coefficients(anchors[unbeaten]), axis=1, weights=[*weights.values()]))
    grades.index = anchors.index[unbeaten]
    leading = numbers.loc[grades.index[grades >= grades.max() - (TIE if NOISE.keys() & weights.keys() else 1e-12)]]
    best = leading.sort_values(list(leading), kind="stable").index[0]
    settings: dict[str, Any] = frames.runs.set_index("setting")["swept"].loc[[best]].iloc[0]
    return settings


def coefficients(costs: DataFrame) -> DataFrame:
    """How close each value is to the ideal, the best of its column: (least D + largest D) / (D + largest D).

    D is the distance from the ideal, in parts of its column's range: 0 for the best and 1 for the worst.
    """
    distance = (costs - costs.min()) / (costs.max() - costs.min()).replace(0, np.inf)
    largest = distance.max(axis=None)
    return (distance.min(axis=None) + largest) / (distance + largest) if largest else distance + 1.0
