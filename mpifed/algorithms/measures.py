"""What is measured over all rows, outside the measured time: losses, the functions' values, sums for certificates."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpifed.algorithms.certificate import STEP, certificate_columns, first_iterate, report_certificate
from mpifed.algorithms.functions import (
    CHUNK,
    Tally,
    of_each,
    report_levels,
    sampled,
    slope_of_each,
    stacked,
    tally,
    terms,
)
from mpifed.algorithms.measure import Columns, FirstNumbers, Measure
from mpifed.core.exchange import Exchange, Field, Method
from mpifed.core.record import ABSENT, Array, Record, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.data.block import Batch, Block, Features
from mpifed.maths.arrays import added, power_of_two
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Problem, fields_like, model_template


def tally_fields(problem: Problem, rows: int, sender: int | None = None) -> Tally:
    """Fields of sums over up to `rows` rows of one client."""
    most, field = power_of_two(float(rows)), partial(Field, (len(terms(problem)),), sender=sender, wide=True)
    return Tally(
        field(STEP, most * 2**10, degree=2),
        field(STEP, most * 2**20, degree=4),
        field(1.0, most, degree=0),
    )


class Evaluation(NamedTuple):
    """A client's sums over all its evaluated rows."""

    tally: Tally  # [n, T]
    gradient: Parameters  # leaves [n, K, ...] over the counted rows; ABSENT without a certificate


Sums: TypeAlias = Any  # a record of the exchanges' own, with a `tally` and a `gradient`


def measures_of_functions(
    algorithm: Method, losses: tuple[Exchange, ...], certificate: tuple[Exchange, ...],
    start: Callable[[Any], Record], turns: int = 1,  # of the server's state, a record of the algorithm's own
) -> tuple[Measure, ...]:  # fmt: skip
    """Losses, objective, constraints and the algorithm's own columns; and the certificate.

    The exchanges begin with `start` of the server's state, and end with what has a `tally` and a `gradient`.
    """
    problem = algorithm.problem

    def levels(server: Record, sums: Sums, first: FirstNumbers) -> Columns:
        measured = report_levels(problem, algorithm.model(server), sums.tally)
        return {**measured, **algorithm.report(server), **measured}

    def certified(server: Record, sums: Sums, first: FirstNumbers) -> Columns:
        return report_certificate(problem, algorithm.model(server), sums.tally, sums.gradient, first)

    def of_first(server: Record, sums: Sums) -> FirstNumbers:
        return first_iterate(problem, algorithm.model(server), sums.tally, sums.gradient)

    columns = certificate_columns(problem)
    return (
        Measure(losses, start, levels, turns=turns),
        Measure(certificate, start, certified, turns=turns, certificate=columns, first=of_first),
    )


def measures_of_rows(algorithm: Method) -> tuple[Measure, ...]:
    """The measures of algorithms on rows: losses and constraints; the certificate."""
    losses = _over_all_rows(algorithm.problem, "losses", gradients=False)
    certificate = _over_all_rows(algorithm.problem, "certificate", gradients=True)
    return measures_of_functions(algorithm, (losses,), (certificate,), algorithm.model)


def _over_all_rows(problem: Problem, name: str, gradients: bool) -> Exchange:
    rows = problem.most
    fields = Evaluation(tally_fields(problem, rows), ABSENT)
    if gradients:
        like, functions = model_template(problem), len(sampled(problem))
        stacked = map_leaves(lambda leaf: np.empty((functions, *leaf.shape)), like)
        fields = fields._replace(gradient=fields_like(stacked, STEP, power_of_two(float(rows)) * 2**10, wide=True))

    def answer(clients: Record, model: Any, block: Block, now: Round) -> tuple[Record, Any]:  # of any class
        evaluate = partial(_evaluated, problem, gradients, model)
        return clients, of_each(block, lambda who: evaluate(block.only(who))) if gradients else evaluate(block)

    return Exchange(name, fields, lambda model, now: model, answer, lambda model, total, now: total)


def _evaluated(problem: Problem, gradients: bool, model: Parameters, block: Block) -> Evaluation:
    """Sums over the evaluated rows of each client, chunk by chunk, in float64."""
    xp, functions, objective = block.xp, sampled(problem), problem.objective
    chosen = measured_rows(problem)

    def of_piece(model: Parameters, X: Features, y: Array, ones: Array) -> Evaluation:
        if not gradients:
            return Evaluation(tally(problem, model.head, objective.scores_of(model, X), y, ones), ABSENT)
        scores, backward = objective.forward(model, X)
        # of sums over the counted rows, as if all counted
        each, _ = slope_of_each(problem, functions, model.head, scores, y, ones, np.ones(len(functions)))
        gradient = map_leaves(lambda leaf: leaf.astype(np.float64), stacked([backward(slope) for slope in each], y))
        return Evaluation(tally(problem, model.head, scores, y, ones), gradient)

    def of_batch(batch: Batch) -> Evaluation:
        return objective.in_pieces(of_piece, model, batch.X, batch.y, xp.ones(batch.y.shape))

    sums = []
    for i, client in enumerate(block.clients):
        alone, rows = block.only(np.array([i])), np.arange(block.shards[i].samples)
        if chosen is not None:
            start, stop = np.searchsorted(chosen, problem.offsets[client : client + 2])
            rows = chosen[start:stop] - problem.offsets[client]
        starts = range(0, max(len(rows), 1), CHUNK)
        sums.append(added(of_batch(alone.take(rows[None, start : start + CHUNK])) for start in starts))
    return map_leaves(lambda *parts: xp.concatenate(parts), sums[0], *sums[1:])


@lru_cache(maxsize=8)
def measured_rows(problem: Problem) -> Array | None:
    """Indices of the evaluated rows among those of all clients, ascending; None: all of them.

    They are a uniform draw without replacement, the same for the whole run and whatever its seed.
    """
    rows = int(problem.counts.sum()) if problem.split == "rows" else problem.samples
    if problem.measured_rows is None or problem.measured_rows >= rows:
        return None
    everybody = Round(SETUP, 0, np.ones(1, dtype=bool))
    return np.sort(everybody.draw("measured rows", np.array([0]), np.array([rows]), problem.measured_rows)[0])
