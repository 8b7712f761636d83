"""The recommended setting of a sweep by several criteria at once: its Pareto front, and Grey Relational Analysis.

Z. Wang and G. P. Rangaiah, *Application and Analysis of Methods for Selecting an Optimal Solution from the
Pareto-Optimal Front obtained by Multiobjective Optimization*, Ind. Eng. Chem. Res. 56(2), 2017, with which
the authors of HyFDCA (arXiv:2210.08106) chose hyper-parameters. It needs no weights of the criteria.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.files.columns import CRITERIA, of_kind
from mpifed.results.best import at_edges, described, has_a_grid, warnings_of
from mpifed.results.criteria import (
    Criterion,
    Floats,
    columns_of,
    criteria_of,
    criterion_of,
    grouped,
    no_column,
    objectives_of,
    order_of,
    to_be_maximized,
)
from mpifed.results.objectives import check_objectives
from mpifed.results.points import FAILED, Folders, Ran, Setting, named, read_settings, swept

_GRADES = 0.01  # grades of values with tolerances that differ by no more are ties


def pareto_front(costs: Floats | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which alternatives are on the Pareto front: no other dominates them.

    Parameters
    ----------
    costs : [n, m] finite, or numbers of groups, of n alternatives by m criteria; less is better

    Returns
    -------
    [n] True where no other alternative is at least as good by every criterion and better by at least one. Of equal
    alternatives all are on the front.
    """
    dominated = [
        np.any(np.all(costs <= alternative, axis=1) & np.any(costs < alternative, axis=1)) for alternative in costs
    ]
    return ~np.array(dominated, dtype=bool)


def relational_grades(
    costs: Floats, weights: Sequence[float] | Floats | None = None, distinguishing: float = 1.0
) -> tuple[Floats, Floats]:
    """How close each alternative is to the ideal, which is the best by every criterion.

    A criterion is normalized to F = (worst - cost) / (worst - best), which is 1 for its best alternative; so the ideal
    has F = 1 throughout, and D = 1 - F is the distance of an alternative from it. With D's least and largest entries
    over all alternatives and criteria, the grey relational coefficient is

        (least D + z * largest D) / (D + z * largest D)

    and the grade of an alternative the mean of its coefficients. Wang and Rangaiah have z = 1 and no weights;
    J. L. Deng (*Introduction to Grey System Theory*, 1989), whose method it is, has z = 0.5 as a rule.

    Parameters
    ----------
    costs : [n, m] finite, of n alternatives by m criteria; less is better. Where a criterion is the same
        for all alternatives, D is 0 for each.
    weights : [m] positive, of the criteria in the mean; equal when absent
    distinguishing : z > 0

    Returns
    -------
    coefficients [n, m] and grades [n], 1 for the ideal and less for all others
    """
    worst, best = costs.max(axis=0), costs.min(axis=0)
    distance = np.divide(costs - best, worst - best, out=np.zeros_like(costs), where=worst > best)
    scale = distinguishing * distance.max()
    coefficients = (distance.min() + scale) / (distance + scale) if scale else np.ones_like(distance)
    return coefficients, np.average(coefficients, axis=1, weights=weights)


class Graded(NamedTuple):
    """A setting on the Pareto front."""

    setting: Setting
    values: dict[str, float]  # mean over its finished points, by criterion
    groups: tuple[int, ...]  # of its values, among all that were compared, by criterion
    coefficients: dict[str, float]  # grey relational, of the best values of the groups
    grade: float


class Recommendation(NamedTuple):
    """The result of Grey Relational Analysis for a sweep."""

    criteria: dict[str, Criterion]
    front: list[Graded]  # the recommended one first, then by grade
    beaten: list[Setting]  # dominated by a setting on the front
    left_out: list[tuple[Ran, str]]  # points of settings that could not be compared, and why
    grid: bool  # whether the settings are those of a sweep

    @property
    def best(self) -> Setting:
        return self.front[0].setting

    @property
    def equal(self) -> list[Setting]:
        """Other settings that are within the tolerance of the recommended one by every criterion."""
        return [graded.setting for graded in self.front[1:] if graded.groups == self.front[0].groups]

    @property
    def ties(self) -> list[Setting]:
        """Other settings that differ from the recommended one, and have its grade."""
        most, within = max(graded.grade for graded in self.front), _within(self.criteria)
        return [
            graded.setting
            for graded in self.front[1:]
            if graded.groups != self.front[0].groups and graded.grade >= most - within
        ]

    @property
    def edges(self) -> list[str]:
        """A sentence for each axis of a sweep at whose edge it lies."""
        if not self.grid:
            return []
        compared = [self.best.settings, *(graded.setting.settings for graded in self.front[1:])]
        return list(at_edges(self.best.settings, compared + [setting.settings for setting in self.beaten]))


def _within(criteria: Mapping[str, Criterion]) -> float:
    """By how much grades of a tie may differ: those of exact values only by the rounding of their sums."""
    return _GRADES if any(criterion.tolerance for criterion in criteria.values()) else 1e-12


def recommend(where: Folders, by: Mapping[str, Criterion] | None = None) -> Recommendation:
    """The setting of a sweep whose grey relational grade is the largest, of those that no other dominates.

    Numbers are means over seeds. Values within the tolerance of each other are first made one, the best of their group
    (see `mpifed.results.criteria`). Of equal grades the setting in the better groups is recommended, the first
    criterion first; of those in the same groups, the first by label and settings.

    A setting is left out, and listed with the reason, where one of its points failed numerically, has no finite value
    of a criterion, or breaks a limit of its job (unless `feasibility` is a criterion), and where none of its points has
    finished.

    Parameters
    ----------
    where : folder of a sweep, or those of runs
    by : weight and tolerance of each criterion, by column. What is called an accuracy is best where it is largest, all
        else where it is least. When absent, equal weights and default tolerances for objective, test accuracy,
        simulated or else training seconds, and bytes up, as far as all settings have them

    Raises
    ------
    UsageError
        when the folder is no sweep, nothing has finished, a column is not there, or no setting can be compared.
    """
    settings = read_settings(where)
    there = columns_of(settings)
    criteria = dict(by) if by else {name: criterion_of(name) for name in _default_criteria(settings)}
    unknown = [name for name in criteria if name not in there]
    if unknown or not criteria:
        raise no_column(named(where), ", ".join(unknown) or "objective", there)
    check_objectives(named(where), objectives_of(settings), criteria)
    reasons = [_why_not(setting, criteria) for setting in settings]
    compared = [setting for setting, why in zip(settings, reasons, strict=True) if not why]
    left_out = [(point, why) for setting, why in zip(settings, reasons, strict=True) if why for point in setting.points]
    if not compared:
        names, why = ", ".join(criteria), "; ".join(dict.fromkeys(reasons))
        raise UsageError(f"{named(where)}: none of its {len(settings)} settings can be compared by {names}: {why}")
    values = np.array([[setting.means()[name].mean for name in criteria] for setting in compared])
    signs = np.array([-1.0 if to_be_maximized(name) else 1.0 for name in criteria])
    pairs = [grouped(costs, how) for costs, how in zip((values * signs).T, criteria.values(), strict=True)]
    groups, anchors = (np.stack(parts, axis=1) for parts in zip(*pairs, strict=True))
    unbeaten = pareto_front(groups)
    coefficients, grades = relational_grades(anchors[unbeaten], [criterion.weight for criterion in criteria.values()])
    on_front = [setting for setting, inside in zip(compared, unbeaten, strict=True) if inside]
    front = [
        Graded(
            setting,
            dict(zip(criteria, map(float, row), strict=True)),
            tuple(map(int, numbers)),
            dict(zip(criteria, map(float, parts), strict=True)),
            float(grade),
        )
        for setting, row, numbers, parts, grade in zip(
            on_front, values[unbeaten], groups[unbeaten], coefficients, grades, strict=True
        )
    ]
    least = max(graded.grade for graded in front) - _within(criteria)
    return Recommendation(
        criteria,
        sorted(front, key=lambda graded: _rank(graded, least)),
        [setting for setting, inside in zip(compared, unbeaten, strict=True) if not inside],
        left_out,
        has_a_grid(where),
    )


def _rank(graded: Graded, least: float) -> tuple[object, ...]:
    """The place of a setting on the front: those with the grade of a tie first, then by grade."""
    grade = 0.0 if graded.grade >= least else -round(graded.grade, 12)
    return graded.grade < least, grade, graded.groups, order_of(graded.setting)


def _default_criteria(settings: Sequence[Setting]) -> list[str]:
    means = [setting.means() for setting in settings if setting.counted]
    everywhere = [name for name in (means[0] if means else ()) if all(name in columns for columns in means)]
    return [name for kind in CRITERIA if (name := of_kind(kind, everywhere)) is not None]


def _why_not(setting: Setting, criteria: Collection[str]) -> str:
    """Why a setting cannot be compared; empty where it can."""
    if any(point.code == FAILED for point in setting.points):
        return f"failed numerically (exit {FAILED})"
    if not setting.counted:
        return "not finished"
    numbers = [point.numbers() for point in setting.counted]
    for name in criteria:
        if not all(math.isfinite(point.get(name, math.nan)) for point in numbers):
            return f"without a finite {name}"
    if "feasibility" not in criteria and any(point.meets_limits() is False for point in setting.counted):
        return "breaks a limit"
    return ""


def select(where: str | os.PathLike[str] | Sequence[Path], by: str | None = None) -> Table:
    """The recommendation of `recommend`, as `mpifed compare SWEEP --select pareto --json` prints it; `by` as there.

    Returns
    -------
    dict
        `settings`, `points`, `mean`, `edges` and `warnings`, as for `--select best`; `grade`; `criteria`,
        by column; `equal`, settings within the tolerance by every criterion, and `ties`, others of the same grade;
        `front`, with values, coefficients and grades; `beaten`, all other settings that were compared; `left_out`, the
        reason, by point.
    """
    folders = Path(where) if isinstance(where, (str, os.PathLike)) else where
    recommendation = recommend(folders, criteria_of(by) if by else None)
    return {
        **described(recommendation.best),
        "mean": {name: column.mean for name, column in recommendation.best.means().items()},
        "edges": recommendation.edges,
        "warnings": [*swept(folders), *warnings_of(recommendation.best)],
        "grade": recommendation.front[0].grade,
        "criteria": {
            name: {
                "best": "largest" if to_be_maximized(name) else "least",
                "weight": criterion.weight,
                "tolerance": str(criterion),
            }
            for name, criterion in recommendation.criteria.items()
        },
        "equal": [described(setting) for setting in recommendation.equal],
        "ties": [described(setting) for setting in recommendation.ties],
        "front": [
            {
                **described(graded.setting),
                "values": graded.values,
                "coefficients": graded.coefficients,
                "grade": graded.grade,
            }
            for graded in recommendation.front
        ],
        "beaten": [described(setting) for setting in recommendation.beaten],
        "left_out": {point.name: why for point, why in recommendation.left_out},
    }
