"""Evaluation, which is not in the training time: losses over all rows by exchanges, test data on rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.exchange import Columns, Measure, Problem, ServerRecord, States, Summation, play
from mpifed.core.record import Record
from mpifed.core.roster import Roster
from mpifed.core.round import Round
from mpifed.core.states import ClientStates
from mpifed.maths.objectives import Parameters


def measure(
    measures: Sequence[Measure],
    algorithm: Algorithm,
    server: Record,
    blocks: Sequence[Block],
    states: States,
    now: Round,
    summation: Summation,
    test: Block | None,
    certify: bool = True,
    room: float = inf,
    first: Mapping[str, Any] | None = MappingProxyType({}),
) -> tuple[Columns, dict[str, Any]]:
    """(columns of a row of the history, numbers of the first iterate), on rank 0; empty elsewhere. Collective.

    Parameters
    ----------
    states : of the algorithm's clients, a record for each block
    now : a round in which all clients participate
    test : the test data as the block of one client, on rank 0 alone
    certify : compute the certificates too; otherwise their columns are None
    room : bytes of memory for the clients' states during the evaluation
    first : the numbers of the first iterate; empty at the first iterate itself, None where they are not known, so that
        certificates that need them are left out
    """
    columns: Columns = {}
    numbers = dict(first or {})
    roster = Roster.of(blocks)
    for measurement in measures:
        if measurement.certificate and not (certify and (measurement.first is None or first is not None)):
            columns |= dict.fromkeys(measurement.certificate)
            continue
        state: ServerRecord = measurement.start(server) if summation.serves else None
        clients: States = ClientStates(len(roster), partial(_begun, measurement, roster, states), room)
        for _ in range(measurement.turns):
            state, clients = play(measurement.exchanges, state, clients, now, summation)
        if summation.serves:
            if not first and measurement.first is not None:
                numbers |= measurement.first(server, state)
            columns |= measurement.report(server, state, numbers)
    if summation.serves and test is not None:
        columns |= test_scores(algorithm.problem, algorithm.model(server), test)
    return columns, numbers


def _begun(measurement: Measure, roster: Roster, states: States, i: int) -> Record:
    """The states with which the evaluation of the clients of block `i` begins."""
    return measurement.start_clients(roster.visit(i, keep=False), states[i])


def test_scores(problem: Problem, model: Parameters, test: Block) -> dict[str, float]:
    """Mean loss and, for classification, accuracy on the rows of a block of one client."""
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
