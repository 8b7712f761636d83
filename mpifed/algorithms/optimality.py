"""FedPDM's measure of optimality (21): the derivatives of the Lagrangian at the clients' models and dual variables.

# differs from the paper: it takes a gradient of h, which need not be there; here it is the prox-gradient map of h,
# which is zero exactly where x_0 is stationary, and without h is the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from mpifed.algorithms.functions import CHUNK, of_each
from mpifed.algorithms.local_method import Local, LocalMethod, Sent, Server
from mpifed.algorithms.measure import Columns, FirstNumbers, Measure
from mpifed.core.exchange import Exchange, Field
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, take
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.arrays import added, power_of_two
from mpifed.maths.objectives import penalty_gradient, squares


class Iterates(NamedTuple):
    """State of clients, unchanged while they are absent; [n, d]."""

    model: Array  # x_i, where the last local steps have ended
    dual: Array  # lambda_i, of the constraint x_i = x_0; or another state


@dataclass(frozen=True)
class KeepsIterates(LocalMethod):
    """The base of methods whose clients keep where they have come to, and a dual variable."""

    lasting = True
    start: Literal["server", "own"] = "server"
    """Where local steps begin: server: at the model sent; own: at the client's own last one."""

    def start_client(self, x: Array) -> Iterates:
        """The initial model, and a dual of 0."""
        return Iterates(x, np.zeros_like(x))

    def begin(self, own: Iterates, sent: Sent, local: Local) -> Array | None:
        return own.model if self.start == "own" else None


class OptimalityUpload(NamedTuple):
    """A client's upload for (21)."""

    squares: Array  # [n] of the derivatives by x_i and lambda_i
    pull: Array  # [n, d] share of the rows times (lambda_i + rho (x_0 - x_i))


def measure_of_optimality(method: LocalMethod, rho: float) -> Measure:
    """The column `optimality`, (21) with clients weighted by their rows; over all rows, in float64."""
    # so that the sum of all has room
    fine = 2.0**-40 * max(1.0, power_of_two(method.problem.clients) * 2.0**-13)
    fields = OptimalityUpload(
        Field((), fine, 2.0**40, degree=2, wide=True), Field((method.layout.size,), 2.0**-40, 2.0**30, wide=True)
    )
    exchange = Exchange(
        "optimality", fields, lambda model, now: model, partial(_answer, method, rho), lambda model, total, now: total
    )
    return Measure(
        (exchange,),
        start=lambda server: server.model,
        report=partial(_report, method, rho),
        start_clients=lambda block, clients: method.method_state(clients),
        certificate=("optimality",),
    )


def _answer(
    method: LocalMethod, rho: float, clients: Iterates, start: Array, block: Block, now: Round
) -> tuple[Iterates, Lazy]:
    return clients, of_each(block, lambda who: _terms(method, rho, take(clients, who), start, block.only(who)))


def _terms(method: LocalMethod, rho: float, clients: Iterates, start: Array, block: Block) -> OptimalityUpload:
    """The terms of (21) of a single client, the only one of the block: of all its rows, at its own model."""
    (model,), (dual,) = (leaf.astype(np.float64) for leaf in clients)
    objective, record, flat = method.problem.objective, method.record(clients.model[0]), method.layout.flat
    total: Array = added(
        flat(objective.gradient(record, batch.X, batch.y, block.xp.ones(batch.y.shape)), np.float64)[0]
        for batch in block.everything(CHUNK)
    )
    slope = total / int(block.counts[0]) + flat(penalty_gradient(objective, record))
    share = float(block.counts[0] / method.problem.counts.sum())
    gap = model - start
    down = slope - dual + rho * gap
    pull = share * (dual - rho * gap)
    return OptimalityUpload(np.array([share**2 * (squares(down) + squares(gap))]), pull[None])


def _report(method: LocalMethod, rho: float, server: Server, sums: OptimalityUpload, first: FirstNumbers) -> Columns:
    start, regularizer = server.model.astype(np.float64), method.problem.regularizer
    moved = start - sums.pull / rho
    if regularizer is not None:
        moved = method.layout.flat(regularizer.prox(method.record(moved), 1 / rho))
    return {"optimality": float(sums.squares) + rho**2 * squares(start - moved)}
