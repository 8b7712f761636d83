"""Measuring, off the clock: losses over all rows through exchanges, test data on rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from types import MappingProxyType
from typing import Any

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.exchange import Columns, Measure, Problem, States, Summation, play
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
    """The columns of one row of the history, and the numbers of the first iterate; on rank 0, elsewhere nothing.
    Collective.

    Parameters
    ----------
    states : of the algorithm's clients, a record for each block
    now : everybody present
    test : the test data as the block of one client, on rank 0 alone
    certify : play the certificates too; otherwise their columns are None
    room : bytes in memory of what clients keep while they are measured
    first : the numbers of the first iterate; empty where this is it, None where they were never found, so that what
        needs them is left out
    """
    columns: Columns = {}
    numbers = dict(first or {})
    roster = Roster.of(blocks)
    for one in measures:
        if one.certificate and not (certify and (one.first is None or first is not None)):
            columns |= dict.fromkeys(one.certificate)
            continue
        found = one.start(server) if summation.serves else None
        clients: States = ClientStates(len(roster), partial(_begun, one, roster, states), room)
        for _ in range(one.turns):
            found, clients = play(one.exchanges, found, clients, now, summation)
        if summation.serves:
            if not first and one.first is not None:
                numbers |= one.first(server, found)
            columns |= one.report(server, found, numbers)
    if summation.serves and test is not None:
        columns |= test_scores(algorithm.problem, algorithm.model(server), test)
    return columns, numbers


def _begun(one: Measure, roster: Roster, states: States, i: int) -> Record:
    """What the clients of block `i` begin to be measured with."""
    return one.start_clients(roster.visit(i, keep=False), states[i])


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
