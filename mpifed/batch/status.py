"""`mpifed show` of sweeps, of folders and of what has not ended: states, and what to do next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import shorten

import click
from pandas import DataFrame

from mpifed.batch.states import STATES, RunStatus, found_in, status_of
from mpifed.results.points import is_sweep, point_settings, told
from mpifed.results.text import value_of
from mpifed.text import shown

_WIDEST = 160  # characters of a reason; --json has all of it


def show_status(folder: Path, as_json: bool) -> None:
    """Print the status of each run and sweep in a folder."""
    statuses = [status_of(run) for run in found_in(folder)]
    click.echo(
        json.dumps([status.table() for status in statuses], indent=2) if as_json else "\n".join(_lines(statuses))
    )


def _lines(statuses: Iterable[RunStatus]) -> Iterator[str]:
    """A line for each run and point, and the next command of each run or sweep."""
    rows, following, counts = [], [], Counter[str]()
    for status in statuses:
        apart = dict(point_settings(status.folder)) if is_sweep(status.folder) else {}
        for point in status.points:
            of = "" if point.rounds is None else f"/{point.rounds}"
            rows.append({
                "run": str(status.folder / point.point if status.sweep else status.folder),
                "state": point.state,
                "round": "" if point.round is None else f"{point.round}{of}",
                "objective": "" if point.objective is None else value_of("objective", point.objective),
                "accuracy": "" if point.accuracy is None else value_of("test_accuracy", point.accuracy),
                "settings": told(apart.get(point.point, {})),
                "why": shorten(shown(point.why, len(point.why)), _WIDEST, placeholder=" ..."),
            })  # fmt: skip
        counts.update(point.state for point in status.points)
        following.append(f"next: {status.next}")
    table = DataFrame(rows).set_index("run").rename_axis(None)
    yield table.loc[:, table.ne("").any()].to_string()
    yield ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    yield from following
