"""The set-up of HyFDCA, before the first round: ||x_i||^2 of whole samples, and lambda_max(XX')."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import power_of_two
from mpifed.algorithms.hybrid import (
    ByRows,
    ask_nothing,
    inner_products,
    own_part,
    padded,
    partial_scores,
    placed_by_columns,
    placed_by_rows,
    pulled,
    told_rows,
    unpadded,
)
from mpifed.algorithms.hyfdca_local import HyFDCAClients
from mpifed.algorithms.hyfdca_rules import HyFDCAServer
from mpifed.core.block import Block
from mpifed.core.exchange import Exchange, Field, Problem
from mpifed.core.record import Array, by_columns
from mpifed.core.reveals import InnerProducts, Received
from mpifed.core.round import Round
from mpifed.maths.arrays import square_norms

TURNS = 20  # of the power iteration
SAFETY = 1.1  # as it comes up to the eigenvalue from below


@by_columns("value")
class ByColumns(NamedTuple):
    """One number for each feature."""

    value: Array  # Placed [n, p], or a broadcast [p]


@dataclass(frozen=True)
class Norms:
    """The clients receive the norms of whole samples, summed over holders; the states have room for them in `norms`."""

    problem: Problem

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        field = Field((self.problem.samples,), 2.0**-32, 2.0**16, held=self.problem.rows, to_holders=True, degree=0)
        return (Exchange("norms", ByRows(field), ask_nothing, self.answer, hear=self.hear),)

    def answer(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """||x_k,i||^2 of each client's part of its samples."""
        norms = []
        for shard in block.shards:
            squares = block.xp.empty(shard.samples)
            for at, X in shard.pieces(block.dtype):
                squares[at] = square_norms((X,))[0] if shard.sparse else square_norms(X)
            norms.append(squares)
        return clients, ByRows(placed_by_rows(self.problem, norms, block))

    def hear(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Stores ||x_i||^2 of whole samples."""
        norms = (values.astype(block.dtype) for values in told_rows(total.value, block))
        return clients._replace(norms=padded(norms, clients.norms.shape[1]))


@dataclass(frozen=True)
class Power:
    """A power iteration on X'X, whose largest eigenvalue is that of XX', in the exchanges of a round of HyFDCA.

    The server's state has its vector `power` and, in the end, `sigma`; the clients' their Xv in `alpha`, which is zero
    again afterwards.
    """

    problem: Problem
    sealed: bool  # whether X'Xv travels in the job's channel

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """`TURNS` times: products with X, then with X'."""
        rows = power_of_two(float(self.problem.counts.max()))
        by_rows = Field((self.problem.samples,), 2.0**-36, 2.0**12, held=self.problem.rows, to_holders=True, degree=0)
        of_columns = Field(
            (self.problem.features,), rows * 2.0**-36, rows * 2.0**12, held=self.problem.columns, degree=0
        )
        products = Exchange("power-products", ByRows(by_rows), self.ask, self.answer_products, hear=self.hear)
        primal = Exchange(
            "power-primal", ByColumns(of_columns), ask_nothing, self.answer, self.absorb, clear=not self.sealed
        )
        return (products, primal) * TURNS

    @classmethod
    def reveals(cls, received: Received) -> Iterator[InnerProducts]:
        """Inner products of the client's rows with v, in its columns."""
        if received.answered_by(cls.answer_products):
            yield inner_products(received, received.question.value)

    def ask(self, server: HyFDCAServer, now: Round) -> ByColumns:
        v = server.power / max(float(np.linalg.norm(server.power)), 1e-300)
        return ByColumns(v.astype(self.problem.dtype))

    def answer_products(
        self, clients: HyFDCAClients, broadcast: ByColumns, block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """The client's partial products X_k v."""
        scores = [partial_scores(shard, own_part(broadcast.value, shard), block.dtype) for shard in block.shards]
        return clients, ByRows(placed_by_rows(self.problem, scores, block))

    def hear(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        return clients._replace(alpha=padded(told_rows(total.value, block), clients.alpha.shape[1]))

    def answer(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByColumns]:
        pairs = zip(block.shards, unpadded(clients.alpha, block), strict=True)
        sums = [pulled(shard, values, block.dtype) for shard, values in pairs]
        return clients._replace(alpha=block.xp.zeros_like(clients.alpha)), ByColumns(
            placed_by_columns(self.problem, sums, block)
        )

    def absorb(self, server: HyFDCAServer, total: ByColumns, now: Round) -> HyFDCAServer:
        """||X'Xv|| for ||v|| = 1 is never above the eigenvalue."""
        v: Array = total.value.astype(np.float64)
        return server._replace(power=v, sigma=np.float64(SAFETY * np.linalg.norm(v)))
