"""Rounds, bytes and seconds until a column of the history reaches a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.text import shown
from mpifed.files.columns import HistoryTarget, target_of
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.results.points import FAILED, Mean, Ran, Setting

COSTS = ("round", "bytes", "elapsed_s", "simulated_s")  # what a target takes; a run may lack the last


class Reached(NamedTuple):
    """What the runs of a setting took to a target; means are over those that reached it."""

    runs: int  # so many reached it
    of: int  # runs that have ended, with a result or numerically failed
    costs: dict[str, Mean]  # by name in `COSTS`; empty where no run reached it
    gaps: list[int]  # rounds from the measurement before to the one that reached it, of each run


def targets_of(texts: Iterable[str]) -> list[HistoryTarget]:
    """The targets of `--to`, each once; UsageError where one is none."""
    targets = list[HistoryTarget]()
    for text in texts:
        try:
            targets.append(target_of(text))
        except ValueError as error:
            raise UsageError(f"--to {shown(text)}: {error}") from error
    return list(dict.fromkeys(targets))


def reached(settings: Sequence[Setting], target: HistoryTarget, named: str) -> list[Reached]:
    """What each setting took to the target.

    Raises
    ------
    UsageError
        when no run has such a column in its history.
    """
    ended = [[point for point in setting.points if point.finished or point.code == FAILED] for setting in settings]
    histories = [[_history(point) for point in points] for points in ended]
    there = list(dict.fromkeys(name for of_setting in histories for columns in of_setting for name in columns))
    if target.column not in there:
        names = ", ".join(there) or "none, as nothing was measured"
        meant = nearest(target.column, there)
        raise UsageError(f"{named}: --to {target}: no history has a column {target.column}{meant}; there are {names}")
    return [_reached([_first(columns, target) for columns in of_setting]) for of_setting in histories]


def _history(point: Ran) -> dict[str, Array]:
    columns = read_history(point.folder) if (point.folder / HISTORY).exists() else {}
    if "up_bytes" in columns:
        columns["bytes"] = columns["up_bytes"] + columns["down_bytes"]
    return columns


def _first(columns: dict[str, Array], target: HistoryTarget) -> dict[str, float] | None:
    """The first measured round that reaches the target, with what was spent by then; None where none does."""
    values = columns.get(target.column, np.empty(0))
    rows = np.flatnonzero(target.is_met(values))
    if not len(rows):
        return None
    row, rounds = rows[0], columns["round"]
    spent = {name: float(columns[name][row]) for name in COSTS if name in columns}
    return spent | {"gap": float(rounds[row] - rounds[row - 1]) if row else 0.0}


def _reached(firsts: Sequence[dict[str, float] | None]) -> Reached:
    rows = [first for first in firsts if first is not None]
    values = {name: [row[name] for row in rows if not math.isnan(row.get(name, math.nan))] for name in COSTS}
    costs = {name: Mean.of(numbers) for name, numbers in values.items() if numbers}
    return Reached(len(rows), len(firsts), costs, [int(row["gap"]) for row in rows])
