"""Measuring, off the clock: losses over all rows through exchanges, test data on rank 0."""

from __future__ import annotations

from collections.abc import Sequence

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.block import Block
from mpifed.core.exchange import Algorithm, Measure, Problem, States, Summation
from mpifed.core.record import Record
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters


def measure(
    measures: Sequence[Measure],
    algorithm: Algorithm,
    server: Record,
    clients: States,
    now: Round,
    summation: Summation,
    test: Block | None,
) -> dict[str, float]:
    """The columns of one row of the history, on rank 0; elsewhere nothing. Collective.

    `now` has everybody present; `test` is the test data as the block of one client, on rank 0 alone.
    """
    columns: dict[str, float] = {}
    for exchange in measures:
        question = summation.tell(exchange, exchange.ask(server, now) if summation.serves else None)
        _, total = summation.tally(exchange, clients, question, now)
        if summation.serves:
            columns |= exchange.report(server, total)
    if summation.serves and test is not None:
        columns |= test_scores(algorithm.problem, algorithm.model(server), test)
    return columns


def test_scores(problem: Problem, model: Parameters, test: Block) -> dict[str, float]:
    """Mean loss and, for classes, accuracy on the rows of a block of one client."""
    losses, right, rows = 0.0, 0, 0
    for _, batch in test.everything(CHUNK):
        scores = problem.objective.scores(model.first, batch.X)
        losses += float(problem.objective.loss(model.head, scores, batch.y).sum(dtype="float64"))
        right += int((problem.objective.predict(model.head, scores) == batch.y).sum())
        rows += batch.y.size
    columns = {"test_loss": losses / rows}
    if problem.outputs > 1:
        columns["test_accuracy"] = right / rows
    return columns
