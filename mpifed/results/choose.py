"""The best setting by columns one after the other, or the recommended one of the Pareto front of several.

A tolerance must not make ties depend on the order of the settings, and "a ties with b" alone is not transitive: of
1.00, 1.01 and 1.02 at 1 %, the first two tie and the last two, the first and the last do not. So values are grouped:
the best opens a group, with all that are within the tolerance of it; the best of the rest opens the next one, and so
on. A group is no wider than the tolerance, groups are ordered, and what is compared from then on is the groups.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.columns import CRITERIA, of_kind
from mpifed.job.reading import dotted
from mpifed.privacy.protection import SWEPT
from mpifed.results.compare import check_columns, costs_of, end_lines, everywhere, records, sign_of
from mpifed.results.frames import FAILED, RunFrames, listed, table_text
from mpifed.results.text import line_of, toml_text, value_of
from mpifed.text import shown

# relative: by how much two executions of the same job may differ, where the clock or the machine decides
NOISE = {"elapsed_s": 0.05, "seconds_per_round": 0.05, "peak_rss_bytes": 0.05, "rss_bytes": 0.05, "simulated_s": 0.01}
_ROUNDING = 1e-9  # relative: 0.495 is within 1 % of 0.5
_GRADES = 0.01  # grades of values with tolerances that differ by no more are ties
_MOST = 20  # rows that are printed
_EQUAL, _TIED, _BEATEN = "equal within the tolerance", "of the same grade", "dominated"


@dataclass(frozen=True)
class Choice:
    """A chosen setting.

    Attributes
    ----------
    setting : its name
    settings : what sets it apart, by "table.key"
    points : its finished runs
    frame : a row for each setting, the chosen one first: means by criterion, on a front the `grade`, and `place`, why
        it is not the chosen one
    notes : what there is to say of it
    """

    setting: str
    settings: Table
    points: list[str]
    frame: DataFrame
    weights: Mapping[str, float]  # of the criteria
    notes: tuple[str, ...]

    def text(self, width: int | None = None) -> str:
        """The settings as `--set` arguments, the criteria of the first rows, and the notes."""
        words = " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in self.settings.items())
        cells = self.frame.head(_MOST).rename(columns={"place": ""})
        for name in cells.columns[:-1]:
            cells[name] = cells[name].map(partial(value_of, name), na_action="ignore")
        more = [f"and {len(self.frame) - _MOST} rows more"] if len(self.frame) > _MOST else []
        lines = [line_of("best", self.setting), words, line_of("over", listed(self.points))]
        lines += [table_text(cells, width), *more]
        for column, weight in self.weights.items():
            within = f", within {NOISE[column]:.0%}" if column in NOISE else ""
            weighed = "" if weight == 1 else f", weight {weight:g}"
            lines.append(f"{column}: {'largest' if sign_of(column) < 0 else 'least'} is best{within}{weighed}")
        return "\n".join(filter(None, [*lines, *self.notes]))

    def table(self) -> Table:
        """What `mpifed compare --select best --json` prints."""
        rows = records(self.frame.rename_axis("setting").reset_index())
        chosen: Table = {"setting": self.setting, "settings": self.settings, "points": self.points}
        return {**chosen, "compared": rows, "notes": list(self.notes)}


def choose(frames: RunFrames, by: str | None = None, pareto: bool = False) -> Choice:
    """The setting whose mean of a column is best, of those that tie, by the next one; or the recommended of a front.

    With `pareto` it is the one whose grey relational grade is the largest, of those that no other dominates: Z. Wang
    and G. P. Rangaiah, *Application and Analysis of Methods for Selecting an Optimal Solution from the Pareto-Optimal
    Front obtained by Multiobjective Optimization*, Ind. Eng. Chem. Res. 56(2), 2017, with which the authors of HyFDCA
    (arXiv:2210.08106) chose hyper-parameters. Of equal grades the setting in the better groups is recommended, by the
    first criterion first. Of settings that tie in all, the first by label and settings is chosen. One with a run that
    failed numerically or has no such number is never chosen, nor from a front one that breaks a limit, unless
    `feasibility` is a criterion.

    Parameters
    ----------
    frames : of a sweep, or of runs and sweeps
    by : columns between commas, in a front with weights, as `objective:2,up_bytes`; when None the objective, with
        constraints the infeasibility before it, and in a front objective, test accuracy, simulated or else training
        seconds, and bytes up, as far as all settings have them

    Raises
    ------
    UsageError
        when no setting can be compared, there is no such column, or objectives differ.
    """
    weights = criteria_of(by)
    if not weights and pareto:
        kinds = (of_kind(kind, everywhere(frames)) for kind in CRITERIA)
        weights = dict.fromkeys(filter(None, kinds), 1.0) or {"objective": 1.0}
    elif not weights:
        limited = ["feasibility"] if "constraint_1" in frames.numbers else []
        weights = dict.fromkeys([*limited, of_kind("loss", frames.numbers) or "objective"], 1.0)
    check_columns(frames, [*weights])
    reasons = {setting: _why_not(runs, [*weights], pareto) for setting, runs in frames.runs.groupby("setting")}
    costs = DataFrame({column: costs_of(frames, column) for column in weights})
    means = (costs * [sign_of(column) for column in weights]).replace([np.inf, -np.inf], np.nan)
    costs = costs.loc[[setting for setting in costs.index if not reasons[setting]]]
    if costs.empty:
        said = "; ".join(dict.fromkeys(reasons.values()))
        raise UsageError(f"none of {len(reasons)} settings can be compared by {', '.join(weights)}: {said}")
    if pareto:
        places, grades = _front(costs, weights)
        means = means.join(grades.rename("grade"))
    else:
        tied = costs.index
        for column in costs:
            tied = tied[groups(costs.loc[tied, column], NOISE.get(column, 0.0)) == 0]
        others = costs.drop(tied).sort_values(costs.columns[0], kind="stable").index
        places = {tied[0]: "", **dict.fromkeys(tied[1:], _EQUAL), **dict.fromkeys(others, "")}
    places |= {setting: reason for setting, reason in reasons.items() if reason}
    chosen = next(iter(places))
    runs = frames.runs[frames.runs["setting"] == chosen]
    notes = [SWEPT] if frames.runs["private"].any() else []
    notes += [f"{run['run']}: {warning}" for _, run in runs.iterrows() for warning in run["warnings"]]
    notes += [*end_lines(frames.runs[~frames.runs["ended"]])]
    notes += [*edges(runs["swept"].iloc[0], list(frames.runs["swept"]))] if frames.grid else []
    frame = means.loc[[*places]].assign(place=list(places.values()))
    points = list(runs.loc[runs["finished"], "run"])
    return Choice(chosen, dict(runs["swept"].iloc[0]), points, frame, weights, tuple(notes))


def _front(costs: DataFrame, weights: Mapping[str, float]) -> tuple[dict[str, str], Series]:
    """(what each setting is beside the recommended, which is first; grades of those that no other dominates)."""
    numbers = costs.apply(lambda column: groups(column, NOISE.get(str(column.name), 0.0)))
    anchors = DataFrame({column: costs[column].groupby(numbers[column]).transform("min") for column in costs})
    unbeaten = pareto_front(numbers)
    grades = Series(np.average(relational_coefficients(anchors[unbeaten]), axis=1, weights=[*weights.values()]))
    grades.index = anchors.index[unbeaten]
    least = grades.max() - (_GRADES if any(column in NOISE for column in weights) else 1e-12)
    leading = grades >= least  # as good as the largest: the groups decide among these
    order = DataFrame({"later": ~leading, "grade": -grades.round(12).where(~leading, 0.0)}).join(numbers)
    first, *others = order.sort_values(list(order), kind="stable").index
    places = {first: ""}
    for setting in others:
        same = (numbers.loc[setting] == numbers.loc[first]).all()
        places[setting] = _EQUAL if same else _TIED if leading[setting] else ""
    return places | dict.fromkeys(unbeaten.index[~unbeaten], _BEATEN), grades


def criteria_of(text: str | None) -> dict[str, float]:
    """The columns in `objective:3,test_accuracy`, with their weights."""
    criteria = {}
    for part in text.split(",") if text else ():
        name, colon, weight = part.strip().partition(":")
        try:
            criteria[name] = float(weight) if colon else 1.0
        except ValueError:
            criteria[name] = math.nan
        if not name or not 0 < criteria[name] < math.inf:
            expected = "expected COLUMN or COLUMN:WEIGHT, a positive number, between commas"
            raise UsageError(f"--by {shown(text or '')}: {expected}")
    return criteria


def groups(costs: Series, tolerance: float) -> Series:
    """The numbers of the groups of ties, 0 for that of the best; `tolerance` is relative to the best of a group."""
    number, most, numbers = -1, -math.inf, {}
    for setting, cost in costs.sort_values(kind="stable").items():
        if cost > most:
            number += 1
            most = cost + tolerance * abs(cost) * (1 + _ROUNDING)
        numbers[setting] = number
    return Series(numbers).reindex(costs.index)


def pareto_front(costs: DataFrame) -> Series:
    """Which rows no other row dominates: is at least as good by every column, and better by one; less is better."""
    values = costs.to_numpy()
    dominated = [(np.all(values <= row, axis=1) & np.any(values < row, axis=1)).any() for row in values]
    return ~Series(dominated, costs.index, dtype=bool)


def relational_coefficients(costs: DataFrame) -> DataFrame:
    """How close each value is to the ideal, the best of its column: (least D + largest D) / (D + largest D).

    D is the distance from the ideal, in parts of its column's range: 0 for the best and 1 for the worst.
    """
    distance = (costs - costs.min()) / (costs.max() - costs.min()).replace(0, np.inf)
    largest = distance.max(axis=None)
    return (distance.min(axis=None) + largest) / (distance + largest) if largest else distance + 1.0


def _why_not(runs: DataFrame, columns: Sequence[str], limited: bool) -> str:
    """Why a setting cannot be compared; empty where it can."""
    finished = runs[runs["finished"]]
    if (runs["exit"] == FAILED).any():
        return f"failed numerically (exit {FAILED})"
    if finished.empty:
        return "not finished"
    if lacking := [column for column in columns if finished[column].isna().any()]:
        return f"without a finite {lacking[0]}"
    broken = limited and "feasibility" not in columns and finished["limits_met"].eq(False).any()
    return "breaks a limit" if broken else ""


def edges(chosen: ReadOnlyTable, grid: Sequence[ReadOnlyTable]) -> Iterator[str]:
    """A sentence for each number of the chosen settings that is an end of its values in a grid."""
    numbers = DataFrame([dict(dotted(settings)) for settings in grid]).select_dtypes("number").dropna(axis=1)
    for key, value in dotted(chosen):
        if key in numbers and numbers[key].nunique() > 1 and not key.startswith("record."):  # which changes no result
            ends = {numbers[key].max(): "largest", numbers[key].min(): "smallest"}
            if value in ends:
                yield f"{key} = {value} is at the edge of its grid, the {ends[value]}: widen it"
