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
from mpifed.results.best import at_edges, check_objectives, columns_of, has_a_grid, to_be_maximized
from mpifed.results.points import FAILED, Folders, Ran, Setting, named, read_settings, swept

Floats = NDArray[np.float64]


def pareto_front(costs: Floats) -> NDArray[np.bool_]:
    """Which alternatives are on the Pareto front: no other dominates them.

    Parameters
    ----------
    costs : [n, m] finite, of n alternatives by m criteria; less is better

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
    coefficients: dict[str, float]  # grey relational
    grade: float


def _rounded(graded: Graded) -> float:
    """The grade, rounded so that the order of additions cannot break a tie."""
    return round(graded.grade, 12)


class Recommendation(NamedTuple):
    """The result of Grey Relational Analysis for a sweep."""

    criteria: dict[str, float]  # the weight of each, by column
    front: list[Graded]  # the recommended one first, then by grade
    beaten: list[Setting]  # dominated by a setting on the front
    left_out: list[tuple[Ran, str]]  # points of settings that could not be compared, and why
    grid: bool  # whether the settings are those of a sweep

    @property
    def best(self) -> Setting:
        return self.front[0].setting

    @property
    def ties(self) -> int:
        """How many other settings have the recommended one's grade."""
        return sum(_rounded(graded) == _rounded(self.front[0]) for graded in self.front[1:])

    @property
    def edges(self) -> list[str]:
        """A sentence for each axis of a sweep at whose edge it lies."""
        if not self.grid:
            return []
        compared = [self.best.settings, *(graded.setting.settings for graded in self.front[1:])]
        return list(at_edges(self.best.settings, compared + [setting.settings for setting in self.beaten]))


def criteria_of(text: str) -> dict[str, float]:
    """The weight of each criterion in `objective,elapsed_s:2`, by column; 1 where none is given.

    Raises UsageError when a weight is no positive number, or a column is named twice.
    """
    criteria: dict[str, float] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        try:
            number = float(weight) if colon else 1.0
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise UsageError(f"--by {text}: {weight} is no weight; give a positive number, as in objective:2,up_bytes")
        if name in criteria:
            raise UsageError(f"--by {text}: {name} is given twice; name each criterion once")
        criteria[name] = number
    return criteria


def recommend(where: Folders, by: Mapping[str, float] | None = None) -> Recommendation:
    """The setting of a sweep whose grey relational grade is the largest, of those that no other dominates.

    Numbers are means over seeds. A setting is left out, and listed with the reason, where one of its points failed
    numerically, has no finite value of a criterion, or breaks a limit of its job (unless `feasibility` is a criterion),
    and where none of its points has finished.

    Parameters
    ----------
    where : folder of a sweep, or those of runs
    by : the weight of each criterion, by column. What is called an accuracy is best where it is largest, all else where
        it is least. When absent, equal weights for objective, test accuracy, simulated or else training seconds, and
        bytes up, as far as all settings have them

    Raises
    ------
    UsageError
        when the folder is no sweep, nothing has finished, a column is not there, or no setting can be compared.
    """
    settings = read_settings(where)
    there = columns_of(settings)
    criteria = dict(by) if by else dict.fromkeys(_default_criteria(settings), 1.0)
    unknown = [name for name in criteria if name not in there]
    if unknown or not criteria:
        raise UsageError(f"{named(where)}: no column {', '.join(unknown) or 'objective'}; there are {', '.join(there)}")
    check_objectives(where, settings, criteria)
    reasons = [_why_not(setting, criteria) for setting in settings]
    compared = [setting for setting, why in zip(settings, reasons, strict=True) if not why]
    left_out = [(point, why) for setting, why in zip(settings, reasons, strict=True) if why for point in setting.points]
    if not compared:
        names, why = ", ".join(criteria), "; ".join(dict.fromkeys(reasons))
        raise UsageError(f"{named(where)}: none of its {len(settings)} settings can be compared by {names}: {why}")
    values = np.array([[setting.means()[name].mean for name in criteria] for setting in compared])
    signs = np.array([-1.0 if to_be_maximized(name) else 1.0 for name in criteria])
    unbeaten = pareto_front(values * signs)
    coefficients, grades = relational_grades((values * signs)[unbeaten], list(criteria.values()))
    on_front = [setting for setting, inside in zip(compared, unbeaten, strict=True) if inside]
    front = [
        Graded(
            setting,
            dict(zip(criteria, map(float, row), strict=True)),
            dict(zip(criteria, map(float, parts), strict=True)),
            float(grade),
        )
        for setting, row, parts, grade in zip(on_front, values[unbeaten], coefficients, grades, strict=True)
    ]
    return Recommendation(
        criteria,
        sorted(front, key=_rounded, reverse=True),  # stable: of equal grades the first in the order of the sweep
        [setting for setting, inside in zip(compared, unbeaten, strict=True) if not inside],
        left_out,
        has_a_grid(where),
    )


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


def select(where: str | os.PathLike[str] | Sequence[Path], by: Mapping[str, float] | None = None) -> Table:
    """The recommendation of `recommend`, as `mpifed compare SWEEP --select pareto --json` prints it.

    Returns
    -------
    dict
        `settings`, `points`, `mean`, `edges` and `warnings`, as for `--select best`; `grade`; `criteria`,
        by column; `front`, with values, coefficients and grades; `beaten`, all other settings that were compared;
        `left_out`, the reason, by point.
    """
    folders = Path(where) if isinstance(where, (str, os.PathLike)) else where
    recommendation = recommend(folders, by)
    return {
        **_described(recommendation.best),
        "mean": {name: column.mean for name, column in recommendation.best.means().items()},
        "edges": recommendation.edges,
        "warnings": swept(folders),
        "grade": recommendation.front[0].grade,
        "criteria": {
            name: {"best": "largest" if to_be_maximized(name) else "least", "weight": weight}
            for name, weight in recommendation.criteria.items()
        },
        "front": [
            {
                **_described(graded.setting),
                "values": graded.values,
                "coefficients": graded.coefficients,
                "grade": graded.grade,
            }
            for graded in recommendation.front
        ],
        "beaten": [_described(setting) for setting in recommendation.beaten],
        "left_out": {point.name: why for point, why in recommendation.left_out},
    }


def _described(setting: Setting) -> Table:
    return {"settings": setting.settings, "points": [point.name for point in setting.counted]}
