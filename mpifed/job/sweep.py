"""Sweeps: the points of a job's `[sweep]` grid, each a run of its own."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import re
from typing import NamedTuple

from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.job.job import Job
from mpifed.job.reading import put_key
from mpifed.text import counted, shown, wrong_line

MOST = 10_000  # points of a sweep
POINT = re.compile("point-[0-9a-f]{4,16}")  # the name of a point; four digits in earlier versions
METHODS = "methods"  # of [sweep]: tables that change together, as [algorithm] and [client_optimizer]
LABEL = "label"  # of a table in a list of [sweep]: what tables and figures call the points that have it


class SweepPoint(NamedTuple):
    """A run of a sweep."""

    name: str  # folder within the sweep's
    settings: Table  # the values of the swept keys, by "table.key"; first `label`, where they have one
    job: Job


def points(table: Table, source: str) -> list[SweepPoint]:
    """The jobs that `table` describes: one, or the grid of its `[sweep]`, seeds fastest.

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
    labelled = [_labelled(values, f"{source}: [sweep] {shown(key)}") for key, values in axes.items()]
    all_points: dict[str, SweepPoint] = {}
    for values in itertools.product(*labelled):
        changed = copy.deepcopy(single)
        label = ", ".join(label for label, _ in values if label)
        settings: Table = {key: value for key, (_, value) in zip(axes, values, strict=True)}
        method: Table = settings.pop(METHODS, {})
        for name, part in method.items():
            changed.pop(name, None)
            changed |= {name: copy.deepcopy(part)} if part else {}
        for key, value in settings.items():
            put_key(changed, key, copy.deepcopy(value))
        settings = {**({LABEL: label} if label else {}), **method, **settings}
        name = point_name({"seed": first, **settings})
        if name in all_points:
            raise UsageError(f"{source}: [sweep] has {shown(json.dumps(settings, default=str))} twice; list it once")
        all_points[name] = SweepPoint(name, settings, Job.check(changed, source))
    return list(all_points.values())


def _labelled(values: list[object], where: str) -> list[tuple[str, object]]:
    """The values of an axis, each with its label, which is empty where the axis has none."""
    labels = [value.get(LABEL) if isinstance(value, dict) else None for value in values]
    if not any(label is not None for label in labels):
        return [("", value) for value in values]
    texts = [label for label in labels if isinstance(label, str) and label.strip() and not wrong_line(label)]
    if len(set(texts)) < len(values):
        raise UsageError(
            f"{where}: has the labels {shown(repr(labels))}; give every table a label of its own, a line of text, or "
            "none of them"
        )
    tables = ({key: part for key, part in value.items() if key != LABEL} for value in values if isinstance(value, dict))
    return list(zip(texts, tables, strict=True))


def _methods(methods: object, source: str) -> list[Table]:
    """Each method's tables, by name; empty tables for those that only other methods have."""
    if not isinstance(methods, list) or not methods or not all(isinstance(method, dict) for method in methods):
        raise UsageError(
            f"{source}: [sweep] {METHODS}: must be a list of tables, as in {METHODS} = [{{algorithm = {{...}}, "
            "client_optimizer = {...}}]"
        )
    for name, value in ((name, value) for method in methods for name, value in method.items()):
        if not isinstance(value, dict) and name != LABEL:
            raise UsageError(
                f"{source}: [sweep] {METHODS}: {shown(name)} = {shown(repr(value))}: must be a whole table"
            )
    names = [name for name in dict.fromkeys(name for method in methods for name in method) if name != LABEL]
    return [
        {name: method[name] for name in (LABEL,) if name in method} | {name: method.get(name, {}) for name in names}
        for method in methods
    ]


def point_name(settings: ReadOnlyTable) -> str:
    """The folder of a point within the sweep's: a digest of its settings, so that a sweep may get more of them.

    The empty tables of what only other methods have are no part of it.
    """
    told = {key: value for key, value in settings.items() if value != {}}
    return f"point-{hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:10]}"


def numbered(all_points: list[SweepPoint], point: str) -> SweepPoint:
    """The point of that name, or of that number, counted from 0; UsageError where there is none."""
    names = {name: each for number, each in enumerate(all_points) for name in (str(number), each.name)}
    if point not in names:
        raise UsageError(
            f"--point {shown(point)}: there are {counted(len(all_points), 'point')}: give a name, or a number from 0"
        )
    return names[point]
