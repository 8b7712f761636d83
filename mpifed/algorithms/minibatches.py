"""The minibatches of clients' local steps: how many, of which rows, and what each row counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import training_rows
from mpifed.algorithms.private import privacy_of
from mpifed.core.exchange import Problem
from mpifed.core.protocols import Features
from mpifed.core.record import Array, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block

MOST = 10**8  # rows that a client draws in a round, whose numbers are in memory
ROWS = 2048  # rows of one client in memory at once, as far as a minibatch is no larger


class Minibatch(NamedTuple):
    """Rows of each of n clients, for one local step."""

    X: Features  # [n, s, p]
    y: Array  # [n, s]
    weights: Array  # [n, s] what a row counts in the mean, 1 / batch; where gradients are clipped, in the sum: 1


def wrong_draw(key: str, rows: int) -> list[str]:
    """The error for more rows than a client can draw in a round, if `rows` are."""
    if rows <= MOST:
        return []
    return [f"[algorithm] {key}: a client would draw {rows} rows in a round, more than {MOST}; take fewer local steps"]


@dataclass(frozen=True)
class Minibatches:
    """How much work clients do in a round: `steps` minibatches of `batch` rows, or `epochs` passes over the shard.

    A client with fewer rows than `batch` has all of them in every minibatch, not in private jobs.
    """

    problem: Problem
    batch: int
    steps: int | None = None
    epochs: int | None = None

    @property
    def count(self) -> int:
        """Local steps in a round; with epochs, those of the largest shard."""
        if self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-int(self.problem.counts.max()) // self.batch)

    @property
    def single_step(self) -> bool:
        return self.epochs is None and self.steps in (None, 1)

    def slices(self, size: int) -> list[slice]:
        """Where each local step's minibatch lies among the rows drawn from a shard of `size` rows."""
        if self.epochs is None:
            batch = min(self.batch, size)
            return [slice(i * batch, (i + 1) * batch) for i in range(self.steps or 1)]
        return [
            slice(start, min(start + self.batch, first + size))
            for first in range(0, self.epochs * size, size)
            for start in range(first, first + size, self.batch)
        ]

    def minibatches(self, block: Block, now: Round, gain: float = 1.0) -> Iterator[Minibatch]:
        """The minibatches of a round, step by step; all clients of the block have the same number of steps and rows.

        Weights in a mean are times `gain`.

        Those of a round are disjoint as far as the shard goes. Where every gradient is made noisy, they are drawn
        independently instead, in secret: that is what the accountant assumes.
        """
        privacy = privacy_of(self.problem)
        if privacy is not None and privacy.on_gradients:
            for r in range(self.steps or 1):
                rows = block.draw(now, f"minibatch {r}", self.batch, secret=True)
                X, y = training_rows(self.problem, block, rows, now, r)
                yield Minibatch(X, y, self._alike(y, gain))
        else:
            slices, weights = self.slices(int(block.counts[0])), None
            rows = block.draw(now, "minibatch", slices[-1].stop, secret=privacy is not None)
            together = max(1, ROWS // self.batch)  # steps whose rows are read at once
            numbers = np.repeat(np.arange(len(slices)), [at.stop - at.start for at in slices])
            for steps in (slices[i : i + together] for i in range(0, len(slices), together)):
                first, all_ = steps[0].start, slice(steps[0].start, steps[-1].stop)
                batch = training_rows(self.problem, block, rows[:, all_], now, numbers[all_])
                for at in steps:
                    X, y = batch.rows(at.start - first, at.stop - first)
                    if weights is None or weights.shape != y.shape:
                        weights = self._alike(y, gain)
                    yield Minibatch(X, y, weights)

    def _alike(self, y: Array, gain: float) -> Array:
        """[n, s] weights of a minibatch whose rows, of these classes or targets, have all the same."""
        privacy, shape = privacy_of(self.problem), y.shape
        clipped = privacy is not None and privacy.level == "sample"
        return namespace(y).full(shape, 1.0 if clipped else 1 / shape[1] * gain)
