"""The best setting by columns one after the other, and the front of those that no other beats by all of them.

A tolerance must not make ties depend on the order of the settings, and "a ties with b" alone is not transitive: of
1.00, 1.01 and 1.02 at 1 %, the first two tie and the last two, the first and the last do not. So values are grouped:
the best opens a group, with all that are within the tolerance of it; the best of the rest opens the next one, and so
on. A group is no wider than the tolerance, groups are ordered, and what is compared from then on is the groups.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pandas import DataFrame, Series

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table, dotted
from mpifed.files.columns import of_kind
from mpifed.privacy.protection import SWEPT
from mpifed.results.compare import check_columns, costs_of, end_lines, records, sign_of
from mpifed.results.frames import FAILED, RunFrames, listed, table_text
from mpifed.results.text import line_of, toml_text, value_of

# relative: by how much two executions of the same job may differ, where the clock or the machine decides
NOISE = {"elapsed_s": 0.05, "seconds_per_round": 0.05, "peak_rss_bytes": 0.05, "rss_bytes": 0.05, "simulated_s": 0.01}
_ROUNDING = 1e-9  # relative: 0.495 is within 1 % of 0.5
_MOST = 20  # rows that are printed


@dataclass(frozen=True)
class Choice:
    """A chosen setting.

    Attributes
    ----------
    setting : its name
    settings : what its sweep has set, by "table.key"
    points : its finished runs
    frame : a row for each setting, the chosen one first: means by criterion, and `place`, what it is beside that one
    notes : what there is to say of it
    """

    setting: str
    settings: Table
    points: list[str]
    frame: DataFrame
    notes: tuple[str, ...]

    def text(self, width: int | None = None) -> str:
        """The settings as `--set` arguments, the criteria of the first rows, and the notes."""
        cells = self.frame.head(_MOST).rename(columns={"place": ""})
        criteria = list(cells.columns[:-1])
        for name in criteria:
            cells[name] = [value_of(name, value) if math.isfinite(value) else "" for value in cells[name]]
        more = [f"and {len(self.frame) - _MOST} rows more"] if len(self.frame) > _MOST else []
        lines = [line_of("best", self.setting), changes(self.settings), line_of("over", listed(self.points))]
        lines += [table_text(cells, width), *more]
        for column in criteria:
            within = f", within {NOISE[column]:.0%}" if column in NOISE else ""
            lines.append(f"{column}: {'largest' if sign_of(column) < 0 else 'least'} is best{within}")
        return "\n".join(filter(None, [*lines, *self.notes]))

    def table(self) -> Table:
        """What `mpifed compare --best --json` prints."""
        rows = records(self.frame.rename_axis("setting").reset_index())
        chosen: Table = {"setting": self.setting, "settings": self.settings, "points": self.points}
        return {**chosen, "compared": rows, "notes": list(self.notes)}


def changes(settings: ReadOnlyTable) -> str:
    """Settings as arguments of `mpifed run`."""
    return " ".join(f"--set {shlex.quote(f'{key}={toml_text(value)}')}" for key, value in settings.items())


def choose(frames: RunFrames, by: Sequence[str] = ()) -> Choice:
    """The setting whose mean of a column is best, of those that tie by it, by the next one; and the front.

    Of settings that tie in all, the first by name is chosen. One with a run that failed numerically or has no such
    number is never chosen. A setting is on the front where no other is in as good groups by every column, and in a
    better one by at least one.

    Parameters
    ----------
    frames : of a sweep, or of runs and sweeps
    by : columns; when empty the objective, with constraints the infeasibility before it

    Raises
    ------
    UsageError
        when no setting can be compared, there is no such column, or objectives differ.
    """
    limited = ["feasibility"] if "constraint_1" in frames.numbers else []
    columns = list(by) or [*limited, of_kind("loss", frames.numbers) or "objective"]
    check_columns(frames, columns)
    reasons = {setting: _why_not(runs, columns) for setting, runs in frames.runs.groupby("setting")}
    costs = DataFrame({column: costs_of(frames, column) for column in columns})
    means = (costs * [sign_of(column) for column in columns]).replace([np.inf, -np.inf], np.nan)
    costs = costs.loc[[setting for setting in costs.index if not reasons[setting]]]
    if costs.empty:
        said = "; ".join(dict.fromkeys(reasons.values()))
        raise UsageError(f"none of {len(reasons)} settings can be compared by {', '.join(columns)}: {said}")
    numbers = costs.apply(lambda column: groups(column, NOISE.get(str(column.name), 0.0)))
    numbers = numbers.sort_values(columns, kind="stable")
    ties = (numbers == numbers.iloc[0]).all(axis=1)
    places = Series("", numbers.index).mask(front(numbers), "on the front").mask(ties, "equal within the tolerance")
    places.iloc[0] = ""
    others = Series({setting: reason for setting, reason in reasons.items() if reason}, dtype=object)
    chosen = str(numbers.index[0])
    runs = frames.runs[frames.runs["setting"] == chosen]
    notes = [SWEPT] if frames.runs["private"].any() else []
    notes += [f"{run['run']}: {warning}" for _, run in runs.iterrows() for warning in run["warnings"]]
    notes += [*end_lines(frames.runs[~frames.runs["ended"]])]
    notes += [f"Not run: {listed(frames.waiting)}"] if frames.waiting else []
    notes += edges(runs["swept"].iloc[0], frames.grid)
    frame = means.loc[[*places.index, *others.index]].assign(place=[*places, *others])
    points = list(runs.loc[runs["finished"], "run"])
    return Choice(chosen, dict(runs["swept"].iloc[0]), points, frame, tuple(notes))


def groups(costs: Series, tolerance: float) -> Series:
    """The numbers of the groups of ties, 0 for that of the best; `tolerance` is relative to the best of a group."""
    number, most, numbers = -1, -math.inf, {}
    for setting, cost in costs.sort_values(kind="stable").items():
        if cost > most:
            number += 1
            most = cost + tolerance * abs(cost) * (1 + _ROUNDING)
        numbers[setting] = number
    return Series(numbers).reindex(costs.index)


def front(costs: DataFrame) -> Series:
    """Which rows no other row dominates: is at least as good by every column, and better by one; less is better."""
    values = costs.to_numpy()
    dominated = [(np.all(values <= row, axis=1) & np.any(values < row, axis=1)).any() for row in values]
    return ~Series(dominated, costs.index, dtype=bool)


def _why_not(runs: DataFrame, columns: Sequence[str]) -> str:
    """Why a setting cannot be compared; empty where it can."""
    finished = runs[runs["finished"]]
    if (runs["exit"] == FAILED).any():
        return f"failed numerically (exit {FAILED})"
    lacking = [column for column in columns if finished[column].isna().any()]
    return "not finished" if finished.empty else f"without a finite {lacking[0]}" if lacking else ""


def edges(chosen: ReadOnlyTable, grid: Sequence[ReadOnlyTable], least: int = 2) -> Iterator[str]:
    """A sentence for each number of the chosen settings that is an end of at least so many values in a grid."""
    numbers = DataFrame([dict(dotted(settings)) for settings in grid]).select_dtypes("number").dropna(axis=1)
    for key, value in dotted(chosen):
        if (
            key in numbers and numbers[key].nunique() >= least and not key.startswith("record.")
        ):  # which changes no result
            ends = {numbers[key].max(): "largest", numbers[key].min(): "smallest"}
            if value in ends:
                yield f"{key} = {value} is at the edge of its grid, the {ends[value]}: widen it"
