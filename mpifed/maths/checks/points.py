"""Where a user's class is tried: a few samples, at parameters around those of its start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from mpifed.core.record import Array, Record, map_leaves

SAMPLES = 6
_START = 100.0  # scores of the start beyond that are left out: exponentials overflow there
_NUDGE = 0.3


class Point(NamedTuple):
    """Arguments of a loss, in float64."""

    head: Record
    scores: Array  # [..., s, h]
    y: Array  # [..., s]

    def rows(self, which: slice | Array) -> Point:
        """Some of the samples."""
        return self._replace(scores=self.scores[..., which, :], y=self.y[..., which])


class Origin(NamedTuple):
    """What points are made from."""

    head: Record  # of the start, in float64
    scores: Array  # [s, h] of a few rows at the start
    targets: Array  # [s] classes or real numbers
    outputs: int  # number of classes; 0 of real targets
    lead: tuple[int, ...]  # leading axes of what the job computes: (1,) of rows, () of columns and cells


def points(origin: Origin, rng: Generator) -> list[Point]:
    """Scores near those of the start, of a few units, and near the targets where these are real numbers.

    Of classes every sample gets any, whatever is in the data: a loss is to be right for all of them.
    """
    shape = origin.scores.shape
    known = np.isfinite(origin.scores).all() and np.abs(origin.scores).max(initial=0.0) <= _START
    near = origin.scores if known else np.zeros(shape)
    around = [near + 0.5 * rng.standard_normal(shape), 3.0 * rng.standard_normal(shape)]
    base = origin.targets[:, None] if not origin.outputs else np.zeros((shape[0], 1))
    around.append(base + rng.standard_normal(shape))
    found = [Point(nudged(origin.head, rng), scores, _targets(origin, rng)) for scores in around]
    return [_led(point, origin.lead) for point in found]


def nudged(record: Record, rng: Generator, by: float = _NUDGE) -> Record:
    """Every number moved by a random one of size `by`, times that of its leaf's numbers unless these are zeros."""

    def moved(leaf: Array) -> Array:
        size = float(np.sqrt(np.mean(np.square(leaf, dtype=np.float64)))) if leaf.size else 0.0
        return leaf + by * (size if np.isfinite(size) and size else 1.0) * rng.standard_normal(leaf.shape)

    return map_leaves(moved, record)


def wide(record: Record) -> Record:
    """The record in float64."""
    return map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), record)


def _targets(origin: Origin, rng: Generator) -> Array:
    if not origin.outputs:
        return origin.targets
    count = len(origin.targets)
    each = rng.permutation(origin.outputs)[:count]  # as many different ones as there are
    return np.concatenate([each, rng.integers(origin.outputs, size=count - len(each))]).astype(origin.targets.dtype)


def _led(point: Point, lead: tuple[int, ...]) -> Point:
    scores, y = point.scores, point.y
    return Point(point.head, scores.reshape(*lead, *scores.shape), y.reshape(*lead, *y.shape))
