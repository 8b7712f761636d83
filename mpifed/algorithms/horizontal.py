"""Shared by algorithms for horizontally split data: checks, the weighted sum, shares, losses and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from mpifed.core.algorithm import Algorithm

if TYPE_CHECKING:
    from mpifed.core.exchange import Measure, Problem
    from mpifed.core.record import Array
    from mpifed.core.round import Round
    from mpifed.data.block import Batch, Block


class Rows(Algorithm):
    """The base of algorithms for data split by rows: measures losses, constraints and certificates.

    Its `check` may begin with `check_rows(self.problem, batch_size)`.
    """

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        from mpifed.algorithms.measures import measures_of_rows  # which no round needs

        return measures_of_rows(self)


class Pooled(NamedTuple):
    """Minibatches of a few clients, as if they were one of a single client."""

    clients: Array  # [m]
    rows: int  # of each
    batch: Batch  # [1, m * rows]
    keys: tuple[Array, ...]  # of the pass, see `Objective.pass_keys`


def pooled_minibatches(problem: Problem, block: Block, now: Round, size: int) -> Iterator[Pooled]:
    """A few clients at a time: `size` rows of each client, or all rows of one that has fewer."""
    for part in block.parts(size):
        for _, few, rows in part.by_batch_size(size):
            batch = few.take(few.draw(now, "minibatch", rows)).together()
            yield Pooled(few.clients, rows, batch, problem.objective.pass_keys(now, 0, few.clients[:1]))
