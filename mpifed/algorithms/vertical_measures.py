"""Losses, constraints and certificates of vertically split data, over all rows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.certificate import certificate_columns
from mpifed.algorithms.horizontal import (
    CHUNK,
    Evaluation,
    measured_rows,
    numbers_of_first,
    reported_certificate,
    reported_levels,
)
from mpifed.algorithms.vertical_pass import Pass, PassBroadcast, PassUpload
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Columns as History
from mpifed.core.exchange import FirstNumbers, Measure
from mpifed.core.record import ABSENT, Record, map_leaves
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters


class EvaluationServer(NamedTuple):
    """State of the server during an evaluation."""

    model: Parameters
    turn: np.int64  # []
    evaluation: Evaluation


def measures_of_columns(algorithm: Algorithm, holder: int | None, sender: int) -> tuple[Measure, ...]:
    """Losses and constraints, and the certificate; over all rows, in chunks of `CHUNK`."""
    problem = algorithm.problem
    chosen = measured_rows(problem)
    measured = np.arange(problem.samples) if chosen is None else chosen
    size = min(CHUNK, len(measured))
    turns = -(-len(measured) // size)

    def ask(sums: EvaluationServer, now: Round) -> PassBroadcast:
        start = int(sums.turn) * size
        rows = measured[np.minimum(np.arange(start, start + size), len(measured) - 1)]
        count = np.int64(min(size, len(measured) - start))
        return PassBroadcast(rows, sums.model, ABSENT, ABSENT, ABSENT, count)

    def absorb(sums: EvaluationServer, total: PassUpload, now: Round) -> EvaluationServer:
        evaluation = Evaluation(total.tally, total.statistics.gradient)
        if sums.turn:
            evaluation = map_leaves(operator.add, sums.evaluation, evaluation)
        return EvaluationServer(sums.model, sums.turn + 1, evaluation)

    def measure(
        gradients: bool,
        reported: Callable[[Algorithm, Record, Evaluation, FirstNumbers], History],
        columns: tuple[str, ...] = (),
        first: Callable[[Record, EvaluationServer], FirstNumbers] | None = None,
    ) -> Measure:
        rows_pass = Pass(problem, size, holder, sender, 1, "certificate-" if gradients else "all-", True, gradients)
        exchanges, nothing = rows_pass.exchanges(ask, absorb), Evaluation(ABSENT, ABSENT)
        return Measure(
            exchanges, lambda server: EvaluationServer(algorithm.model(server), np.int64(0), nothing),
            lambda server, sums, known: reported(algorithm, server, sums.evaluation, known), turns=turns,
            certificate=columns, first=first,
        )  # fmt: skip

    def first(server: Record, sums: EvaluationServer) -> FirstNumbers:
        return numbers_of_first(algorithm, server, sums.evaluation)

    certificate = measure(True, reported_certificate, certificate_columns(problem), first)
    return measure(False, reported_levels), certificate
