"""`mpifed status`: the states of runs and sweeps, one by one or all below a folder, why, and what to do next."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from mpifed.batch.run_files import RunFiles, iso
from mpifed.batch.states import STATES, RunStatus, State, fails_again, inside, look
from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.core.text import command_line, counted, fitted, shown
from mpifed.files.run_folder import JOB
from mpifed.results.text import human_seconds, toml_text

_WIDEST, _LONGEST = 160, 2000  # characters of the reason shown for a point and for a run; --json has all of it
_HEADINGS = {first: (first, "state", "round", "objective", "accuracy", "changed") for first in ("run", "point")}
_NUMBERS = (2, 3, 4)  # columns of a table that are flush right
_REASONS = 5  # runs below a folder of which the reason is shown
_GOES_ON = ("resumable", "waiting", "unknown", "failed")


class Listed(NamedTuple):
    """What is at a path: one run or sweep, or all those below a folder."""

    path: Path
    statuses: list[RunStatus]
    is_folder: bool  # whether the path is neither a run nor a sweep


def statuses_of(folders: Iterable[Path]) -> tuple[list[Listed], list[str]]:
    """The status of each run or sweep, and of all those below other folders; and errors about the rest."""
    places = [(given, inside(given)) for given in folders]
    statuses, errors = look(run for given, below in places for run in below or [given])
    by_folder = {status.folder: status for status in statuses}
    listed = [
        Listed(given, [by_folder[run] for run in below or [given] if run in by_folder], bool(below))
        for given, below in places
    ]
    return [place for place in listed if place.statuses], errors


def text(places: Iterable[Listed], width: int | None = None) -> str:
    """The status of runs and sweeps as text, for a terminal of `width` characters if that is given."""
    parts = []
    for place in places:
        lines = [_folder_lines(place, width)] if place.is_folder else [_lines(each, width) for each in place.statuses]
        parts += ["\n".join(part) for part in lines]
    return "\n\n".join(parts)


def described(status: RunStatus) -> Table:
    """The status of a run or sweep as a JSON object."""
    return {
        "folder": str(status.folder),
        "kind": "sweep" if status.sweep else "run",
        "submitted": [submission._asdict() for submission in status.record.submissions] if status.record else [],
        "slurm": status.answered,
        "counts": {state: len(status.of(state)) for state in STATES},
        "points": [_point(point) for point in status.points],
        "next": next_command(status),
    }


def _point(point: State) -> Table:
    files = point.files
    return {
        "point": point.name,
        "settings": point.settings,
        "state": point.state,
        "exit": point.exit,
        "why": point.why,
        "job": point.job,
        "round": files.round,
        "rounds": files.rounds,
        "checkpoint": files.checkpoint,
        "measured": files.measured,
        "objective": files.objective,
        "accuracy": files.accuracy,
        "changed": iso(files.changed),
    }


def _lines(status: RunStatus, width: int | None) -> Iterator[str]:
    many = f"sweep of {len(status.points)} points: " if status.sweep else "run: "
    yield f"{status.folder}: {many}{_counts(status.points, status.sweep)}"
    varying = list(status.points[0].settings) if status.points else []
    rows, reasons = [], []
    for point in status.points:
        settings = " ".join(f"{key.rpartition('.')[2]}={toml_text(point.settings[key])}" for key in varying)
        rows.append([f"{point.name}  {settings}".rstrip(), point.state, *_numbers(point)])
        why = shown(point.why, len(point.why))
        reasons.append(shorten(why, _WIDEST if status.sweep else _LONGEST, placeholder=" ..."))
    if status.sweep:
        rows, reasons = [[*_HEADINGS["point"]], *rows], ["why", *reasons]
    whole = [[*row, why] for row, why in zip(rows, reasons, strict=True)]
    beside = width is None or not status.sweep or max(map(len, _table(whole, None))) <= width
    yield from _table(whole if beside else rows, width)
    if not beside:
        open_points = zip(status.points, reasons[1:], strict=True)
        yield from (f"{point.name}: {why}" for point, why in open_points if point.state not in ("done", "waiting"))
    yield f"next: {next_command(status)}"


def _folder_lines(place: Listed, width: int | None) -> Iterator[str]:
    """All runs below a folder, a row for each, points of sweeps included; then why some did not end."""
    runs = [
        (Path(status.folder, point.name) if status.sweep else status.folder, point)
        for status in place.statuses
        for point in status.points
    ]
    yield f"{place.path}: {counted(len(runs), 'run')}: {_counts([point for _, point in runs], True)}"
    rows = [[*_HEADINGS["run"]]]
    for path, point in runs:
        code = f" ({point.exit})" if point.state == "failed" and point.exit is not None else ""
        rows.append([str(path.relative_to(place.path)), f"{point.state}{code}", *_numbers(point)])
    yield from _table(rows, width)
    open_runs = [(path, point) for path, point in runs if point.state in ("failed", "unknown", "resumable")]
    for path, point in open_runs[:_REASONS]:
        yield f"{path}: {point.state}: {shorten(shown(point.why, len(point.why)), _WIDEST, placeholder=' ...')}"
    if len(open_runs) > _REASONS:
        yield f"and {len(open_runs) - _REASONS} more of these"
    if open_runs:
        first = next(status.folder for status in place.statuses if open_runs[0][1] in status.points)
        yield f"next: {command_line('mpifed', 'status', first)}"


def _counts(points: Sequence[State], many: bool) -> str:
    """How many points are in each state; of a single one, its state."""
    counts = Counter(point.state for point in points)
    return ", ".join(f"{counts[state]} {state}" if many else state for state in STATES if counts[state])


def _numbers(point: State) -> list[str]:
    """Round, objective, accuracy, and time since the last change."""
    files = point.files
    return [
        "" if files.round is None else f"{files.round}{f'/{files.rounds}' if files.rounds else ''}",
        "" if files.objective is None else f"{files.objective:.6g}{_of_when(files)}",
        "" if files.accuracy is None else f"{files.accuracy:.2%}",
        "" if files.changed is None else f"{human_seconds(max(0.0, time.time() - files.changed))} ago",
    ]


def _table(rows: list[list[str]], width: int | None) -> Iterator[str]:
    """The lines of a table, indented, whose first row has its headings; they have `width` characters at most.

    Where it is too wide, cells break at two spaces; where that is not enough, each row becomes a list of its cells.
    """
    lines, room = _aligned(rows), sys.maxsize if width is None else width - 2
    if max(map(len, lines)) > room:
        lines = _aligned([part for row in rows for part in _parts(row)])
    if max(map(len, lines)) > room:
        (first, *headings), *others = rows
        label = max(map(len, headings), default=0)
        lines = []
        for name, *cells in others:
            listed = [f"  {heading:{label}}  {cell}" for heading, cell in zip(headings, cells, strict=True) if cell]
            lines += fitted("\n".join([f"{first} {name}", *listed]), room).split("\n")
    yield from (f"  {line}" for line in lines)


def _aligned(rows: list[list[str]]) -> list[str]:
    """A line of each row, its numbers flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{'>' if k in _NUMBERS else '<'}{widths[k]}}" for k, cell in enumerate(row)).rstrip()
        for row in rows
    ]


def _parts(row: list[str]) -> Iterator[list[str]]:
    """The rows of a row whose cells break at two spaces."""
    cells = [cell.replace("  ", "\0  ").split("\0") for cell in row]
    yield from map(list, zip_longest(*cells, fillvalue=""))


def _of_when(files: RunFiles) -> str:
    """The round at which the objective was evaluated, if that is not the last round."""
    return "" if files.measured in (files.round, None) else f" (round {files.measured})"


def next_command(status: RunStatus) -> str:
    open_points = [point for point in status.of(*_GOES_ON) if not fails_again(point)]
    if open_points and not (not status.sweep and status.of("queued", "running")):
        return _going_on(status, open_points)
    busy = status.of("queued", "running")
    if busy:
        jobs = dict.fromkeys(str(point.job).partition("_")[0] for point in busy if point.job)
        return f"squeue --jobs={','.join(jobs)}" if jobs else command_line("mpifed", "status", status.folder)
    return command_line("mpifed", "compare" if status.sweep else "show", status.folder)


def _going_on(status: RunStatus, open_points: list[State]) -> str:
    """The command that runs the remaining points: the last submission, or `mpifed run`."""
    first = ""
    if all(point.exit == UsageError.exit_code for point in open_points):
        first = f"correct {status.record.job if status.record else 'the job'}, then "
    if status.record is not None and status.record.submissions:
        return first + command_line("mpifed", *status.record.submissions[-1].command)
    job = status.folder / JOB
    words = ["mpirun", "-n", "P", "mpifed", "run", job if job.exists() else "JOB.toml", "--out", status.folder]
    return first + command_line(*words, *["--resume"] * any(point.files.begun for point in status.points))
