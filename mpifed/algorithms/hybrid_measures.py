"""Measuring algorithms for cells, off the clock: losses, dual values and gaps over all rows, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.algorithms.hybrid import (
    ask_nothing,
    counted,
    lambda_n,
    own_part,
    padded,
    partial_scores,
    placed_by_columns,
    placed_by_rows,
    pulled,
    told_rows,
    unpadded,
)
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.exchange import Columns, Exchange, Field, FirstNumbers, Measure, Problem
from mpifed.core.record import ABSENT, Array, Record, by_columns, index
from mpifed.core.reveals import InnerProducts, Received
from mpifed.core.round import Round
from mpifed.maths.certificates import dual_value
from mpifed.maths.objectives import Parameters, penalty

# (the algorithm's client states, `for_duals` of the broadcast, their block) -> n arrays [s_i], whose sum over a
# sample's holders is its alpha; their classes are the algorithm's own
Duals: TypeAlias = Callable[[Any, Any, Block], Sequence[Array]]


@by_columns("first")
class MeasuredModel(NamedTuple):
    """Broadcast: the model, and what the clients need to compute their shares of alpha."""

    first: Array  # [p, h] float64, to each client its own columns
    head: Record
    for_duals: Record


class Products(NamedTuple):
    """A client's part of the scores and of alpha, summed over the holders of a sample."""

    scores: Array  # Placed [n, N, h]
    alpha: Array  # Placed [n, N], or ABSENT


class CellsLosses(NamedTuple):
    """A client's upload of losses, each sample counted once."""

    loss: Array  # [n] sum over the samples
    conjugate: Array  # [n] sum of l*(-alpha), or ABSENT


class CellsPrimal(NamedTuple):
    """A client's upload of X'alpha."""

    pulled: Array  # Placed [n, p] X'alpha


class CellsClients(NamedTuple):
    """State of the clients while they are evaluated."""

    states: Record  # the algorithm's own states
    scores: Array  # [n, S, h] float64
    alpha: Array  # [n, S] float64; or ABSENT


class CellsEvaluation(NamedTuple):
    """State of the server during an evaluation."""

    question: MeasuredModel
    sums: CellsLosses
    primal: CellsPrimal  # ABSENT without a dual value


class Grid(Algorithm):
    """The base of algorithms for cells: measures losses. Models have no intercepts."""

    intercepts: ClassVar[bool] = False  # each parameter belongs to a column of the data

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss and objective over all rows."""
        return measures_of_cells(self)


def measures_of_cells(
    algorithm: Algorithm,
    duals: Duals | None = None,
    for_duals: Callable[[Any], Record] = lambda server: (),  # of the server's state, of any class
    private: bool = True,
) -> tuple[Measure, ...]:
    """Losses over all rows, in float64; with `duals` the dual value D(alpha) and the gap P(w) - D(alpha) too.

    Any alpha of all clients gives a bound below the optimum, whoever took part in finding it: so P - D is never less
    than the distance of the model's P from the optimum.

    Parameters
    ----------
    duals : the clients' shares of alpha, from the algorithm's client states and what `for_duals` broadcasts
    for_duals : (server) -> what the clients must receive to compute these shares
    private : whether X'alpha travels in the job's channel; if not, in the clear
    """
    problem = algorithm.problem
    outputs = model_template(problem).first.shape[1]
    rows, width = power_of_two(float(problem.counts.max())), int(problem.counts.max())
    sums = Field((), 2.0**-30, rows * 2**10, degree=2, wide=True)
    scores = Field((problem.samples, outputs), 2.0**-32, 2.0**17, held=problem.rows, to_holders=True, wide=True)
    of_rows = Field((problem.samples,), 2.0**-36, 2.0**12, held=problem.rows, to_holders=True, wide=True)
    alpha = of_rows if duals is not None else ABSENT
    summed = Field((problem.features,), 2.0**-44 * rows, 2.0**4 * rows, held=problem.columns, wide=True)

    def start(server: Record) -> CellsEvaluation:
        model = algorithm.model(server)
        return CellsEvaluation(
            MeasuredModel(model.first.astype(np.float64), model.head, for_duals(server)), ABSENT, ABSENT
        )

    def start_clients(block: Block, states: Record) -> CellsClients:
        zeros = np.zeros((len(block.clients), width, outputs))
        return CellsClients(states, zeros, zeros[..., 0] if duals is not None else ABSENT)

    exchanges = (
        Exchange(
            "all-products", Products(scores, alpha), _ask_model, partial(_all_products, problem, duals),
            hear=partial(_hear_products, problem),
        ),
        Exchange(
            "all-losses", CellsLosses(sums, sums if duals is not None else ABSENT), _ask_head,
            partial(_all_losses, problem), lambda server, total, now: server._replace(sums=total),
        ),
    )  # fmt: skip
    primal = Exchange(
        "all-primal", CellsPrimal(summed), ask_nothing, partial(_all_primal, problem),
        lambda server, total, now: server._replace(primal=total), clear=not private,
    )  # fmt: skip
    all_exchanges = exchanges if duals is None else (*exchanges, primal)
    return (Measure(all_exchanges, start, partial(_reported, algorithm), start_clients),)


def measured_products(received: Received) -> Iterator[InnerProducts]:
    """What uploads in these exchanges reveal: inner products of all rows with the model."""
    if received.answered_by(_all_products):
        weights = received.question.first[received.columns]
        yield InnerProducts(received.rows, weights, received.answer.scores[received.rows])


def _ask_model(server: CellsEvaluation, now: Round) -> MeasuredModel:
    return server.question


def _ask_head(server: CellsEvaluation, now: Round) -> Record:
    return server.question.head


def _all_products(
    problem: Problem, duals: Duals | None, clients: CellsClients, broadcast: MeasuredModel, block: Block, now: Round
) -> tuple[CellsClients, Products]:
    scores = [partial_scores(shard, own_part(broadcast.first, shard), block.dtype) for shard in block.shards]
    alpha: Array = ABSENT
    if duals is not None:
        shares = [share.astype(np.float64) for share in duals(clients.states, broadcast.for_duals, block)]
        alpha = placed_by_rows(problem, shares, block)
    return clients, Products(placed_by_rows(problem, scores, block), alpha)


def _hear_products(problem: Problem, clients: CellsClients, total: Products, block: Block, now: Round) -> CellsClients:
    width = clients.scores.shape[1]
    measured = clients._replace(scores=padded(told_rows(total.scores, block), width))
    if not len(clients.alpha):
        return measured
    dual = problem.dual
    alpha = zip(told_rows(total.alpha, block), block.shards, strict=True)
    return measured._replace(alpha=padded((dual.feasible(values, shard.y) for values, shard in alpha), width))


def _all_losses(
    problem: Problem, clients: CellsClients, broadcast: Record, block: Block, now: Round
) -> tuple[CellsClients, CellsLosses]:
    xp, losses, conjugates = block.xp, [], []
    for i, shard in enumerate(block.shards):
        once, rows, y = index(shard.y, counted(problem, shard.client)), slice(0, shard.samples), shard.y
        losses.append(problem.objective.loss(broadcast, clients.scores[i, rows], y)[once].sum())
        if len(clients.alpha):
            conjugates.append(problem.dual.conjugate(clients.alpha[i, rows], y)[once].sum())
    return clients, CellsLosses(xp.stack(losses), xp.stack(conjugates) if conjugates else ABSENT)


def _all_primal(
    problem: Problem, clients: CellsClients, broadcast: tuple[()], block: Block, now: Round
) -> tuple[CellsClients, CellsPrimal]:
    pairs = zip(block.shards, unpadded(clients.alpha, block), strict=True)
    sums = [pulled(shard, alpha, block.dtype) for shard, alpha in pairs]
    return clients, CellsPrimal(placed_by_columns(problem, sums, block))


def _reported(algorithm: Algorithm, server: Record, measured: CellsEvaluation, first: FirstNumbers) -> Columns:
    problem, total, primal = algorithm.problem, measured.sums, measured.primal
    model = Parameters(measured.question.first, measured.question.head)
    loss = float(total.loss) / problem.samples
    columns: dict[str, float] = {"train_loss": loss, "objective": loss + penalty(problem.objective, model)}
    columns |= algorithm.report(server)
    if len(primal):
        w = primal.pulled.astype(np.float64) / lambda_n(problem)
        columns["dual"] = dual_value(problem.objective.l2, w, float(total.conjugate), problem.samples)
    if "dual" in columns:
        columns["duality_gap"] = columns["objective"] - columns["dual"]
    return dict(columns)
