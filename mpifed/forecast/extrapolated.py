"""The costs measured in a rehearsal, and extrapolated ones.

Extrapolation is linear, from two rehearsals with fewer local steps or a narrower network: time, bytes and memory grow
linearly with the numbers of local steps and of hidden units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.record import Array, Record, map_leaves
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.forecast.synthetic_shards import Scenario

_WHOLE_S = 0.5  # rounds that take no longer are rehearsed with all local steps
_FEW = 2  # local steps of the shorter rehearsal; a single one is computed in another way
_ALWAYS_WHOLE = 16  # local steps: so many or fewer are rehearsed as they are, however long they take
_WIDE = 10**6  # weights in the first layer of a network


class MeasuredCost(NamedTuple):
    """The costs measured in a rehearsal."""

    hosting: float  # seconds that grow with the number of clients the rank hosts
    opening: float  # seconds to open sums, independent of that number
    memory: float  # bytes, beyond those of the process before
    exchanges: dict[str, dict[str, float]]  # cost of each exchange, once, and of "keys"; see `mpifed.results.costs`
    accounts: dict[str, dict[str, float]]  # counters of each exchange, once; see `mpifed.job.time_model`
    broadcasts: dict[str, Record]  # by exchange
    partners: int = 0  # number of clients with whom each participating client shares masks
    processor: float = 0.0  # seconds of processor time, which other processes hardly change
    extrapolated: tuple[str, ...] = ()  # what was rehearsed only in part, and how much of it

    @property
    def seconds(self) -> float:
        return self.hosting + self.opening


NO_COST = MeasuredCost(0.0, 0.0, 0.0, {}, {}, {})


class Reducible(NamedTuple):
    """A quantity that a rehearsal can reduce."""

    what: str
    whole: int  # its value in the job
    of: Callable[[int], Scenario]  # the scenario with another value


def narrowed(scenario: Scenario, play: Callable[[Scenario], MeasuredCost]) -> MeasuredCost:
    """The cost of `play`; for a wide network extrapolated from two narrower ones."""
    width = _width(scenario)
    if width is None:
        return play(scenario)
    narrow, wide = (max(part, _WIDE * part // (2 * _per_unit(scenario))) for part in (1, 2))
    return extrapolate(width, narrow, play(width.of(narrow)), wide, play(width.of(wide)))


def shortened(scenario: Scenario, play: Callable[[Scenario], MeasuredCost]) -> MeasuredCost:
    """The cost of `play`; for many slow local steps extrapolated from two smaller numbers of them."""
    steps = _steps(scenario)
    if steps is None:
        return play(scenario)
    short = play(steps.of(_FEW))
    if short.seconds * steps.whole <= _FEW * _WHOLE_S:
        return play(scenario)
    more = max(2 * _FEW, int(_FEW * _WHOLE_S / short.seconds))
    return extrapolate(steps, _FEW, short, more, play(steps.of(more)))


def extrapolate(part: Reducible, few: int, small: MeasuredCost, more: int, large: MeasuredCost) -> MeasuredCost:
    """The cost of the whole `part`, extrapolated linearly from the costs of `few` and `more` of it."""

    def at(a: float, b: float) -> float:
        return a + max(b - a, 0) * (part.whole - few) / (more - few)

    def counts(a: ReadOnlyTable, b: ReadOnlyTable) -> Table:
        """Extrapolate each entry; integers stay integers."""
        return {
            key: counts(a[key], b[key]) if isinstance(b[key], Mapping)
            else type(b[key])(round(at(a[key], b[key])) if isinstance(b[key], int) else at(a[key], b[key]))
            for key in b
        }  # fmt: skip

    def shaped(a: Array, b: Array) -> Array:
        """Zeros of the extrapolated shape, which take no memory."""
        shape = [round(at(i, j)) for i, j in zip(np.shape(a), np.shape(b), strict=True)]
        return np.broadcast_to(np.zeros((), np.asarray(b).dtype), shape)

    return large._replace(
        hosting=at(small.hosting, large.hosting), opening=at(small.opening, large.opening),
        memory=at(small.memory, large.memory), processor=at(small.processor, large.processor),
        exchanges=counts(small.exchanges, large.exchanges),
        accounts=counts(small.accounts, large.accounts),
        broadcasts={
            name: map_leaves(shaped, small.broadcasts[name], broadcast) for name, broadcast in large.broadcasts.items()
        },
        extrapolated=(*large.extrapolated, f"{few} and {more} of {part.whole} {part.what}"),
    )  # fmt: skip


def _width(scenario: Scenario) -> Reducible | None:
    """The hidden units of a wide network, of several layers those of the first; None for other models."""
    problem = scenario.algorithm.problem
    hidden = problem.objective.hidden
    if hidden is None:
        return None
    first, *others = (hidden,) if isinstance(hidden, int) else hidden
    if first * _per_unit(scenario) <= _WIDE or first < 4:
        return None

    def of(count: int) -> Scenario:
        objective: Any = problem.objective  # a dataclass with that field, as it has hidden units
        objective = dataclasses.replace(objective, hidden=(count, *others) if others else count)
        return _with(scenario, problem=dataclasses.replace(problem, objective=objective))

    return Reducible("units of the first hidden layer" if others else "hidden units", first, of)


def _per_unit(scenario: Scenario) -> int:
    """Weights that a unit of the first hidden layer adds: from the features, and to a second hidden layer."""
    hidden = scenario.algorithm.problem.objective.hidden
    return scenario.data.features + (hidden[1] if isinstance(hidden, tuple) and len(hidden) > 1 else 0)


def _steps(scenario: Scenario) -> Reducible | None:
    """The local steps of a client in a round, if there are many; else None."""
    settings = vars(scenario.algorithm)
    key = next((key for key in ("local_steps", "local_epochs", "inner") if settings.get(key)), None)
    if key is None:
        return None
    count, others = settings[key], dict[str, None]()
    if key == "local_epochs" and "local_steps" in settings:
        count *= -(-int(scenario.data.counts.mean()) // settings["batch_size"])
        key, others = "local_steps", {key: None}
    if count <= _ALWAYS_WHOLE:
        return None
    return Reducible(key.replace("_", " "), count, lambda number: _with(scenario, **{key: number}, **others))


def _with(scenario: Scenario, **changes: Any) -> Scenario:  # fields of any algorithm
    """The scenario with other settings of its algorithm."""
    algorithm: Any = scenario.algorithm  # a dataclass, of any algorithm
    return scenario._replace(algorithm=dataclasses.replace(algorithm, **changes))
