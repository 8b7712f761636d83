"""Paired comparison of settings over equal seeds: mean difference, its interval, and a p value.

Runs of one seed have the same data, initial model and draws of clients, so that differences by seed vary less than the
runs themselves. The test is the paired t test: interval and p value belong together, and it can tell something from 3
seeds on. Wilcoxon's signed-rank test cannot: with n seeds its p is at least 2^(1 - n), above 0.05 for n < 6. Over
several comparisons p values are corrected by S. Holm (Scand. J. Statist. 6, 1979), whatever their dependence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.results.points import Setting

LEAST = 3  # seeds: with 2 an interval is 13 times as wide as the standard deviation of differences
LEVEL = 0.95
_ROUNDING = 1e-12  # relative: differences by seed that are the same but for rounding


class Difference(NamedTuple):
    """A setting less the baseline, over the seeds that both have."""

    setting: int  # its number
    seeds: list[int]
    left_out: list[int]  # seeds that not both have finished with a finite number
    mean: float | None  # None with fewer than `LEAST` seeds, as all below
    low: float | None  # of the interval; the mean itself where all seeds have the same difference
    high: float | None
    p: float | None  # two-sided, corrected; None too where all seeds have the same difference


def by_seed(setting: Setting, column: str) -> dict[int, float]:
    """The numbers of the finished runs of a setting; of several of one seed, their mean."""
    values: dict[int, list[float]] = {}
    for point in setting.counted:
        value = point.numbers().get(column, math.nan)
        if point.seed is not None and math.isfinite(value):
            values.setdefault(point.seed, []).append(value)
    return {seed: statistics.fmean(several) for seed, several in values.items()}


def differences(settings: Sequence[Setting], column: str, against: int) -> list[Difference]:
    """Each setting less the setting `against`, which is left out; p values are corrected for as many as have one."""
    values = [by_seed(setting, column) for setting in settings]
    seeds = [{point.seed for point in setting.points if point.seed is not None} for setting in settings]
    compared = [
        _difference(number, own, values[against], seeds[number] | seeds[against])
        for number, own in enumerate(values)
        if number != against
    ]
    tested = [place for place, difference in enumerate(compared) if difference.p is not None]
    for place, p in zip(tested, holm([compared[place].p or 0.0 for place in tested]), strict=True):
        compared[place] = compared[place]._replace(p=p)
    return compared


def _difference(number: int, own: dict[int, float], other: dict[int, float], every: set[int]) -> Difference:
    shared = sorted(own.keys() & other.keys())
    left_out = sorted(every - set(shared))
    if len(shared) < LEAST:
        return Difference(number, shared, left_out, None, None, None, None)
    pairs = np.array([[own[seed], other[seed]] for seed in shared])
    each = pairs[:, 0] - pairs[:, 1]
    mean = statistics.fmean(each)
    if np.ptp(each) <= _ROUNDING * np.abs(pairs).max():
        return Difference(number, shared, left_out, mean, mean, mean, None)
    from scipy.stats import ttest_rel

    result = ttest_rel(pairs[:, 0], pairs[:, 1])
    interval = result.confidence_interval(LEVEL)
    return Difference(number, shared, left_out, mean, float(interval.low), float(interval.high), float(result.pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the k-th least of m times m - k + 1, at most 1, and none below that of a lesser one."""
    corrected, least, count = [0.0] * len(p_values), 0.0, len(p_values)
    for rank, place in enumerate(sorted(range(count), key=p_values.__getitem__)):
        least = max(least, min(1.0, (count - rank) * p_values[place]))
        corrected[place] = least
    return corrected
