"""FedPDM's measure of optimality (21): the derivatives of the Lagrangian at the clients' models and dual variables.

# differs from the paper: it takes a gradient of h, which need not be there; here it is the prox-gradient map of h,
# which is zero exactly where x_0 is stationary, and without h is the gradient.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.functions import CHUNK
from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.core.exchange import Columns, Exchange, Field, FirstNumbers, Lazy, Measure, Problem, fields_like, of_each
from mpifed.core.protocols import Model
from mpifed.core.record import Array, map_leaves, take
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters, penalty_gradient, squares


class FedPDMServer(NamedTuple):
    """The server's state."""

    model: Parameters  # x_0
    steps: np.int64  # rounds done


class FedPDMClients(NamedTuple):
    """State of the clients, unchanged while they are absent; leaves [n, ...]."""

    model: Parameters  # x_i
    dual: Parameters  # lambda_i, of the constraint x_i = x_0


class OptimalityUpload(NamedTuple):
    """A client's upload for (21)."""

    squares: Array  # [n] of the derivatives by x_i and lambda_i
    pull: Parameters  # leaves [n, ...]: share of the rows times (lambda_i + rho (x_0 - x_i))


def measure_of_optimality(problem: Problem, rho: float) -> Measure:
    """The column `optimality`, (21) with clients weighted by their rows; over all rows, in float64."""
    fine = 2.0**-40 * max(1.0, power_of_two(problem.clients) * 2.0**-13)  # so that the sum of all has room
    fields = OptimalityUpload(
        Field((), fine, 2.0**40, degree=2, wide=True),
        fields_like(model_template(problem), 2.0**-40, 2.0**30, wide=True),
    )
    exchange = Exchange(
        "optimality", fields, lambda model, now: model, partial(_answer, problem, rho), lambda model, total, now: total
    )
    return Measure(
        (exchange,),
        start=lambda server: server.model,
        report=partial(_report, problem, rho),
        start_clients=lambda block, clients: clients,
        certificate=("optimality",),
    )


def _answer(
    problem: Problem, rho: float, clients: FedPDMClients, start: Parameters, block: Block, now: Round
) -> tuple[FedPDMClients, Lazy]:
    return clients, of_each(block, lambda who: _terms(problem, rho, take(clients, who), start, block.only(who)))


def _terms(problem: Problem, rho: float, clients: FedPDMClients, start: Parameters, block: Block) -> OptimalityUpload:
    """The terms of (21) of a single client, the only one of the block."""
    client = map_leaves(lambda leaf: leaf[0].astype(np.float64), clients)
    share = float(block.counts[0] / problem.counts.sum())
    gap = map_leaves(operator.sub, client.model, start)
    slope = _slope(problem.objective, client.model, block)
    down = map_leaves(lambda g, dual, d: g - dual + rho * d, slope, client.dual, gap)
    pull = map_leaves(lambda dual, d: share * (dual - rho * d)[None], client.dual, gap)
    return OptimalityUpload(np.array([share**2 * (squares(down) + squares(gap))]), pull)


def _report(problem: Problem, rho: float, server: FedPDMServer, sums: OptimalityUpload, first: FirstNumbers) -> Columns:
    start = map_leaves(lambda leaf: leaf.astype(np.float64), server.model)
    moved = map_leaves(lambda w, g: w - g / rho, start, sums.pull)
    if problem.regularizer is not None:
        moved = problem.regularizer.prox(moved, 1 / rho)
    return {"optimality": float(sums.squares) + rho**2 * squares(map_leaves(operator.sub, start, moved))}


def _slope(objective: Model, model: Parameters, block: Block) -> Parameters:
    """The gradient of one client's mean loss and penalties over all its rows, at its own model, in float64."""
    total: Parameters | None = None
    for _, batch in block.everything(CHUNK):
        ones = block.xp.ones(batch.y.shape)
        chunk = map_leaves(lambda leaf: leaf[0].astype(np.float64), objective.gradient(model, batch.X, batch.y, ones))
        total = chunk if total is None else map_leaves(operator.add, total, chunk)
    rows = int(block.counts[0])
    assert total is not None  # every client has rows
    return map_leaves(lambda g, p: g / rows + p, total, penalty_gradient(objective, model))
