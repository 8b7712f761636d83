"""`mpifed status`: the states of runs and sweeps, why, and what to do next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import shorten

from mpifed.batch.run_files import RunFiles, iso
from mpifed.batch.states import STATES, RunStatus, State, fails_again, inside, look
from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import command_line, shown
from mpifed.files.run_folder import JOB
from mpifed.results.text import human_seconds, toml_text

_WIDEST, _LONGEST = 160, 2000  # characters of the reason shown for a point and for a run; --json has all of it
_GOES_ON = ("resumable", "waiting", "unknown", "failed")


def statuses_of(folders: Iterable[Path]) -> tuple[list[RunStatus], list[str]]:
    """The status of each run or sweep, also of those inside other folders; and errors about the rest."""
    statuses, errors = [], []
    for folder in [run for given in folders for run in inside(given) or [given]]:
        try:
            statuses.append(look(folder))
        except DataError as error:
            errors.append(str(error))
    return statuses, errors


def text(statuses: Iterable[RunStatus]) -> str:
    """The status of runs and sweeps as text."""
    return "\n\n".join("\n".join(_lines(status)) for status in statuses)


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
        "changed": iso(files.changed),
    }


def _lines(status: RunStatus) -> Iterator[str]:
    counts = Counter(point.state for point in status.points)
    many = f"sweep of {len(status.points)} points: " if status.sweep else "run: "
    listed = [f"{counts[state]} {state}" if status.sweep else state for state in STATES if counts[state]]
    yield f"{status.folder}: {many}{', '.join(listed)}"
    rows = [("point", "state", "round", "objective", "changed", "why")] if status.sweep else []
    varying = list(status.points[0].settings) if status.points else []
    for point in status.points:
        settings = " ".join(f"{key.rpartition('.')[2]}={toml_text(point.settings[key])}" for key in varying)
        files = point.files
        rows.append((
            f"{point.name}  {settings}".rstrip(),
            point.state,
            "" if files.round is None else f"{files.round}{f'/{files.rounds}' if files.rounds else ''}",
            "" if files.objective is None else f"{files.objective:.6g}{_of_when(files)}",
            "" if files.changed is None else f"{human_seconds(max(0.0, time.time() - files.changed))} ago",
            shorten(shown(point.why, len(point.why)), _WIDEST if status.sweep else _LONGEST, placeholder=" ..."),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:{'>' if column in (2, 3) else '<'}{widths[column]}}" for column, cell in enumerate(row)]
        yield "  " + "  ".join(cells).rstrip()
    yield f"next: {next_command(status)}"


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
