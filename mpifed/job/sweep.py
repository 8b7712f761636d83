"""Sweeps: the points of a job's `[sweep]` grid, each a run of its own."""

from __future__ import annotations

import copy
import itertools
import math
from typing import NamedTuple

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.core.text import shown, wrong_line
from mpifed.job.job import Job
from mpifed.job.loading import put_key

MOST = 10_000  # points of a sweep: their names have four digits
METHODS = "methods"  # of [sweep]: tables that change together, as [algorithm] and [client_optimizer]


class SweepPoint(NamedTuple):
    """A run of a sweep."""

    name: str  # folder within the sweep's
    settings: Table  # the values of the swept keys, by "table.key"
    job: Job


def points(table: Table, source: str, *, imports: bool = True) -> list[SweepPoint]:
    """The jobs that `table` describes: one, or the grid of its `[sweep]`, seeds fastest; `imports` as in `Job.check`.

    Raises
    ------
    UsageError
        when the sweep is not a table of lists, or a point is not a valid job.
    """
    single = {key: value for key, value in table.items() if key != "sweep"}
    grid = table.get("sweep", {})
    if not isinstance(grid, dict):
        raise UsageError(f'{source}: [sweep] must be a table, with "table.key" = [values] and seeds = how many')
    seeds, first = grid.get("seeds", 1), table.get("seed", 1)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MOST:
        raise UsageError(f"{source}: [sweep] seeds = {shown(repr(seeds))}: expected how many, from 1 to {MOST}")
    axes = {key: values for key, values in grid.items() if key not in ("seeds", METHODS)}
    if METHODS in grid:
        axes = {METHODS: _methods(grid[METHODS], source), **axes}
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(
                f"{source}: [sweep] {shown(key)} = {shown(repr(values))}: must be a list, as in "
                '"algorithm.batch_size" = [1, 10]'
            )
    if seeds > 1 and "seed" in axes:
        raise UsageError(f"{source}: [sweep] seeds = {seeds} and a list of seed: each sets the seeds; give one of them")
    if seeds > 1 and isinstance(first, int):  # else the first point says what is wrong with it
        axes["seed"] = list(range(first, first + seeds))
    if (count := math.prod(map(len, axes.values()))) > MOST:
        raise UsageError(f"{source}: [sweep] has {count} points, and may have {MOST}; make several sweeps of it")
    all_points = []
    for number, values in enumerate(itertools.product(*axes.values())):
        changed = copy.deepcopy(single)
        settings = dict(zip(axes, values, strict=True))
        method: Table = dict(settings.pop(METHODS, {}))
        labels = [method.pop("label")] if "label" in method else []
        for name, part in method.items():
            changed.pop(name, None)
            changed |= {name: copy.deepcopy(part)} if part else {}
        for key, value in settings.items():
            if isinstance(value, dict) and "label" in value:
                labels.append(_label(value, key, source))
                settings[key] = value = {name: part for name, part in value.items() if name != "label"}
            put_key(changed, key, value)
        label = {"label": ", ".join(labels)} if labels else {}
        settings = {**label, **method, **settings}
        all_points.append(SweepPoint(point_name(number), settings, Job.check(changed, source, imports=imports)))
    return all_points


def _label(table: Table, key: str, source: str) -> str:
    """The label of a table that a sweep sets."""
    if not isinstance(table["label"], str) or wrong_line(table["label"]):
        raise UsageError(
            f"{source}: [sweep] {shown(key)}: label = {shown(repr(table['label']))}: expected a text in one line"
        )
    return table["label"]


def _methods(methods: object, source: str) -> list[Table]:
    """Each method's tables, by name; empty tables for those that only other methods have."""
    if not isinstance(methods, list) or not methods or not all(isinstance(method, dict) for method in methods):
        raise UsageError(
            f"{source}: [sweep] {METHODS}: must be a list of tables, as in {METHODS} = [{{algorithm = {{...}}, "
            "client_optimizer = {...}}]"
        )
    labels = [method.get("label") for method in methods]
    if any(labels) and not (all(isinstance(label, str) for label in labels) and len(set(labels)) == len(labels)):
        raise UsageError(f"{source}: [sweep] {METHODS}: give every method a label of its own, or none")
    for name, value in ((name, value) for method in methods for name, value in method.items()):
        if not isinstance(value, dict) and name != "label":
            raise UsageError(
                f"{source}: [sweep] {METHODS}: {shown(name)} = {shown(repr(value))}: must be a whole table"
            )
    names = list(dict.fromkeys(name for method in methods for name in method))
    return [{name: method.get(name, {}) for name in names} for method in methods]


def point_name(number: int) -> str:
    """The folder of a point within the sweep's."""
    return f"point-{number:04d}"
