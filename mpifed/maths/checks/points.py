"""Points at which a user's class is tested: a few samples, at parameters near those of its start."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from mpifed.core.record import AnyRecord, Array, Record, map_leaves

SAMPLES = 6
_START = 100.0  # larger scores of the start are not used: exponentials overflow there
_NUDGE = 0.3


class TestedPoint(NamedTuple):
    """Arguments of `loss` and `slope`, in float64."""

    head: Record
    scores: Array  # [..., s, h]
    y: Array  # [..., s]

    def rows(self, at: slice | Array) -> TestedPoint:
        """The point with these samples only."""
        return self._replace(scores=self.scores[..., at, :], y=self.y[..., at])


class Origin(NamedTuple):
    """The start and the data from which `points` are made."""

    head: Record  # of the start, in float64
    scores: Array  # [s, h] of a few rows at the start
    targets: Array  # [s] classes or real numbers
    outputs: int  # number of classes; 0 for real targets
    lead: tuple[int, ...]  # leading axes of the job's arrays: (1,) for rows, () for columns and cells


def points(origin: Origin, rng: Generator) -> list[TestedPoint]:
    """Points with scores near those of the start, of a few units, and near the targets where these are real numbers.

    Classes are drawn at random, whatever the labels of the samples: a loss must be right for all classes.
    """
    shape: tuple[int, ...] = origin.scores.shape
    known = np.isfinite(origin.scores).all() and np.abs(origin.scores).max(initial=0.0) <= _START
    near = origin.scores if known else np.zeros(shape)
    around = [near + 0.5 * rng.standard_normal(shape), 3.0 * rng.standard_normal(shape)]
    base = origin.targets[:, None] if not origin.outputs else np.zeros((shape[0], 1))
    around.append(base + rng.standard_normal(shape))
    return [
        TestedPoint(
            nudged(origin.head, rng),
            scores.reshape(*origin.lead, *shape),
            _targets(origin, rng).reshape(*origin.lead, -1),
        )
        for scores in around
    ]


def nudged(record: AnyRecord, rng: Generator, by: float = _NUDGE) -> AnyRecord:
    """`record` plus Gaussian noise of standard deviation `by` times the root mean square of each leaf (1 for zeros)."""

    def moved(leaf: Array) -> Array:
        size = float(np.sqrt(np.mean(np.square(leaf, dtype=np.float64)))) if leaf.size else 0.0
        return leaf + by * (size if np.isfinite(size) and size else 1.0) * rng.standard_normal(leaf.shape)

    return map_leaves(moved, record)


def wide(record: AnyRecord) -> AnyRecord:
    return map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), record)


def _targets(origin: Origin, rng: Generator) -> Array:
    if not origin.outputs:
        return origin.targets
    count = len(origin.targets)
    each = rng.permutation(origin.outputs)[:count]  # as many different classes as possible
    return np.concatenate([each, rng.integers(origin.outputs, size=count - len(each))]).astype(origin.targets.dtype)
