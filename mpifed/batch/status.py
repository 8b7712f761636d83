"""`mpifed status`: how runs and sweeps stand, why, and what to do next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any

from mpifed.batch.states import STATES, Look, State, fails_again, inside, look
from mpifed.batch.traces import Traces, iso
from mpifed.core.errors import DataError, UsageError
from mpifed.core.text import command_line, shown
from mpifed.run.best import JOB, toml_text
from mpifed.run.units import human_seconds

_WIDEST, _LONGEST = 160, 2000  # characters of what is said about a point, and about a run; --json has all
_GOES_ON = ("resumable", "waiting", "unknown", "failed")


def looks(folders: Iterable[Path]) -> tuple[list[Look], list[str]]:
    """How each run or sweep stands, also those inside a folder that is none, and what is wrong with the others."""
    found, wrong = [], []
    for folder in [run for given in folders for run in inside(given) or [given]]:
        try:
            found.append(look(folder))
        except DataError as error:
            wrong.append(str(error))
    return found, wrong


def text(found: Iterable[Look]) -> str:
    """Runs and sweeps for a person."""
    return "\n\n".join("\n".join(_lines(one)) for one in found)


def described(found: Look) -> dict[str, Any]:
    """A run or sweep as an object."""
    return {
        "folder": str(found.folder),
        "kind": "sweep" if found.sweep else "run",
        "submitted": [one._asdict() for one in found.record.submissions] if found.record else [],
        "slurm": found.asked,
        "counts": {state: len(found.of(state)) for state in STATES},
        "points": [_point(one) for one in found.points],
        "next": next_command(found),
    }


def _point(one: State) -> dict[str, Any]:
    trace = one.traces
    return {
        "point": one.name,
        "settings": one.settings,
        "state": one.state,
        "exit": one.exit,
        "why": one.why,
        "job": one.job,
        "round": trace.round,
        "rounds": trace.rounds,
        "checkpoint": trace.checkpoint,
        "measured": trace.measured,
        "objective": trace.objective,
        "changed": iso(trace.changed),
    }


def _lines(found: Look) -> Iterator[str]:
    counts = Counter(one.state for one in found.points)
    many = f"sweep of {len(found.points)} points: " if found.sweep else "run: "
    there = [f"{counts[state]} {state}" if found.sweep else state for state in STATES if counts[state]]
    yield f"{found.folder}: {many}{', '.join(there)}"
    rows = [("point", "state", "round", "objective", "changed", "why")] if found.sweep else []
    varying = list(found.points[0].settings) if found.points else []
    for one in found.points:
        settings = " ".join(f"{key.rpartition('.')[2]}={toml_text(one.settings[key])}" for key in varying)
        trace = one.traces
        rows.append((
            f"{one.name}  {settings}".rstrip(),
            one.state,
            "" if trace.round is None else f"{trace.round}{f'/{trace.rounds}' if trace.rounds else ''}",
            "" if trace.objective is None else f"{trace.objective:.6g}{_of_when(trace)}",
            "" if trace.changed is None else f"{human_seconds(max(0.0, time.time() - trace.changed))} ago",
            shorten(shown(one.why, len(one.why)), _WIDEST if found.sweep else _LONGEST, placeholder=" ..."),
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:{'>' if column in (2, 3) else '<'}{widths[column]}}" for column, cell in enumerate(row)]
        yield "  " + "  ".join(cells).rstrip()
    yield f"next: {next_command(found)}"


def _of_when(trace: Traces) -> str:
    """Of which round an objective is, where it is not the last one."""
    return "" if trace.measured in (trace.round, None) else f" (round {trace.measured})"


def next_command(found: Look) -> str:
    """The one thing to do now."""
    left = [one for one in found.of(*_GOES_ON) if not fails_again(one)]
    if left and not (not found.sweep and found.of("queued", "running")):
        return _going_on(found, left)
    busy = found.of("queued", "running")
    if busy:
        jobs = dict.fromkeys(str(one.job).partition("_")[0] for one in busy if one.job)
        return f"squeue --jobs={','.join(jobs)}" if jobs else command_line("mpifed", "status", found.folder)
    return command_line("mpifed", "compare" if found.sweep else "show", found.folder)


def _going_on(found: Look, left: list[State]) -> str:
    """How the rest is run: as it was submitted, or by hand."""
    first = ""
    if all(one.exit == UsageError.exit_code for one in left):
        first = f"correct {found.record.job if found.record else 'the job'}, then "
    if found.record is not None and found.record.submissions:
        return first + command_line("mpifed", *found.record.submissions[-1].command)
    job = found.folder / JOB
    words = ["mpirun", "-n", "P", "mpifed", "run", job if job.exists() else "JOB.toml", "--out", found.folder]
    return first + command_line(*words, *["--resume"] * any(one.traces.begun for one in found.points))
