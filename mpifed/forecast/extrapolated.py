"""Rehearsals of what would take too long: of less local work or a narrower network, and the line through two of them.

What local steps and hidden cells cost grows with their number, and so do bytes and memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.record import map_leaves
from mpifed.forecast.cost import Cost
from mpifed.forecast.scenery import Stage

_WHOLE_S = 0.5  # what takes no longer is played as it is
_FEW = 2  # local steps; one alone is computed in another way
_SOME = 16  # local steps: no more are played as they are, however long they take
_WIDE = 10**6  # numbers of a network's first layer


class Part(NamedTuple):
    """What can be made smaller."""

    what: str
    whole: int
    of: Callable[[int], Stage]  # the same with so many


def narrowed(stage: Stage, play: Callable[[Stage], Cost]) -> Cost:
    """What `play` costs, of a wide network from two that are narrow."""
    width = _width(stage)
    if width is None:
        return play(stage)
    few, more = (max(part, _WIDE * part // (2 * stage.data.features)) for part in (1, 2))
    return line(width, few, play(width.of(few)), more, play(width.of(more)))


def shortened(stage: Stage, play: Callable[[Stage], Cost]) -> Cost:
    """What `play` costs: with all its local work where that takes a moment, else from less of it, twice."""
    steps = _steps(stage)
    if steps is None:
        return play(stage)
    one = play(steps.of(_FEW))
    if one.seconds * steps.whole <= _FEW * _WHOLE_S:
        return play(stage)
    more = max(2 * _FEW, int(_FEW * _WHOLE_S / one.seconds))
    return line(steps, _FEW, one, more, play(steps.of(more)))


def line(part: Part, few: int, small: Cost, more: int, large: Cost) -> Cost:
    """What the whole costs, from what `few` and `more` cost."""

    def at(a: float, b: float) -> float:
        return a + max(b - a, 0) * (part.whole - few) / (more - few)

    def counts(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
        """Whole numbers stay whole."""
        return {
            key: counts(a[key], b[key]) if isinstance(b[key], Mapping)
            else type(b[key])(round(at(a[key], b[key])) if isinstance(b[key], int) else at(a[key], b[key]))
            for key in b
        }  # fmt: skip

    def shaped(a: Any, b: Any) -> Any:
        """Zeros that take no memory, in the shape of the whole."""
        shape = [round(at(i, j)) for i, j in zip(np.shape(a), np.shape(b), strict=True)]
        return np.broadcast_to(np.zeros((), np.asarray(b).dtype), shape)

    return large._replace(
        hosting=at(small.hosting, large.hosting), opening=at(small.opening, large.opening),
        memory=at(small.memory, large.memory), exchanges=counts(small.exchanges, large.exchanges),
        accounts=counts(small.accounts, large.accounts),
        questions={name: map_leaves(shaped, small.questions[name], large.questions[name]) for name in large.questions},
        extrapolated=(*large.extrapolated, f"{few} and {more} of {part.whole} {part.what}"),
    )  # fmt: skip


def _width(stage: Stage) -> Part | None:
    """The hidden cells of a wide network."""
    problem = stage.algorithm.problem
    hidden = problem.objective.hidden
    if hidden is None or hidden * stage.data.features <= _WIDE or hidden < 4:
        return None

    def of(count: int) -> Stage:
        objective = dataclasses.replace(problem.objective, hidden=count)
        return _with(stage, problem=dataclasses.replace(problem, objective=objective))

    return Part("hidden cells", hidden, of)


def _steps(stage: Stage) -> Part | None:
    """What a client does again and again in a round, where that is more than a few times."""
    has = vars(stage.algorithm)
    key = next((key for key in ("local_steps", "local_epochs", "inner") if has.get(key)), None)
    if key is None:
        return None
    count, beside = has[key], {}
    if key == "local_epochs" and "local_steps" in has:
        count *= -(-int(stage.data.counts.mean()) // has["batch_size"])
        key, beside = "local_steps", {key: None}
    if count <= _SOME:
        return None
    return Part(key.replace("_", " "), count, lambda number: _with(stage, **{key: number}, **beside))


def _with(stage: Stage, **changes: Any) -> Stage:
    """The same with other settings of its algorithm."""
    algorithm: Any = stage.algorithm
    return stage._replace(algorithm=dataclasses.replace(algorithm, **changes))
