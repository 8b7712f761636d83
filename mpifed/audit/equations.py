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
from numpy.typing import NDArray

from mpifed.algorithms.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, ScoreDerivatives
from mpifed.audit.findings import EACH, AttackResult
from mpifed.audit.recording import Replay
from mpifed.core.record import Array

FEW = 4  # most clients that are attacked
LARGEST = 2**26  # most numbers in the rows that are solved for
TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations
CLOSE = 1e-2  # largest distance from a row, relative to its length, of one that was solved for


class _Equations(NamedTuple):
    """Equations left @ X' = right for a client's rows in its columns, or left @ X = right for sums of rows."""

    client: int
    rows: NDArray[np.int64]  # [s] which, among all
    left: Array  # [e, p], or [e, s]
    right: Array  # [e, s], or [e, p]


def equation_attacks(replay: Replay) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _solved(replay, "inner-products", list(_products(replay)))
    yield _solved(replay, "linear-system", [*_derivatives(replay), *_dual_sums(replay)])


def _solved(replay: Replay, name: str, systems: list[_Equations]) -> AttackResult:
    """How many of the rows that equations determine are those of the data."""
    if not systems:
        return AttackResult(name, EACH, "no such products, or sums, and their factors to read")
    recovered, there, most, needed = 0, 0, 0, 0
    for client, rows, left, right in systems:
        shard = replay.shards[client]
        there, needed = there + len(rows), max(needed, left.shape[1])
        if len(rows) * shard.features > LARGEST:
            continue
        inverse = np.linalg.pinv(left, TOLERANCE)
        reached = np.einsum("ij,ji->i", inverse, left)  # squared norm of each unit vector in the row space
        solution, known, most = inverse @ right, reached > 1 - FIXED, max(most, round(reached.sum()))
        if name == "inner-products":
            solution, known = solution.T, np.repeat(known.all(), len(rows))
        truth = replay.features(client, np.searchsorted(shard.rows, rows))
        near = np.linalg.norm(solution - truth, axis=1) < CLOSE * np.linalg.norm(truth, axis=1)
        recovered += int((known & near).sum())
    text = f"{recovered} of {there} rows recovered in a client's columns; {most} equations, {needed} needed"
    return AttackResult(name, EACH, text, True, recovered > 0, recovered, there)


def _products(replay: Replay) -> Iterator[_Equations]:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast.

    With as many independent products as the client has columns a single round is enough; rows that are in one round
    after the other are determined by several.
    """
    collected = defaultdict[tuple[int, bytes], list[InnerProducts]](list)
    for _, client, item in replay.of_clients(InnerProducts, FEW):
        collected[client, item.rows.tobytes()].append(item)
    for (client, _), items in collected.items():
        weights, products = (np.hstack([item[part] for item in items]).T for part in (1, 2))
        yield _Equations(client, items[0].rows, weights, products)


def _derivatives(replay: Replay) -> Iterator[_Equations]:
    """Gradients of columns, X'D, and the derivatives D of the loss by the scores that were sent in the same round.

    A minibatch of no more rows than scores is determined in a single round.
    """
    told = {play.round: item for play, _, item in replay.of_clients(ScoreDerivatives)}
    for play, client, mean in replay.of_clients(MeanGradient, FEW) if told else ():
        if mean.parts and play.round in told:
            rows, slopes = told[play.round]
            yield _Equations(client, rows, slopes.T, mean.gradient.first.T)


def _dual_sums(replay: Replay) -> Iterator[_Equations]:
    """X'alpha and the dual variables themselves; rows whose dual variables never changed are not determined."""
    weights = before = np.zeros(replay.problem.samples)
    last, current = dict[int, Array](), None
    sums = defaultdict[int, list[tuple[Array, Array]]](list)  # by client, weights of its rows and their sums
    for play in replay.plays:
        if steps := list(replay.of_clients(DualVariables, plays=[play])):
            item, current = steps[0][2], play.round
            own = {client: np.float64(np.bincount(one.rows, one.values, len(weights))) for _, client, one in steps}
            last = (last if item.lasting else {}) | own
            weights, before = sum(last.values()) + item.before * weights + item.earlier * before, weights
        if play.round == current:  # else sent before the steps of this round
            for _, client, total in replay.of_clients(DualSum, FEW, [play]):
                sums[client].append((weights[replay.shards[client].rows], total.values))
    for client, several in sums.items():
        left, right = map(np.array, zip(*several, strict=True))
        at = np.flatnonzero(left.any(axis=0))  # rows that are in an equation
        yield _Equations(client, replay.shards[client].rows[at], left[:, at], right)
