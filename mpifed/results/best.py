"""The results of a sweep, or of several runs: means over seeds, and the best setting.

Runs that differ in their seed alone are one setting, whose numbers are means over those that finished. What sets the
points of a sweep apart is in sweep.csv; of single runs, it is what their jobs differ in.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import os
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from mpifed.core.errors import FINISHED, DataError, NumericalError, UsageError
from mpifed.core.text import counted, shown
from mpifed.files.columns import column_of, of_kind
from mpifed.files.json_file import content
from mpifed.files.run_folder import JOB, SUMMARY, job_of, summary
from mpifed.job.sweep import point_name
from mpifed.privacy.protection import SWEPT

FAILED = NumericalError.exit_code
SWEEP = "sweep.csv"
_UNCOMPARED = ("name", "record.transcript", "record.checkpoint_every")  # of a job, what changes no number of its run
OF_OBJECTIVE = ("objective", "lower_bound", "duality_gap")  # columns in units of what is minimized
Folders: TypeAlias = Path | Sequence[Path]


class Ran(NamedTuple):
    """A point of a sweep, as its folder has it."""

    name: str
    settings: dict[str, Any]  # by "table.key"
    begun: bool  # whether its folder is there
    code: int | None  # its exit code; None also where it has none yet
    summary: dict[str, Any] | None  # None where the run ended before it could write one
    limits: tuple[float, ...]  # of its job's constraints
    folder: Path
    seed: int | None  # of its job; None where it has not begun
    minimized: str  # what its job minimizes, as [minimize] says it; empty where it has not begun

    @property
    def finished(self) -> bool:
        """Whether its numbers are those of a whole run."""
        return self.code in FINISHED

    @property
    def model(self) -> str:
        """The SHA-256 of its model; empty where it has none."""
        return (self.summary or {}).get("model_sha256") or ""

    def numbers(self) -> dict[str, float]:
        """The numbers that can be averaged: those of the summary, and `constraint_1`, `constraint_2`, ..."""
        numbers = {name: value for name, value in (self.summary or {}).items() if isinstance(value, (int, float))}
        numbers.pop("exit", None)
        values = (self.summary or {}).get("constraint_values") or []
        numbers |= {f"constraint_{m}": value for m, value in enumerate(values, 1) if value is not None}
        return numbers

    def meets_limits(self) -> bool | None:
        """Whether every constraint is at most its limit; None where that is not known, or there is none."""
        values = (self.summary or {}).get("constraint_values") or []
        if not self.limits or len(self.limits) != len(values) or None in values:
            return None
        return all(value <= limit for value, limit in zip(values, self.limits, strict=True))


class Mean(NamedTuple):
    """A column of one setting."""

    mean: float
    deviation: float  # standard, over the seeds; 0 of a single one
    having: int  # number of points that have the column

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of at least one value."""
        try:
            deviation = statistics.stdev(values) if len(set(values)) > 1 else 0.0
            return cls(values[0] if not deviation else statistics.fmean(values), deviation, len(values))
        except OverflowError:
            return cls(math.inf, math.inf, len(values))


class Setting(NamedTuple):
    """The points that differ in their seed alone."""

    settings: dict[str, Any]  # without the seed
    points: list[Ran]

    @property
    def counted(self) -> list[Ran]:
        """The points whose numbers are averaged."""
        return [point for point in self.points if point.finished]

    def means(self) -> dict[str, Mean]:
        """The mean of every column that a finished point has."""
        values: dict[str, list[float]] = {}
        for point in self.counted:
            for name, value in point.numbers().items():
                values.setdefault(name, []).append(value)
        return {name: Mean.of(numbers) for name, numbers in values.items()}


def is_sweep(folder: Path) -> bool:
    """Whether this is the folder of a sweep."""
    return (folder / SWEEP).exists()


def read_points(where: Folders) -> list[Ran]:
    """The points of a sweep, run or not; or those of several runs and sweeps together.

    Raises
    ------
    UsageError
        when a folder is neither that of a run nor that of a sweep.
    """
    folders = [where] if isinstance(where, Path) else list(where)
    if len(folders) == 1 and is_sweep(folders[0]):
        return [_read_point(folders[0] / name, settings) for name, settings in point_settings(folders[0])]
    runs = run_folders(folders)
    jobs = [_flat(job_of(run)) for run in runs]
    keys = dict.fromkeys(key for job in jobs for key in job)
    varying = [key for key in keys if any(job.get(key) != jobs[0].get(key) for job in jobs) and key not in _UNCOMPARED]
    settings = [{key: job.get(key) for key in varying} for job in jobs]
    return [_read_point(run, setting)._replace(name=str(run)) for run, setting in zip(runs, settings, strict=True)]


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The folders of all runs; of a sweep, those of the points that have begun."""
    runs = []
    for folder in folders:
        if is_sweep(folder):
            runs += [folder / name for name, _ in point_settings(folder) if (folder / name / JOB).exists()]
        elif (folder / JOB).exists():
            runs.append(folder)
        else:
            raise UsageError(f"{folder}: no folder of a run or a sweep (it has no {JOB}, and no {SWEEP})")
    return runs


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The keys of a job as "table.key"; a schedule counts as a single value, like a list."""
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and not above
        flattened |= _flat(value, f"{key}.") if nested else {f"{above}{key}": value}
    return flattened


def point_settings(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The points of a sweep: the name of each, and what sets it apart.

    Raises
    ------
    DataError
        when sweep.csv is not the list of a sweep's points.
    """
    path = folder / SWEEP
    try:
        header, *rows = list(csv.reader(io.StringIO(content(path).decode("utf-8"), newline="")))
        after = len(header) - header[::-1].index(SUMMARY[0]) - 1  # its first; a setting may have its name too
        names = header[1:after]
        for number, row in enumerate(rows):
            if len(row) != len(header) or row[0] != point_name(number):
                what = f"line {number + 2} has {len(row)} cells and begins with {shown(str(row[:1]))}"
                raise ValueError(f"{what}; {len(header)} cells and {point_name(number)} were expected")
        strange = [name for name in names if not name.isprintable() or names.count(name) > 1]
        if not rows or strange:
            raise ValueError("it lists no points" if not rows else f"in its first line, {shown(strange[0])!r}")
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: not the points of a sweep ({error}); let the sweep write it anew: remove it and run with --resume"
        ) from error
    return [(row[0], dict(zip(names, map(_parsed, row[1 : 1 + len(names)]), strict=True))) for row in rows]


def _read_point(run_dir: Path, settings: dict[str, Any]) -> Ran:
    run_summary = summary(run_dir) if (run_dir / "run.json").exists() else None
    code = run_summary["exit"] if run_summary else None
    job = job_of(run_dir)
    limits = tuple(constraint["limit"] for constraint in job.get("constraint", []))
    minimized = toml_text(job.get("minimize", {"name": "loss"})) if (run_dir / JOB).exists() else ""
    return Ran(
        run_dir.name, settings, run_dir.exists(), code, run_summary, limits, run_dir, job.get("seed"), minimized
    )  # fmt: skip


def _parsed(cell: str) -> Any:
    """The value of a setting, from the text that `csv` made of it."""
    try:
        value = ast.literal_eval(cell)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return cell
    return value


def swept(where: Folders) -> list[str]:
    """The warning that goes with a choice among private points; empty where none is private."""
    folders = [where] if isinstance(where, Path) else list(where)
    jobs = (
        [folders[0] / name for name, _ in point_settings(folders[0])] if is_sweep(folders[0]) else run_folders(folders)
    )
    return [SWEPT] if any("privacy" in job_of(run) for run in jobs) else []


def settings_of(points: Iterable[Ran]) -> list[Setting]:
    """The settings among the points, in their order."""
    groups: dict[str, Setting] = {}
    for point in points:
        settings = {key: value for key, value in point.settings.items() if key != "seed"}
        groups.setdefault(json.dumps(settings), Setting(settings, [])).points.append(point)
    return list(groups.values())


def read_settings(where: Folders) -> list[Setting]:
    """The settings of a sweep, or of several runs, to choose among.

    Raises
    ------
    UsageError
        when a folder is neither, or none of the runs has finished.
    """
    points = read_points(where)
    if not any(point.finished for point in points):
        raise UsageError(f"{named(where)}: none of {len(points)} runs has finished; run them, or go on with --resume")
    return settings_of(points)


def named(where: Folders) -> str:
    """The folders, as messages name them."""
    return str(where) if isinstance(where, Path) else ", ".join(map(str, where))


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
) -> dict[str, Any]:
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


def at_edges(best: dict[str, Any], grid: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A sentence for each axis of numbers, or of lists of numbers, of which the best value is the first or last.

    Keys of [record] are left out: they do not change the result.
    """
    for key, value in best.items():
        if key.startswith("record."):
            continue
        values = [settings.get(key) for settings in grid]
        if _number(value):
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


def _end(value: Any, values: Sequence[Any]) -> str:
    """Which end of the grid `value` is at; empty where it lies inside, or all values are the same."""
    if not all(map(_number, values)) or len(set(values)) == 1 or min(values) < value < max(values):
        return ""
    return f"{value} is the {'smallest' if value == min(values) else 'largest'}"


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def toml_text(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(key)} = {toml_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return str(value) if _number(value) else json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
