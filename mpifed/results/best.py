"""The best setting of a sweep, or of several runs, by columns one after the other, and whether it lies at an edge."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.core.text import counted
from mpifed.files.columns import of_kind
from mpifed.job.sweep import LABEL
from mpifed.results.criteria import (
    Criterion,
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
from mpifed.results.points import FAILED, Folders, Ran, Setting, is_sweep, named, read_settings, swept
from mpifed.results.text import is_number, toml_text


def has_a_grid(where: Folders) -> bool:
    """Whether the settings are those of a single sweep, and so a grid."""
    folders = [where] if isinstance(where, Path) else list(where)
    return len(folders) == 1 and is_sweep(folders[0])


class Choice(NamedTuple):
    """The best setting of a sweep."""

    best: Setting
    by: dict[str, Criterion]  # columns, the first one first
    maximized: dict[str, bool]
    ties: list[Setting]  # others within the tolerance of the best by every column
    edges: list[str]  # a sentence for each axis of a sweep at whose edge it lies
    failed: list[Ran]  # points that failed numerically: infinitely bad


def choose(where: Folders, by: Mapping[str, Criterion] | None = None, maximize: bool | None = None) -> Choice:
    """The setting whose mean of a column is the least, or the largest; of those that tie, by the next column.

    Of settings that tie by all columns, the first by label and settings is the best, and the others are its ties.

    Parameters
    ----------
    where : folder of a sweep, or those of runs
    by : columns; when None the objective, and with constraints the feasibility before it: the least objective of the
        settings all of whose finished points meet their limits, else the least excess relative to the limits
    maximize : the last column; None maximizes what is called an accuracy, and minimizes all else

    Raises
    ------
    UsageError
        when the folder is no sweep, nothing has finished, everything has failed, or there is no such column.
    """
    settings = read_settings(where)
    failed = [point for setting in settings for point in setting.points if point.code == FAILED]
    there = columns_of(settings)
    criteria = {name: criterion_of(name) for name in _default_columns(there)} if by is None else dict(by)
    lacking = [name for name in criteria or ["objective"] if name not in there]
    if lacking:
        raise no_column(named(where), lacking[0], there)
    check_objectives(named(where), objectives_of(settings), criteria)
    maximizing = {name: to_be_maximized(name) for name in criteria}
    if maximize is not None:
        maximizing[[*criteria][-1]] = maximize
    tied = sorted(settings, key=order_of)
    for name, criterion in criteria.items():
        costs = [cost_of(setting, name, maximizing[name]) for setting in tied]
        if min(costs) == math.inf:
            raise UsageError(
                f"{named(where)}: no setting has a finite {name}; {counted(len(failed), 'point')} failed numerically"
            )
        groups, _ = grouped(np.array(costs), criterion)
        tied = [setting for setting, group in zip(tied, groups, strict=True) if group == 0]
    best, *ties = tied
    edges = list(at_edges(best.settings, [setting.settings for setting in settings])) if has_a_grid(where) else []
    return Choice(best, criteria, maximizing, ties, edges, failed)


def select(
    where: str | os.PathLike[str] | Sequence[Path], by: str | None = None, maximize: bool | None = None
) -> Table:
    """The choice of `choose`, as `mpifed compare SWEEP --select best --json` prints it; `by` as there.

    Returns
    -------
    dict
        `settings` by "table.key", without the seed; `points`, the names of the finished ones; `mean` over them, by
        column; `by`, what is best and the tolerance, by column; `ties`, settings and points of others within the
        tolerance; `edges`, a sentence for each axis at whose edge the best lies; `warnings`, where points are private.
    """
    folders = Path(where) if isinstance(where, (str, os.PathLike)) else where
    choice = choose(folders, criteria_of(by) if by else None, maximize)
    return {
        **described(choice.best),
        "mean": {name: column.mean for name, column in choice.best.means().items()},
        "by": {
            name: {"best": "largest" if choice.maximized[name] else "least", "tolerance": str(criterion)}
            for name, criterion in choice.by.items()
        },
        "ties": [described(setting) for setting in choice.ties],
        "edges": choice.edges,
        "warnings": [*swept(folders), *warnings_of(choice.best)],
    }


def described(setting: Setting) -> Table:
    """What a setting is, and its finished points."""
    return {"settings": setting.settings, "points": [point.name for point in setting.counted]}


def warnings_of(setting: Setting) -> list[str]:
    """What is wrong with the runs of a setting."""
    return [f"{point.name}: {warning}" for point in setting.points for warning in point.warnings]


def _default_columns(there: Sequence[str]) -> list[str]:
    loss = of_kind("loss", there)
    objective = [] if loss is None else [loss]
    return ["feasibility", *objective] if any(name.startswith("constraint_") for name in there) else objective


def cost_of(setting: Setting, column: str, maximize: bool) -> float:
    """The mean to be minimized; a point that has failed, or whose number was not finite, is infinitely bad."""
    sign = -1.0 if maximize else 1.0
    points = [point for point in setting.points if point.finished or point.code == FAILED]
    values = [sign * point.numbers().get(column, math.inf * sign) if point.finished else math.inf for point in points]
    return statistics.fmean(values) if values else math.inf


def at_edges(best: Table, grid: Sequence[Table]) -> Iterator[str]:
    """A sentence for each axis of numbers, or of lists of numbers, of which the best value is the first or last.

    Keys of [record] are left out, since they do not change the result, and so are labels.
    """
    for key, value in best.items():
        if key.startswith("record.") or key == LABEL:
            continue
        values = [settings.get(key) for settings in grid]
        if is_number(value):
            ends = [end] if (end := _end(value, values)) else []
        elif isinstance(value, list) and all(isinstance(other, list) and len(other) == len(value) for other in values):
            parts = [
                _end(component, column) for component, column in zip(value, zip(*values, strict=True), strict=True)
            ]
            ends = [f"component {i}: {end}" for i, end in enumerate(parts, 1) if end]
        elif isinstance(value, dict) and all(isinstance(other, dict) and [*other] == [*value] for other in values):
            ends = [
                f"{name}: {end}"
                for name in value
                if (end := _end(value[name], [other[name] for other in values if other]))
            ]
        else:
            continue
        if ends:
            yield f"{key} = {toml_text(value)} is at the edge of its grid: widen it ({'; '.join(ends)})"


def _end(value: object, values: Sequence[object]) -> str:
    """Which end of the grid `value` is at; empty where it lies inside, or all values are the same."""
    numbers = [other for other in values if is_number(other)]
    if not is_number(value) or len(numbers) < len(values) or len(set(numbers)) == 1:
        return ""
    least, most = min(numbers), max(numbers)
    return "" if least < value < most else f"{value} is the {'smallest' if value == least else 'largest'}"
