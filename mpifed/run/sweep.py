"""Sweeps: the points of a job's `[sweep]` grid, each a run of its own."""

from __future__ import annotations

import copy
import csv
import io
import itertools
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.core.errors import UsageError
from mpifed.run.config import Job, put_key
from mpifed.run.history import SUMMARY, aside, read_json, summary


class Point(NamedTuple):
    """One run of a sweep."""

    name: str  # folder within the sweep's
    settings: dict[str, Any]  # what sets it apart, by "table.key"
    job: Job


def points(table: dict[str, Any], source: str) -> list[Point]:
    """The jobs that `table` describes: one, or the grid of its `[sweep]`, seeds fastest.

    Raises
    ------
    UsageError
        when the sweep is no table of lists, or any point is no valid job.
    """
    single = {key: value for key, value in table.items() if key != "sweep"}
    grid = table.get("sweep", {})
    if not isinstance(grid, dict):
        raise UsageError(f'{source}: [sweep] must be a table, with "table.key" = [values] and seeds = how many')
    seeds = grid.get("seeds", 1)
    if not isinstance(seeds, int) or seeds < 1:
        raise UsageError(f"{source}: [sweep] seeds = {seeds!r}: expected how many, 1 or more")
    axes = {key: values for key, values in grid.items() if key != "seeds"}
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f'{source}: [sweep] {key} = {values!r}: must be a list, as in "algorithm.batch" = [1, 10]')
    if seeds > 1:
        first = table.get("seed", 1)
        axes["seed"] = list(range(first, first + seeds))
    found = []
    for number, values in enumerate(itertools.product(*axes.values())):
        changed = copy.deepcopy(single)
        settings = dict(zip(axes, values, strict=True))
        for key, value in settings.items():
            put_key(changed, key, value)
        found.append(Point(f"point-{number:04d}", settings, Job.check(changed, source)))
    return found


def finished(run_dir: Path) -> bool:
    """Whether a run has come to its end."""
    return (run_dir / "run.json").exists() and read_json(run_dir / "run.json")["exit"] == 0


def write_sweep(folder: Path, found: list[Point]) -> None:
    """sweep.csv: a row for each point, with its settings and what `summary` says of its run; empty where not run."""
    names = list(found[0].settings)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["point", *names, *SUMMARY])
    for point in found:
        run_dir = folder / point.name
        values = summary(run_dir) if (run_dir / "run.json").exists() else dict.fromkeys(SUMMARY)
        rows.writerow([point.name, *point.settings.values(), *values.values()])
    with aside(folder / "sweep.csv") as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
