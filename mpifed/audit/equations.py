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
from mpifed.audit.attack import LINEAR, MOVED, PRODUCTS, SHOWN, AttackResult, Floats, match
from mpifed.audit.received import DECLARED, EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.recording import Replay
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array

FEW = 4  # most clients that are attacked
LARGEST = 2**26  # most numbers in the rows that are solved for
TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations
TRIED = 64  # most changes that are examined, of each kind
SINGLE = 1e-3  # largest distance from a row, relative to its length, of a change of a single sample
NARROWEST = 3  # least nonzero numbers of a change: with fewer, a row is near by chance
UPLOADS = "each client's uploads"


class _Equations(NamedTuple):
    """Equations left @ X' = right for a client's rows in its columns, or left @ X = right for sums of rows."""

    exchange: Exchange  # of what must be known beside sums
    client: int
    rows: NDArray[np.int64]  # [s] which, among all
    left: Array  # [e, p], or [e, s]
    right: Array  # [e, s], or [e, p]


def equation_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _solved(reader, PRODUCTS, list(_products(reader)))
    yield _solved(reader, LINEAR, [*_derivatives(reader), *_dual_sums(reader)])
    yield from _moved_rows(reader)


def _solved(reader: Reader, name: str, systems: list[_Equations]) -> AttackResult:
    """How many of the rows that equations determine are those of the data."""
    if not systems and reader.ciphertexts:
        return AttackResult(name, "encrypted uploads", HIDDEN)
    if not systems:
        return AttackResult(name, EACH, "no client sends such products, or sums, and their factors" + DECLARED)
    pairs, there, most, needed = list[tuple[Floats, Floats]](), 0, 0, 0
    for _, client, rows, left, right in systems:
        shard = reader.replay.shards[client]
        there, needed = there + len(rows), max(needed, left.shape[1])
        if len(rows) * shard.features > LARGEST:
            continue
        solution, known, rank = _solve(left, right)
        truth, most = reader.replay.features(client, np.searchsorted(shard.rows, rows)), max(most, rank)
        if name == PRODUCTS:
            solution, known = solution.T, np.repeat(known.all(), len(rows))
        for row, true in zip(solution[known], truth[known], strict=True):
            pairs += [(row, true)] * (match(row[None], true[None])[0].verdict == "row")
    text = f"{len(pairs)} of {there} rows recovered in a client's columns; {most} equations, {needed} needed"
    seen = UPLOADS if all(reader.seen(system.exchange) == EACH for system in systems) else SEALED
    return AttackResult(name, seen, text, True, bool(pairs), len(pairs), there, tuple(pairs[:SHOWN]))


def _solve(left: Array, right: Array) -> tuple[Floats, NDArray[np.bool_], int]:
    """(X [n, k] of least norm with left X = right, which rows of X are determined [n], the rank) of left [e, n]."""
    out, values, across = np.linalg.svd(np.asarray(left, np.float64), full_matrices=False)
    rank = int(np.sum(values > TOLERANCE * values.max(initial=0.0)))
    out, values, across = out[:, :rank], values[:rank], across[:rank]
    reached = (across**2).sum(axis=0)  # squared norm of each unit vector's projection onto the row space
    return across.T @ ((out.T @ right) / values[:, None]), reached > 1 - FIXED, rank


def _products(reader: Reader) -> Iterator[_Equations]:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast.

    With as many independent products as the client has columns a single round is enough; rows that are in one round
    after the other are determined by several.
    """
    collected = defaultdict[tuple[int, bytes], list[tuple[Exchange, InnerProducts]]](list)
    for play, client, item in reader.of_clients(InnerProducts, reader.all, FEW):
        collected[client, item.rows.tobytes()].append((play.exchange, item))
    for (client, _), some in collected.items():
        weights, products = ([item[part] for _, item in some] for part in (1, 2))
        exchange, (rows, *_) = some[0]
        yield _Equations(exchange, client, rows, np.hstack(weights).T, np.hstack(products).T)


def _derivatives(reader: Reader) -> Iterator[_Equations]:
    """Gradients of columns, X'D, and the derivatives D of the loss by the scores that were sent in the same round.

    A minibatch of no more rows than scores is determined in a single round.
    """
    told = {play.round: item for play, _, item in reader.of_clients(ScoreDerivatives, reader.rounds)}
    for play, client, mean in reader.of_clients(MeanGradient, reader.rounds, FEW) if told else ():
        if mean.parts and play.round in told:
            rows, slopes = told[play.round]
            yield _Equations(play.exchange, client, rows, slopes.T, mean.gradient.first.T)


def _dual_sums(reader: Reader) -> Iterator[_Equations]:
    """X'alpha and the dual variables themselves; rows whose dual variables never changed are not determined."""
    weights = _weights_of_rows(reader)
    sums = defaultdict[int, list[tuple[Exchange, Array, Array]]](list)  # by client, weights of its rows and their sums
    for play, client, item in reader.of_clients(DualSum, reader.rounds, FEW) if weights else ():
        number, weight = weights.get(play.round, (0, None))
        if weight is not None and reader.position(play.exchange) >= number:  # else sent before the steps of this round
            sums[client].append((reader.rounds[number], weight[reader.replay.shards[client].rows], item.values))
    for client, some in sums.items():
        exchanges, left, right = zip(*some, strict=True)
        at = np.flatnonzero(np.any(left, axis=0))  # rows that are in an equation
        rows = reader.replay.shards[client].rows[at]
        yield _Equations(exchanges[0], client, rows, np.array(left)[:, at], np.array(right))


def _weights_of_rows(reader: Reader) -> dict[int, tuple[int, Floats]]:
    """{round: (index of the exchange, [N] weights of rows)} from all steps since the first round."""
    weights, zeros = dict[int, tuple[int, Floats]](), np.zeros(reader.replay.problem.samples)
    for position, exchange in enumerate(reader.rounds):
        sent, items = defaultdict[int, dict[int, Floats]](dict), dict[int, DualVariables]()
        for play, client, item in reader.of_clients(DualVariables, [exchange]):
            sent[play.round][client] = np.bincount(item.rows, item.values, len(zeros)).astype(np.float64)
            items[play.round] = item
        now, before, last = zeros, zeros, dict[int, Floats]()
        for index, by_client in sent.items():
            last = last | by_client if items[index].lasting else by_client
            by, by_last = items[index].before
            now, before = np.sum(list(last.values()), axis=0) + by * now + by_last * before, now
            weights[index] = position, now
    return weights


# --- rows that moved alone -------------------------------------------------------------------------------------------


def _moved_rows(reader: Reader) -> Iterator[AttackResult]:
    """Changes that are a single row up to its length; nothing if no sums over dual variables are sent."""
    replay, own, total = reader.replay, defaultdict[int, list[DualSum]](list), reader.of_sums(DualSum)
    for _, client, item in reader.of_clients(DualSum, reader.rounds) if total else ():
        own[client].append(item)
    each = [((client,), change) for client, sums in own.items() for change in _changes(sums)]
    whole = [(tuple(replay.shards), change) for change in _changes([item for _, item in total])]
    for seen, changes in ((reader.seen(total[-1][0].exchange), each), (SUM, whole)) if total else ():
        considered = [pair for pair in changes if np.count_nonzero(pair[1]) >= NARROWEST][:TRIED]
        pairs = [(change, row) for clients, change in considered for row in _nearest(replay, clients, change)]
        text = f"{len(pairs)} of {len(considered)} changes are a single row, up to its length; others are sums of rows"
        yield AttackResult(MOVED, seen, text, True, bool(pairs), len(pairs), len(considered), tuple(pairs[:SHOWN]))


def _changes(sums: list[DualSum]) -> Iterator[Floats]:
    """Changes between consecutive sums, from zero on; sums that are sent as changes are taken as they are."""
    before = np.zeros(())
    for values, change in sums:
        yield values if change else values - before
        before = values


def _nearest(replay: Replay, clients: tuple[int, ...], change: Floats) -> Iterator[Floats]:
    """The row that a change in the columns of one client, or of all, equals up to a factor; none if it is no row."""
    columns = replay.shards[clients[0]].columns if len(clients) == 1 else np.arange(replay.problem.features)
    unit, scores, squares = np.zeros(replay.problem.features), *np.zeros((2, replay.problem.samples))
    unit[columns] = change / np.linalg.norm(change)
    for shard in (replay.shards[client] for client in clients):
        for at, X in shard.pieces("float64"):
            scores[shard.rows[at]] += X @ unit[shard.columns]
            squares[shard.rows[at]] += np.asarray((X.multiply(X) if shard.sparse else X * X).sum(axis=1)).ravel()
    nearest = np.argmax(np.abs(scores) / np.sqrt(np.maximum(squares, 1e-300)), keepdims=True)
    row = replay.full_rows(nearest)[0, columns]
    if np.linalg.norm(row - (row @ unit[columns]) * unit[columns]) < SINGLE * np.linalg.norm(row):
        yield row
