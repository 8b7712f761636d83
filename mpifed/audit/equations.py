"""Attacks by linear equations between messages: who sees both factors of enough products X w, or X'alpha, solves for X.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, encrypts dual variables and inner products, since a party that sees either and the model can solve for the
rows. The same holds for partial scores, and for derivatives by them, where data are split by columns.

If the dual variable of a single sample has changed, the change of X'alpha is that sample's row times its step: it
reveals the row up to its length and sign.

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
from mpifed.audit.findings import SHOWN, AttackResult, Floats
from mpifed.audit.received import SUM, Reader
from mpifed.audit.recording import Replay
from mpifed.core.record import Array
from mpifed.core.round import SETUP

FEW = 4  # most clients that are attacked
LARGEST = 2**26  # most numbers in the rows that are solved for
TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations
CLOSE = 1e-2  # largest distance from a row, relative to its length, of one that was solved for
TRIED = 64  # most changes that are examined, of each kind
SINGLE = 1e-3  # largest distance from a row, relative to its length, of a change of a single sample
NARROWEST = 3  # least nonzero numbers of a change: with fewer, a row is near by chance


class _Equations(NamedTuple):
    """Equations left @ X' = right for a client's rows in its columns, or left @ X = right for sums of rows."""

    seen: str  # of what must be known beside sums
    client: int
    rows: NDArray[np.int64]  # [s] which, among all
    left: Array  # [e, p], or [e, s]
    right: Array  # [e, s], or [e, p]


def equation_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _solved(reader, "inner-products", list(_products(reader)))
    yield _solved(reader, "linear-system", [*_derivatives(reader), *_dual_sums(reader)])
    yield from _moved_rows(reader)


def _solved(reader: Reader, name: str, systems: list[_Equations]) -> AttackResult:
    """How many of the rows that equations determine are those of the data."""
    if not systems:
        return AttackResult(name, *reader.nothing("such products, or sums, and their factors"))
    pairs, there, most, needed = list[tuple[Floats, Floats]](), 0, 0, 0
    for _, client, rows, left, right in systems:
        shard = reader.replay.shards[client]
        there, needed = there + len(rows), max(needed, left.shape[1])
        if len(rows) * shard.features > LARGEST:
            continue
        inverse = np.linalg.pinv(left, TOLERANCE)
        reached = np.einsum("ij,ji->i", inverse, left)  # squared norm of each unit vector in the row space
        solution, known, most = inverse @ right, reached > 1 - FIXED, max(most, round(reached.sum()))
        if name == "inner-products":
            solution, known = solution.T, np.repeat(known.all(), len(rows))
        truth = reader.replay.features(client, np.searchsorted(shard.rows, rows))
        there_too = known & (np.linalg.norm(solution - truth, axis=1) < CLOSE * np.linalg.norm(truth, axis=1))
        pairs += zip(solution[there_too], truth[there_too], strict=True)
    text = f"{len(pairs)} of {there} rows recovered in a client's columns; {most} equations, {needed} needed"
    seen = max(system.seen for system in systems)  # if any is sealed
    return AttackResult(name, seen, text, True, bool(pairs), len(pairs), there, tuple(pairs[:SHOWN]))


def _products(reader: Reader) -> Iterator[_Equations]:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast.

    With as many independent products as the client has columns a single round is enough; rows that are in one round
    after the other are determined by several.
    """
    collected = defaultdict[tuple[str, int, bytes], list[InnerProducts]](list)
    for play, client, item in reader.of_clients(InnerProducts, FEW):
        collected[reader.seen(play.exchange), client, item.rows.tobytes()].append(item)
    for (seen, client, _), items in collected.items():
        weights, products = (np.hstack([item[part] for item in items]).T for part in (1, 2))
        yield _Equations(seen, client, items[0].rows, weights, products)


def _derivatives(reader: Reader) -> Iterator[_Equations]:
    """Gradients of columns, X'D, and the derivatives D of the loss by the scores that were sent in the same round.

    A minibatch of no more rows than scores is determined in a single round.
    """
    told = {play.round: item for play, _, item in reader.of_clients(ScoreDerivatives)}
    for play, client, mean in reader.of_clients(MeanGradient, FEW) if told else ():
        if mean.parts and play.round in told:
            rows, slopes = told[play.round]
            yield _Equations(reader.seen(play.exchange), client, rows, slopes.T, mean.gradient.first.T)


def _dual_sums(reader: Reader) -> Iterator[_Equations]:
    """X'alpha and the dual variables themselves; rows whose dual variables never changed are not determined."""
    weights = before = np.zeros(reader.replay.problem.samples)
    last, seen, round = dict[int, Floats](), "", SETUP
    sums = defaultdict[int, list[tuple[Floats, Array]]](list)  # by client, weights of its rows and their sums
    for play in reader.replay.plays:
        if steps := list(reader.of_clients(DualVariables, plays=[play])):
            item, seen, round = steps[0][2], reader.seen(play.exchange), play.round
            own = {client: np.float64(np.bincount(one.rows, one.values, len(weights))) for _, client, one in steps}
            last = (last if item.lasting else {}) | own
            by, by_last = item.before
            weights, before = np.sum([*last.values()], axis=0) + by * weights + by_last * before, weights
        if seen and round == play.round:  # else sent before the steps of this round
            for _, client, total in reader.of_clients(DualSum, FEW, [play]):
                sums[client].append((weights[reader.replay.shards[client].rows], total.values))
    for client, several in sums.items():
        left, right = map(np.array, zip(*several, strict=True))
        at = np.flatnonzero(left.any(axis=0))  # rows that are in an equation
        yield _Equations(seen, client, reader.replay.shards[client].rows[at], left[:, at], right)


# --- rows that moved alone -------------------------------------------------------------------------------------------


def _moved_rows(reader: Reader) -> Iterator[AttackResult]:
    """Changes that are a single row up to its length; nothing if no sums over dual variables are sent."""
    own, seen = defaultdict[tuple[int, ...], list[DualSum]](list), SUM
    for play in reader.replay.plays:
        if totals := list(reader.revealed(reader.of_sum(play), DualSum)):
            own[tuple(reader.replay.shards)] += totals
            seen = reader.seen(play.exchange)
            for _, client, item in reader.of_clients(DualSum, plays=[play]):
                own[client,].append(item)
    changes = [(clients, change) for clients, sums in own.items() for change in _changes(sums)]
    for form in (seen, SUM) if own else ():
        chosen = [pair for pair in changes if (form == SUM) == (len(pair[0]) > 1)]
        chosen = [pair for pair in chosen if np.count_nonzero(pair[1]) >= NARROWEST][:TRIED]
        pairs = tuple((change, row) for who, change in chosen for row in _nearest(reader.replay, who, change))
        text = f"{len(pairs)} of {len(chosen)} changes are a single row, up to its length; others are sums of rows"
        yield AttackResult("moved-row", form, text, True, bool(pairs), len(pairs), len(chosen), pairs[:SHOWN])


def _changes(sums: list[DualSum]) -> Iterator[Floats]:
    """Changes between consecutive sums, from zero on; sums that are sent as changes are taken as they are."""
    before = np.zeros(())
    for values, change in sums:
        yield values if change else values - before
        before = values


def _nearest(replay: Replay, clients: tuple[int, ...], change: Floats) -> Iterator[Floats]:
    """The row that a change in the columns of one client, or of all, equals up to a factor; none if it is no row."""
    unit = np.zeros(replay.problem.features)
    columns = np.unique(np.concatenate([replay.shards[client].columns for client in clients]))
    unit[columns] = change / np.linalg.norm(change)
    scores, squares = np.zeros((2, replay.problem.samples))
    for shard in (replay.shards[client] for client in clients):
        for at, X in shard.pieces("float64"):
            scores[shard.rows[at]] += X @ unit[shard.columns]
            squares[shard.rows[at]] += np.asarray((X.multiply(X) if shard.sparse else X * X).sum(axis=1)).ravel()
    nearest = np.argmax(np.abs(scores) / np.sqrt(np.maximum(squares, 1e-300)), keepdims=True)
    row = replay.full_rows(nearest)[0, columns]
    if np.linalg.norm(row - (row @ unit[columns]) * unit[columns]) < SINGLE * np.linalg.norm(row):
        yield row
