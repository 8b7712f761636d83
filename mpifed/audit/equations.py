"""Attacks by linear equations between messages: who sees both factors of enough products X w, or X'alpha, solves for X.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, encrypts dual variables and inner products, since a party that sees either and the model can solve for the
rows. The same holds for partial scores, and for derivatives by them, where data are split by columns.

Equations come from float32 numbers in fixed point, so singular directions below `TOLERANCE` times the largest do not
count: they would amplify rounding errors. Shapes: s rows of a client in p columns, e equations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, ScoreDerivatives
from mpifed.audit.findings import EACH, AttackResult
from mpifed.audit.recording import Play, Replay
from mpifed.core.record import Array, Integers

FEW = 4  # most clients that are attacked
LARGEST = 2**26  # most numbers in the rows that are solved for
TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations
CLOSE = 1e-2  # largest distance from a row, relative to its length, of one that was solved for


class _Equations(NamedTuple):
    """Equations left @ X' = right for a client's rows in its columns, or left @ X = right for sums of rows."""

    client: int
    rows: Integers  # [s] which, among all
    left: Array  # [e, p], or [e, s]
    right: Array  # [e, s], or [e, p]


def equation_attacks(replay: Replay) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _solved(replay, "inner-products", [*_products(replay)])
    yield _solved(replay, "linear-system", [*_derivatives(replay), *_dual_sums(replay)])


def _solved(replay: Replay, name: str, systems: list[_Equations]) -> AttackResult:
    """How many of the rows that equations determine are those of the data."""
    if not systems:
        return AttackResult(name, EACH, "no such products, or sums, and their factors to read")
    recovered, there, few = 0, 0, sorted({system.client for system in systems})[:FEW]
    for client, rows, left, right in systems:
        columns = replay.shards[client].columns
        if client not in few or len(rows) * len(columns) > LARGEST:
            continue
        inverse = np.linalg.pinv(left, TOLERANCE)
        solution = inverse @ right
        known = np.einsum("ij,ji->i", inverse, left) > 1 - FIXED  # squared norm of each unit vector in the row space
        if name == "inner-products":
            solution, known = solution.T, known.all()
        truth = replay.full_rows(rows)[:, columns]
        near = np.linalg.norm(solution - truth, axis=1) < CLOSE * np.linalg.norm(truth, axis=1)
        recovered, there = recovered + int((known & near).sum()), there + len(rows)
    text = f"{recovered} of {there} rows recovered in a client's columns"
    return AttackResult(name, EACH, text, True, recovered > 0, recovered, there)


def _products(replay: Replay) -> Iterator[_Equations]:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast.

    With as many independent products as the client has columns a single round is enough; rows that are in one round
    after the other are determined by several.
    """
    collected = defaultdict[tuple[int, bytes], list[InnerProducts]](list)
    for _, client, item in replay.of_clients(InnerProducts):
        collected[client, item.rows.tobytes()].append(item)
    for (client, _), items in collected.items():
        weights, products = (np.hstack(parts).T for parts in list(zip(*items, strict=True))[1:])
        yield _Equations(client, items[0].rows, weights, products)


def _derivatives(replay: Replay) -> Iterator[_Equations]:
    """Gradients of columns, X'D, and the derivatives D of the loss by the scores that were sent in the same round.

    A minibatch of no more rows than scores is determined in a single round.
    """
    told = {play.round: item for play, _, item in replay.of_clients(ScoreDerivatives)}
    for play, client, mean in replay.of_clients(MeanGradient) if told else ():
        if mean.parts and play.round in told:
            rows, slopes = told[play.round]
            yield _Equations(client, rows, slopes.T, mean.gradient.first.T)


def _dual_sums(replay: Replay) -> Iterator[_Equations]:
    """X'alpha and the dual variables themselves; rows whose dual variables never changed are not determined."""
    alpha, samples, after = np.zeros(()), replay.problem.samples, dict[Play, Array]()
    own = defaultdict[int, Array](lambda: np.zeros(samples))  # by client, what it has sent of alpha
    for play, client, item in replay.of_clients(DualVariables):
        sent = np.bincount(item.rows, item.values, samples) + item.steps * own[client]
        alpha = alpha + sent - own[client]
        own[client], after[play] = sent, alpha
    sums = defaultdict[int, list[tuple[Array, Array]]](list)  # by client, weights of its rows and their sums
    for play, client, total in replay.of_clients(DualSum):
        for turn in filter(after.__contains__, play.turns()):  # else sent before the steps of this round
            sums[client].append((after[turn][replay.shards[client].rows], total.values))
    for client, several in sums.items():
        left, right = map(np.array, zip(*several, strict=True))
        at = np.flatnonzero(left.any(axis=0))  # rows that are in an equation
        yield _Equations(client, replay.shards[client].rows[at], left[:, at], right)
