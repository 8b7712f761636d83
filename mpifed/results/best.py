"""The best setting of a sweep, or of several runs, by a column, and whether it lies at an edge of its grid."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.core.text import counted
from mpifed.files.columns import column_of, of_kind
from mpifed.results.points import FAILED, Folders, Ran, Setting, is_sweep, named, read_settings, swept
from mpifed.results.text import is_number, toml_text

OF_OBJECTIVE = ("objective", "lower_bound", "duality_gap")  # columns in units of what is minimized


def has_a_grid(where: Folders) -> bool:
    """Whether the settings are those of a single sweep, and so a grid."""
    folders = [where] if isinstance(where, Path) else list(where)
    return len(folders) == 1 and is_sweep(folders[0])


def check_objectives(where: Folders, settings: Iterable[Setting], columns: Iterable[str]) -> None:
    """UsageError where a column is in units of the objective, and the runs have different objectives."""
    compared = [name for name in columns if name in OF_OBJECTIVE]
    minimizing = {point.minimized: point.name for setting in settings for point in setting.points if point.minimized}
    if compared and len(minimizing) > 1:
        listed = "; ".join(f"{name} has [minimize] = {minimized}" for minimized, name in minimizing.items())
        raise UsageError(
            f"{named(where)}: objectives differ ({listed}), so that {compared[0]} ranks nothing; choose by another "
            "column, as --by test_accuracy"
        )


def columns_of(settings: Iterable[Setting]) -> list[str]:
    """The columns that can be compared: those that at least one finished point has."""
    return list(dict.fromkeys(name for setting in settings for name in setting.means()))


def to_be_maximized(column: str) -> bool:
    """Whether larger values of a column are better."""
    return column_of(column).better == "more"


class Choice(NamedTuple):
    """The best setting of a sweep."""

    best: Setting
    by: str  # the column, or columns, that it is the best by
    maximized: bool
    edges: list[str]  # a sentence for each axis of a sweep at whose edge it lies
    failed: list[Ran]  # points that failed numerically: infinitely bad


def choose(where: Folders, by: str | None = None, maximize: bool | None = None) -> Choice:
    """The setting whose mean of a column is the least, or the largest.

    Parameters
    ----------
    where : folder of a sweep, or those of runs
    by : a column; when None the objective, and with constraints the feasibility before it: the least objective of the
        settings all of whose finished points meet their limits, else the least excess relative to the limits
    maximize : None maximizes what is called an accuracy, and minimizes all else

    Raises
    ------
    UsageError
        when the folder is no sweep, nothing has finished, everything has failed, or there is no such column.
    """
    settings = read_settings(where)
    failed = [point for setting in settings for point in setting.points if point.code == FAILED]
    there = columns_of(settings)
    columns = _default_columns(there) if by is None else [by]
    lacking = [name for name in columns or ["objective"] if name not in there]
    if lacking:
        raise UsageError(f"{named(where)}: no column {lacking[0]}; there are {', '.join(there)}")
    check_objectives(where, settings, columns)
    if maximize is None:
        maximize = to_be_maximized(columns[-1])
    signs = [1.0] * (len(columns) - 1) + [-1.0 if maximize else 1.0]
    ranks = [
        [_rank(setting, column, sign) for column, sign in zip(columns, signs, strict=True)] for setting in settings
    ]
    best = min(range(len(settings)), key=ranks.__getitem__)
    if math.inf in ranks[best]:
        raise UsageError(
            f"{named(where)}: no setting has a finite {columns[-1]}; {counted(len(failed), 'point')} failed numerically"
        )
    grid = [setting.settings for setting in settings]
    edges = list(at_edges(settings[best].settings, grid)) if has_a_grid(where) else []
    return Choice(settings[best], ", then ".join(columns), maximize, edges, failed)


def select(
    where: str | os.PathLike[str] | Sequence[Path], by: str | None = None, maximize: bool | None = None
) -> Table:
    """The choice of `choose`, as `mpifed compare SWEEP --select best --json` prints it.

    Returns
    -------
    dict
        `settings` by "table.key", without the seed; `points`, the names of the finished ones; `mean` over them, by
        column; `edges`, a sentence for each axis at whose edge the best lies; `warnings`, where points are private.
    """
    folders = Path(where) if isinstance(where, (str, os.PathLike)) else where
    best, _, _, edges, _ = choose(folders, by, maximize)
    return {
        "settings": best.settings,
        "points": [point.name for point in best.counted],
        "mean": {name: column.mean for name, column in best.means().items()},
        "edges": edges,
        "warnings": swept(folders),
    }


def _default_columns(there: Sequence[str]) -> list[str]:
    loss = of_kind("loss", there)
    objective = [] if loss is None else [loss]
    return ["feasibility", *objective] if any(name.startswith("constraint_") for name in there) else objective


def _rank(setting: Setting, column: str, sign: float) -> float:
    """The mean to be minimized; a point that has failed, or whose number was not finite, is infinitely bad."""
    points = [point for point in setting.points if point.finished or point.code == FAILED]
    values = [sign * point.numbers().get(column, math.inf * sign) if point.finished else math.inf for point in points]
    return statistics.fmean(values) if values else math.inf


def at_edges(best: Table, grid: Sequence[Table]) -> Iterator[str]:
    """A sentence for each axis of numbers, or of lists of numbers, of which the best value is the first or last.

    Keys of [record] are left out: they do not change the result.
    """
    for key, value in best.items():
        if key.startswith("record."):
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
