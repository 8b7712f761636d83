"""Mini-batch SSCA for horizontally split data: Algorithms 1 and 2, see `mpifed.algorithms.ssca_server`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.functions import Statistics, counts_some, statistics
from mpifed.algorithms.horizontal import (
    Rows,
    Weighted,
    check_rows,
    count_samples,
    minibatches,
    model_template,
    start_model,
    training_rows,
    weighted_fields,
)
from mpifed.algorithms.ssca_server import SSCABase, SSCAServer
from mpifed.core.exchange import Exchange, Lazy
from mpifed.core.protocols import Features
from mpifed.core.record import ABSENT, Array, added, beside, in_memory, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Batch, Block
from mpifed.maths.objectives import Parameters


@in_memory("shares", "keep")
class SSCABroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # w_t
    previous: Parameters  # w_{t-1}, where gradients are variance-reduced; else ABSENT
    shares: Array  # [K], or ABSENT
    keep: np.float64  # 1 - rho_t, where gradients are variance-reduced; else ABSENT


@dataclass(frozen=True)
class SSCAHorizontal(SSCABase, Rows):
    """Algorithms 1 and 2: in every round each client draws `batch_size` rows and uploads the sums of their gradients.

    With all clients present the weights are the paper's N_i/(B N); otherwise they are normalized over those present. A
    client with fewer rows takes all of them.
    """

    seeds_rows: ClassVar[bool] = True

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives weighted sums of minibatch gradients."""
        template, functions = model_template(self.problem), len(self.functions)
        stacked = map_leaves(lambda leaf: np.empty((functions, *leaf.shape)), template)
        level = np.empty(functions) if self.problem.constraints else ABSENT
        fields = weighted_fields(self.problem, Statistics(stacked, level))
        return (Exchange("gradients", fields, self.ask, self.answer, self.absorb),)

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """Counts the samples of each function, where any averages over a subset."""
        if not counts_some(self.problem):
            return ()
        return (count_samples(self.problem, self.with_shares),)

    def check(self) -> list[str]:
        """Split and batch size must fit the data."""
        wrong = super().check() + check_rows(self.problem, self.batch_size)
        if self.label_holder is not None:
            wrong.append(f"[algorithm] label_holder = {self.label_holder}: is for data split by columns; leave it out")
        return wrong

    def start_server(self, now: Round) -> SSCAServer:
        """Step 1: any w_1, and empty surrogates."""
        return self.begin(start_model(self.problem, now))

    def ask(self, server: SSCAServer, now: Round) -> SSCABroadcast:
        """Step 3: w_t."""
        if not self.recursive:
            return SSCABroadcast(server.model, ABSENT, server.shares, ABSENT)
        return SSCABroadcast(server.model, server.previous, server.shares, self.keep(server))

    def answer(self, clients: tuple[()], broadcast: SSCABroadcast, block: Block, now: Round) -> tuple[tuple[()], Lazy]:
        """Step 4: the mean gradients over each client's minibatch, weighted by its rows."""
        weight = self.problem.weights[block.clients]

        def sums_of(who: Array, part: Block, rows: int) -> Statistics:
            batch = training_rows(self.problem, part, part.draw(now, "minibatch", rows), now)
            each = beside(batch.y, np.repeat(weight[who, None] / rows, rows, axis=1))
            return self._statistics(broadcast, batch.X, batch.y, each)

        def parts() -> Iterator[tuple[Array, Weighted]]:
            yield np.arange(len(weight)), Weighted(block.joined(self.batch_size, sums_of), weight)

        return clients, Lazy(parts, partial(self._total, broadcast, block, now))

    def _total(self, broadcast: SSCABroadcast, block: Block, now: Round) -> Weighted:
        """The weighted sum of the clients' uploads, from products over many clients' minibatches at once."""

        def sums_of(clients: Block, batch: Batch) -> Statistics:
            rows, batch = batch.y.shape[1], batch.together()
            each = self.problem.weights[clients.clients].repeat(rows)
            each /= rows
            return self._statistics(broadcast, batch.X, batch.y, beside(batch.y, each[None]))

        total = added(sums_of(*pair) for pair in minibatches(self.problem, block, now, self.batch_size))
        return Weighted(map_leaves(lambda leaf: leaf[0], total), self.problem.weights[block.clients].sum())

    def _statistics(self, broadcast: SSCABroadcast, X: Features, y: Array, each: Array) -> Statistics:
        """[n, K, ...] at w_t, less what is to be forgotten of those at w_{t-1} where they are variance-reduced."""

        def at(model: Parameters, each: Array) -> Statistics:
            return statistics(self.problem, self.functions, model, X, y, each, broadcast.shares)

        now = at(broadcast.model, each)
        if not self.recursive or not broadcast.keep:
            return now
        return map_leaves(operator.add, now, at(broadcast.previous, each * -float(broadcast.keep)))

    def absorb(self, server: SSCAServer, total: Weighted, now: Round) -> SSCAServer:
        """Step 5: the surrogates (3), (10), the convex problem, the step (5)."""
        return self.advance(server, total.value, float(total.weight))
