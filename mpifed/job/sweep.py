"""The points of a job's `[sweep]` grid, and the trials of `[tune]`: each a run of its own."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from mpifed.contract import fields_of
from mpifed.core.errors import UsageError
from mpifed.core.tables import ReadOnlyTable, Table, dotted
from mpifed.job.job import Job
from mpifed.job.reading import put_key
from mpifed.job.schema import ALGORITHM, CLIENT, SERVER
from mpifed.job.settings import Settings, Wrong, errors_of, key_of
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
    """The jobs that `table` describes: one, the trials of its `[tune]`, or the grid of its `[sweep]`, seeds fastest.

    Raises
    ------
    UsageError
        when the sweep is not a table of lists, or a point is not a valid job.
    """
    if "tune" in table:
        return _trials(table, source)
    single = {key: value for key, value in table.items() if key != "sweep"}
    grid = table.get("sweep", {})
    if not isinstance(grid, dict):
        raise UsageError(f'{source}: [sweep] must be a table, with "table.key" = [values] and seeds = how many')
    seeds, first = grid.get("seeds", 1), table.get("seed", 1)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MOST:
        raise UsageError(f"{source}: [sweep] seeds = {shown(repr(seeds))}: expected how many, from 1 to {MOST}")
    axes = {key: grid[key] for key in sorted(grid, key=lambda key: key != METHODS) if key != "seeds"}
    for key, values in axes.items():
        if wrong := _wrong_axis(key, values):
            raise UsageError(f"{source}: [sweep] {shown(key)}{wrong}")
    if seeds > 1 and "seed" in axes:
        raise UsageError(f"{source}: [sweep] seeds = {seeds} and a list of seed: each sets the seeds; give one of them")
    if seeds > 1 and isinstance(first, int):  # else the first point says what is wrong with it
        axes["seed"] = list(range(first, first + seeds))
    if (count := math.prod(map(len, axes.values()))) > MOST:
        raise UsageError(f"{source}: [sweep] has {count} points, and may have {MOST}; make several sweeps of it")
    tables = {name: None for method in axes.get(METHODS, ()) for name in method if name != LABEL}  # of any method
    all_points: dict[str, SweepPoint] = {}
    for values in itertools.product(*axes.values()):
        settings, labels, changed = Table(), list[str](), copy.deepcopy(single)
        for key, value in zip(axes, copy.deepcopy(values), strict=True):
            if isinstance(value, dict) and LABEL in value:
                labels.append(value.pop(LABEL))
            if key != METHODS:
                settings[key] = value
                put_key(changed, key, copy.deepcopy(value))
                continue
            for name in tables:
                settings[name] = value.get(name, {})
                changed.pop(name, None)
                changed |= {name: copy.deepcopy(settings[name])} if settings[name] else {}
        settings = {**({LABEL: ", ".join(labels)} if labels else {}), **settings}
        name = point_name({"seed": first, **settings})
        if name in all_points:
            raise UsageError(f"{source}: [sweep] has {shown(json.dumps(settings, default=str))} twice; list it once")
        all_points[name] = SweepPoint(name, settings, Job.check(changed, source))
    return list(all_points.values())


def _wrong_axis(key: str, values: object) -> str:
    """What is wrong with the values of a key of [sweep], or with their labels, as text; empty where nothing is."""
    listed = list(values) if isinstance(values, list) else []
    tables = [value for value in listed if isinstance(value, dict)]
    if key == METHODS and (not listed or len(tables) < len(listed)):
        return f": must be a list of tables, as in {METHODS} = [{{algorithm = {{...}}, client_optimizer = {{...}}}}]"
    if not listed:
        return f' = {shown(repr(values))}: must be a list, as in "algorithm.batch_size" = [1, 10]'
    for name, part in ((name, part) for table in tables for name, part in table.items()):
        if key == METHODS and name != LABEL and not isinstance(part, dict):
            return f": {shown(name)} = {shown(repr(part))}: must be a whole table"
    labels = [table.get(LABEL) for table in tables]
    texts = {label for label in labels if isinstance(label, str) and label.strip() and not wrong_line(label)}
    if labels.count(None) < len(labels) and len(texts) < len(listed):
        return (
            f": has the labels {shown(repr(labels))}; give every table a label of its own, a line of text, or none of "
            "them"
        )
    return ""


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


# --- tuning -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tune(Settings):
    """Settings drawn by a Sobol sequence: all are run for a few rounds, and the best go on (successive halving).

    K. Jamieson, A. Talwalkar: "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (AISTATS 2016,
    arXiv:1502.07943).
    """

    trials: Annotated[int, Ge(1), Le(MOST)] = 16
    """How many settings are tried; a power of 2 fills the space best."""
    metric: str | None = None
    """Column of the history by which the best are chosen; where absent the objective, over training rows."""
    keep: Annotated[int, Ge(1), Le(MOST)] = 3
    """One trial of so many goes on, to so many times the rounds, and the last to `rounds`; 1: all run all rounds."""
    space: dict[str, object] = field(default_factory=dict)
    """What is varied, by "table.key": `{log = [1e-3, 1.0]}`, `{linear = [0.0, 0.9]}`, between integers integers, or a
    list of values; where absent what the method and its optimizers suggest, as `learning_rate`."""

    @classmethod
    def of(cls, table: ReadOnlyTable, source: str) -> Tune:
        """The `[tune]` of a job; `Wrong` lists what is wrong with it."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_json(json.dumps(table["tune"], default=str))
        except ValidationError as error:
            wrong = [each._replace(key=("tune", *each.key)) for each in errors_of(error, cls, table["tune"])]
            raise Wrong.of(source, wrong) from None

    def rungs(self, trials: int, rounds: int) -> list[tuple[int, int]]:
        """(rounds, trials) of each rung: each trial of the last has all rounds."""
        steps = 0
        while self.keep > 1 and self.keep ** (steps + 1) <= min(trials, rounds):
            steps += 1
        return [(-(-rounds // self.keep ** (steps - k)), trials // self.keep**k) for k in range(steps + 1)]


def _trials(table: ReadOnlyTable, source: str) -> list[SweepPoint]:
    plan, single = Tune.of(table, source), {key: value for key, value in table.items() if key != "tune"}
    space, seed = plan.space, table.get("seed", 1)
    with suppress(Exception):  # of a job that is none, as its check then says
        space = space or dict(_suggested(single))
    axes = sorted(dotted(space))
    if "sweep" in table:
        raise UsageError(f"{source}: [sweep] and [tune]: each says which runs there are; take one out")
    if not axes:
        Job.check(single, source)
        raise UsageError(f'{source}: [tune] space: missing, and the method suggests none; give "table.key" = {_FORMS}')
    from scipy.stats import qmc  # slow to import

    drawn = qmc.Sobol(len(axes), seed=np.random.default_rng(abs(seed) if isinstance(seed, int) else 0))
    trials: dict[str, SweepPoint] = {}
    for place in drawn.random_base2(math.ceil(math.log2(plan.trials)))[: plan.trials].tolist():
        settings = dict(itertools.starmap(partial(_setting, source), zip(axes, place, strict=True)))
        changed = copy.deepcopy(single)
        for key, value in settings.items():
            put_key(changed, key, value)
        name = point_name({"seed": seed, **settings})
        trials.setdefault(name, SweepPoint(name, settings, Job.check(changed, f"{source}, with [tune] space")))
    job = next(iter(trials.values())).job
    if job.privacy and job.privacy.noise_multiplier is None and len(plan.rungs(len(trials), job.rounds)) > 1:
        raise UsageError(
            f"{source}: [tune] keep = {plan.keep}: the noise of [privacy] epsilon is computed for all rounds of a run, "
            "so that none goes on to more of them as it began; give noise_multiplier, or keep = 1"
        )
    return list(trials.values())


_FORMS = "{log = [low, high]}, {linear = [low, high]} or a list of values"


def _suggested(table: ReadOnlyTable) -> Iterator[tuple[str, object]]:
    """The space of the fields of method and optimizers that have one, as `metadata={"tune": {"log": [1e-3, 1.0]}}`."""
    method = ALGORITHM.part(table["algorithm"]["name"])
    kinds = {"algorithm": ALGORITHM, "client_optimizer": CLIENT.of(method), "server_optimizer": SERVER.of(method)}
    for name, kind in ((name, kind) for name, kind in kinds.items() if kind):
        given = table.get(name, {})
        for each in fields_of(kind.part(given.get("name", "sgd"))):
            if "tune" in each.metadata:
                scheduled = ".initial" if isinstance(given.get(key_of(each)), dict) else ""
                yield f"{name}.{key_of(each)}{scheduled}", each.metadata["tune"]


def _setting(source: str, axis: tuple[str, object], at: float) -> tuple[str, object]:
    """A key and its value at a place of its range, from 0 to 1.

    Numbers have four digits, so that the last ones of a machine's powers change no trial.
    """
    key, _, form = axis[0].rpartition(".")
    match form, axis[1]:
        case "log", [int() | float() as low, int() | float() as high] if 0 < low < high and key != "rounds":
            value = low * (high / low) ** at
        case "linear", [int() | float() as low, int() | float() as high] if low < high and key != "rounds":
            value = low + (high - low) * at
        case _, [_, *_] as values if form not in ("log", "linear") and axis[0] != "rounds":
            return axis[0], values[int(at * len(values))]
        case _:
            raise UsageError(
                f"{source}: [tune] space: {shown(axis[0])} = {shown(repr(axis[1]))}: expected {_FORMS}, low below high "
                "and above 0 for log, of any key but rounds"
            )
    whole = isinstance(low, int) and isinstance(high, int)
    return key, round(value) if whole else min(max(low, float(f"{value:.4g}")), high)
