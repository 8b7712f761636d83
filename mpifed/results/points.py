"""The points of a sweep, or several runs, read: what sets them apart, and means over seeds.

Runs that differ in their seed alone are one setting, whose numbers are means over those that finished. What sets the
points of a sweep apart is in sweep.csv; of single runs, it is what their jobs differ in.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mpifed.core.errors import FINISHED, DataError, NumericalError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import shown
from mpifed.files.json_file import content
from mpifed.files.run_folder import JOB, RUN, SUMMARY, job_of, read_run, summary
from mpifed.files.write import replace_text
from mpifed.job.schema import FREE, free_in, is_free
from mpifed.job.sweep import LABEL, SweepPoint, point_name
from mpifed.privacy.ledger_file import read_compared
from mpifed.privacy.protection import SWEPT
from mpifed.results.objectives import objective_of
from mpifed.results.run_warnings import RunWarning, run_warnings
from mpifed.results.text import is_number

FAILED = NumericalError.exit_code
SWEEP = "sweep.csv"
Folders: TypeAlias = Path | Sequence[Path]


class Ran(NamedTuple):
    """A point of a sweep, as its folder has it."""

    name: str
    settings: Table  # by "table.key"
    begun: bool  # whether its folder is there
    code: int | None  # its exit code; None also where it has none yet
    summary: Table | None  # None where the run ended before it could write one
    limits: tuple[float, ...]  # of its job's constraints
    folder: Path
    seed: int | None  # of its job, or of its sweep; None where neither says it
    objective: dict[str, str]  # what its job minimizes, by part; empty where it has not begun
    label: str  # that its sweep gives it; empty where it gives none
    warnings: list[RunWarning]

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
        numbers = {name: value for name, value in (self.summary or {}).items() if is_number(value)}
        numbers.pop("exit", None)
        values = (self.summary or {}).get("constraint_values") or []
        numbers |= {f"constraint_{m}": value for m, value in enumerate(values, 1) if value is not None}
        if "up_bytes" in numbers and "down_bytes" in numbers:
            numbers["bytes"] = numbers["up_bytes"] + numbers["down_bytes"]
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

    settings: Table  # without the seed
    points: list[Ran]

    @property
    def label(self) -> str:
        """The label that all its points have; empty where they have none, or several."""
        labels = {point.label for point in self.points}
        return labels.pop() if len(labels) == 1 else ""

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


def write_sweep(folder: Path, points: Sequence[SweepPoint]) -> None:
    """Write sweep.csv: a row for each point, with its settings and its run's `summary`, empty where not run."""
    names = list(points[0].settings)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["point", *names, *SUMMARY])
    for point in points:
        run_dir = folder / point.name
        values = summary(run_dir) if (run_dir / RUN).exists() else dict.fromkeys(SUMMARY)
        rows.writerow([point.name, *point.settings.values(), *values.values()])
    replace_text(folder / SWEEP, text.getvalue())


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).exists()


def read_points(where: Folders) -> list[Ran]:
    """The points of a sweep, run or not, or those of several runs and sweeps; UsageError for any other folder."""
    folders = [where] if isinstance(where, Path) else list(where)
    if len(folders) == 1 and is_sweep(folders[0]):
        return _by_data([_read_point(folders[0] / name, settings) for name, settings in point_settings(folders[0])])
    runs = run_folders(folders)
    tables = list(map(job_of, runs))
    jobs = list(map(_flat, tables))
    keys = dict.fromkeys(key for job in jobs for key in job)
    digests = set(map(_data_of, runs))
    same = len(digests) == 1 and None not in digests  # the same data, wherever they lay
    free = {*FREE}.intersection(*map(free_in, tables)) - (set() if same else {"data.path"})
    varying = [key for key in keys if any(job.get(key) != jobs[0].get(key) for job in jobs) and not is_free(key, free)]
    return _by_data([
        _read_point(run, {key: job.get(key) for key in varying})._replace(name=str(run), label=label)
        for (run, label), job in zip(runs.items(), jobs, strict=True)
    ])  # fmt: skip


def _data_of(run: Path) -> str | None:
    """The SHA-256 of its data; None where that is not known, as of private ones."""
    return read_run(run).get("data_sha256") if (run / RUN).exists() else None


def _by_data(points: list[Ran]) -> list[Ran]:
    """The points, set apart by their data where these were made anew at one path."""
    digests = [_data_of(point.folder) for point in points]
    paths = [point.settings.get("data.path") for point in points]
    known = {place for place in zip(paths, digests, strict=True) if place[1]}
    if len(known) > len(dict(known)):
        for point, digest in zip(points, digests, strict=True):
            point.settings["data_sha256"] = str(digest)[:12]
    return points


def run_folders(folders: Iterable[Path]) -> dict[Path, str]:
    """The folders of all runs, each once, and their labels; of a sweep, those of the points that have begun."""
    runs: dict[Path, tuple[Path, str]] = {}
    for folder in folders:
        if is_sweep(folder):
            points = ((folder / name, settings.get(LABEL, "")) for name, settings in point_settings(folder))
            begun = [(run, label) for run, label in points if (run / JOB).exists()]
        elif (folder / JOB).exists():
            begun = [(folder, "")]
        else:
            raise UsageError(f"{folder}: no folder of a run or a sweep (it has no {JOB}, and no {SWEEP})")
        for run, label in begun:
            before = runs.get(run.resolve(), (run, ""))
            runs[run.resolve()] = (before[0], before[1] or label)
    return dict(runs.values())


def _flat(table: Table, above: str = "") -> Table:
    """The keys of a job as "table.key"; a schedule counts as a single value, like a list."""
    flattened: Table = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and not above
        flattened |= _flat(value, f"{key}.") if nested else {f"{above}{key}": value}
    return flattened


def point_settings(folder: Path) -> list[tuple[str, Table]]:
    """The name of each point of a sweep, and what sets it apart; DataError when sweep.csv is not such a list."""
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
    return [
        (row[0], {name: _parsed(name, cell) for name, cell in zip(names, row[1:after], strict=True)}) for row in rows
    ]


def _read_point(run_dir: Path, settings: Table) -> Ran:
    begun = (run_dir / JOB).exists()
    read_compared(run_dir)
    run_summary = summary(run_dir) if (run_dir / RUN).exists() else None
    job = job_of(run_dir)
    return Ran(
        name=run_dir.name,
        settings=settings,
        begun=run_dir.exists(),
        code=run_summary["exit"] if run_summary else None,
        summary=run_summary,
        limits=tuple(constraint["limit"] for constraint in job.get("constraint", [])),
        folder=run_dir,
        seed=job.get("seed", settings.get("seed")),
        objective=objective_of(job) if begun else {},
        label=str(settings.get(LABEL, "")),
        warnings=run_warnings(run_dir, job) if run_summary else [],
    )


def _parsed(name: str, cell: str) -> object:
    """The value of a setting, from the text that `csv` made of it; a label is a text, whatever it looks like."""
    if name == LABEL:
        return cell
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
    """The settings of a sweep, or of several runs, to choose among; UsageError when none of the runs has finished."""
    points = read_points(where)
    if not any(point.finished for point in points):
        raise UsageError(f"{named(where)}: none of {len(points)} runs has finished; run them, or go on with --resume")
    return settings_of(points)


def named(where: Folders) -> str:
    """The folders, as messages name them."""
    return str(where) if isinstance(where, Path) else ", ".join(map(str, where))
