"""Attacks by linear equations between messages: who sees both factors of enough products X w, or X'alpha, solves for X.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 3.2, encrypts dual variables and inner products, since a party that sees either and the model can solve for the
rows. The same holds for partial scores, and for derivatives by them, where data are split by columns.

If the dual variable of a single sample has changed, the change of X'alpha is that sample's row times its step: it
reveals the row up to its length and sign. Clients with the same samples have changed the same dual variable, so that
their parts of the row fit together.

Equations come from float32 numbers in fixed point, so singular directions below `TOLERANCE` times the largest do not
count: they would amplify rounding errors. Shapes: s rows of a client in p columns, e equations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attack_result import LINEAR, MOVED, PRODUCTS, AttackResult, Floats, not_applicable, pictures
from mpifed.audit.attacks.matching import ALIKE, match
from mpifed.audit.received import EACH, HIDDEN, SEALED, SUM, Reader
from mpifed.audit.recording import Play, dense_rows
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array
from mpifed.core.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, ScoreDerivatives

FEW = 4  # most clients that are attacked
LARGEST = 2**24  # most numbers in the rows of a client that are solved for
TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations
TRIED = 64  # most changes that are examined, of each kind
SINGLE = 1e-3  # largest distance from a row, relative to its length, of a change of a single sample
NARROWEST = 3  # least nonzero numbers of a change: with fewer, a row is near by chance
UPLOADS = "each client's uploads"

When: TypeAlias = tuple[int, int]  # round, and index of the exchange


def equation_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Attacks that solve the linear equations which the server collects over the recorded rounds."""
    yield _from_products(reader)
    yield _from_derivatives(reader) or _from_duals(reader)
    yield from _moved_rows(reader)


def _solve(left: Array, right: Array) -> tuple[Floats, NDArray[np.bool_], int]:
    """(X [n, k] of least norm with left X = right, which rows of X are determined [n], the rank) of left [e, n]."""
    out, values, across = np.linalg.svd(np.asarray(left, np.float64), full_matrices=False)
    rank = int(np.sum(values > TOLERANCE * values.max(initial=0.0)))
    out, values, across = out[:, :rank], values[:rank], across[:rank]
    reached = (across**2).sum(axis=0)  # squared norm of each unit vector's projection onto the row space
    return across.T @ ((out.T @ right) / values[:, None]), reached > 1 - FIXED, rank


class _Rows(NamedTuple):
    """What equations say of a client's rows."""

    there: int  # rows in question
    got: int  # independent equations
    needed: int  # that determine all entries
    rows: Floats = np.zeros((0, 0))  # that are determined, solved for
    truth: Floats = np.zeros((0, 0))  # the same, of the data


def _compared(reader: Reader, attack: str, used: Sequence[Exchange], what: str, clients: list[_Rows]) -> AttackResult:
    """How many of the rows solved for are those of the data."""
    pairs, errors = list[tuple[Floats, Floats]](), [0.0]
    for client in clients:
        for row, truth in zip(client.rows, client.truth, strict=True):
            matched = match(row, truth[None])
            if matched.verdict == "row":
                pairs.append((row, truth))
                errors.append(matched.relative_error)
    there, good = sum(client.there for client in clients), len(pairs)
    got = max((client.got for client in clients), default=0)
    needed = max((client.needed for client in clients), default=0)
    text = f"{good} of {there} rows recovered in a client's columns"
    text += f" with a relative error of at most {max(errors):.1g}" if good else ""
    text += f"; {got} {what}, {needed} needed for all of them"
    seen = SEALED if any(reader.seen(exchange) != EACH for exchange in used) else UPLOADS
    return AttackResult(attack, "server", seen, True, good > 0, text, good, there, *pictures(pairs))


def _not_sent(reader: Reader, attack: str, why: str) -> AttackResult:
    """There are no equations, as far as uploads can be read."""
    if any(not reader.readable(exchange) for exchange in reader.rounds):
        return not_applicable(attack, HIDDEN, seen="encrypted uploads")
    return not_applicable(attack, why + reader.attribution)


# --- inner products --------------------------------------------------------------------------------------------------


def _from_products(reader: Reader) -> AttackResult:
    """A client's rows, in its columns, from their inner products with weights that the server has broadcast.

    A row with as many independent products as the client has columns is determined in a single round; others take
    several rounds in which they are drawn.
    """
    used, collected = list[Exchange](), defaultdict[int, list[InnerProducts]](list)
    for exchange, _, client, products in reader.of_clients(InnerProducts, reader.exchanges.values(), FEW):
        used.append(exchange)
        collected[client].append(products)
    if not collected:
        why = "no client sends inner products of its rows with weights that the server knows"
        return _not_sent(reader, PRODUCTS, why)
    clients = [_solved(reader, client, items) for client, items in sorted(collected.items())[:FEW]]
    return _compared(reader, PRODUCTS, used, "equations per row", clients)


def _solved(reader: Reader, client: int, items: list[InnerProducts]) -> _Rows:
    shard = reader.replay.shards[client]
    numbers = np.unique(np.concatenate([item.rows for item in items]))
    left = np.concatenate([item.weights for item in items], axis=1).T  # [e, p]
    if len(left) < shard.features or len(numbers) * shard.features > LARGEST:
        return _Rows(len(numbers), len(left), shard.features)
    right = np.full((len(left), len(numbers)), np.nan)  # [e, s]; NaN where a row is in no equation
    ends = np.cumsum([item.products.shape[1] for item in items])
    for part, item in zip(np.split(right, ends[:-1]), items, strict=True):
        part[:, np.searchsorted(numbers, item.rows)] = item.products.T
    rows, known, got = np.zeros((len(numbers), shard.features)), np.zeros(len(numbers), bool), 0
    patterns, pattern_of = np.unique(~np.isnan(right.T), axis=0, return_inverse=True)
    for number, there in enumerate(patterns):
        who = np.flatnonzero(pattern_of.reshape(-1) == number)
        solution, determined, rank = _solve(left[there], right[there][:, who])
        rows[who], known[who], got = solution.T, determined.all(), max(got, rank)
    truth = dense_rows(shard, np.searchsorted(shard.rows, numbers))
    return _Rows(len(numbers), got, shard.features, rows[known], truth[known])


# --- weighted sums of rows -------------------------------------------------------------------------------------------


def _from_derivatives(reader: Reader) -> AttackResult | None:
    """From gradients of columns, X'D, and the derivatives D of the loss by the scores that were sent in the same round.

    A minibatch of no more rows than scores is determined in a single round.
    """
    derivatives, used, clients = dict[int, ScoreDerivatives](), list[Exchange](), list[_Rows]()
    for exchange, play, _, told in reader.of_clients(ScoreDerivatives, reader.rounds):
        derivatives[play.round] = told
        used.append(exchange)
    if not derivatives:
        return None
    for exchange, play, client, mean in reader.of_clients(MeanGradient, reader.rounds, FEW):
        if not mean.parts or play.round not in derivatives:
            continue
        used.append(exchange)
        shard, (numbers, slopes) = reader.replay.shards[client], derivatives[play.round]
        solution, known, rank = _solve(slopes.T, mean.gradient.first.T)
        truth = dense_rows(shard, np.searchsorted(shard.rows, numbers))
        clients.append(_Rows(len(numbers), rank, len(numbers), solution[known], truth[known]))
    return _compared(reader, LINEAR, used, "independent derivatives", clients)


def _from_duals(reader: Reader) -> AttackResult:
    """From X'alpha and the dual variables themselves; rows whose dual variables never changed are not determined."""
    weights, used = _weights_of_rows(reader)
    if not weights:
        why = "no client sends dual variables, or derivatives by scores, together with sums of rows weighted by them"
        return _not_sent(reader, LINEAR, why)
    sums = defaultdict[int, list[tuple[Array, Array]]](list)  # by client, weights of its rows and their sums
    for exchange, play, client, dual_sum in reader.of_clients(DualSum, reader.rounds):
        number, weight = weights.get(play.round, (0, None))
        if weight is None or reader.position(exchange) < number:  # sent before the steps of this round
            continue
        used.append(exchange)
        sums[client].append((weight[reader.replay.shards[client].rows], dual_sum.values))
    clients = list[_Rows]()
    for client, pairs in sorted(sums.items())[:FEW]:
        shard, (left, right) = reader.replay.shards[client], map(np.array, zip(*pairs, strict=True))
        at = np.flatnonzero(left.any(axis=0))  # rows that are in an equation
        if len(at) * shard.features > LARGEST:
            clients.append(_Rows(shard.samples, len(left), len(at)))
            continue
        solution, known, rank = _solve(left[:, at], right)
        clients.append(_Rows(shard.samples, rank, len(at), solution[known], dense_rows(shard, at)[known]))
    return _compared(reader, LINEAR, used, "equations for the rows whose dual variables changed", clients)


def _weights_of_rows(reader: Reader) -> tuple[dict[int, tuple[int, Floats]], list[Exchange]]:
    """({round: (index of the exchange, [N] weights of rows)}, exchanges) from all steps since the first round."""
    weights, used = dict[int, tuple[int, Floats]](), list[Exchange]()
    zeros = np.zeros(reader.replay.problem.samples)
    for exchange in reader.rounds:
        sent, first = dict[Play, dict[int, Floats]](), dict[Play, DualVariables]()
        for _, play, client, variables in reader.of_clients(DualVariables, [exchange]):
            values = sent.setdefault(play, {}).setdefault(client, zeros.copy())
            values[variables.rows] += variables.values
            first.setdefault(play, variables)
        now, before, last = zeros, zeros, dict[int, Floats]()
        for play, by_client in sent.items():
            used.append(exchange)
            last = last | by_client if first[play].lasting else by_client
            by, by_last = first[play].before
            now, before = np.sum(list(last.values()), axis=0) + by * now + by_last * before, now
            weights[play.round] = reader.position(exchange), now
    return weights, used


# --- rows that moved alone -------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """The change of X'alpha of clients, computed, or sent as a change."""

    clients: tuple[int, ...]  # that hold the same samples; all clients for a change of the sum
    columns: NDArray[np.int64]
    values: Floats


def _moved_rows(reader: Reader) -> Iterator[AttackResult]:
    """Changes that are a single row up to its length; nothing if no sums over dual variables are sent."""
    shards, sums = reader.replay.shards, list(reader.of_sums(DualSum, reader.rounds))
    if not sums:
        return
    last = sums[-1][0]
    if reader.readable(last):
        exchanges = {exchange.name: exchange for exchange, _, _ in sums}.values()
        yield _moved(reader, list(_of_each(reader, exchanges)), reader.seen(last))
    else:
        yield not_applicable(MOVED, HIDDEN, seen="encrypted uploads")
    decoded = [((play.round, 0), dual_sum) for exchange, play, dual_sum in sums if exchange is last]
    changes = [_Change(tuple(shards), np.arange(len(values)), values) for _, values in _changes(decoded)]
    yield _moved(reader, changes, SUM)


def _of_each(reader: Reader, exchanges: Iterable[Exchange]) -> Iterator[_Change]:
    """Changes of clients, concatenated for clients that hold the same samples."""
    collected = defaultdict[int, list[tuple[When, DualSum]]](list)
    for exchange, play, client, dual_sum in reader.of_clients(DualSum, exchanges):
        collected[client].append(((play.round, reader.position(exchange)), dual_sum))
    grouped = defaultdict[tuple[tuple[When, ...], int], list[tuple[int, Floats]]](list)
    for client, sums in sorted(collected.items()):
        for whens, change in _changes(sorted(sums, key=lambda item: item[0])):
            grouped[whens, int(reader.replay.problem.rows.groups[client])].append((client, change))
    for _, parts in sorted(grouped.items(), key=lambda item: item[0]):
        clients, changes = zip(*parts, strict=True)
        columns = np.concatenate([reader.replay.shards[client].columns for client in clients])
        yield _Change(clients, columns, np.concatenate(changes))


def _changes(sums: list[tuple[When, DualSum]]) -> Iterator[tuple[tuple[When, ...], Floats]]:
    """(when, change) between consecutive sums, from zero on; sums that are sent as changes are taken as they are."""
    before: tuple[When, Floats] = ((-1, 0), np.zeros(()))
    for when, (values, change) in sums:
        yield ((when,), values) if change else ((before[0], when), values - before[1])
        before = when, values


def _moved(reader: Reader, changes: list[_Change], seen: str) -> AttackResult:
    """Changes that are a row up to a factor, within rounding."""
    considered = [change for change in changes if np.count_nonzero(change.values) >= NARROWEST][:TRIED]
    pairs = [(change.values, row) for change in considered for row in _nearest(reader, change)]
    text = f"{len(pairs)} of {len(considered)} changes are a single row, up to its length; the others are sums of rows"
    return AttackResult(MOVED, "server", seen, True, bool(pairs), text, len(pairs), len(considered), *pictures(pairs))


def _nearest(reader: Reader, change: _Change) -> Iterator[Floats]:
    """The row that a change equals up to a factor, in its columns; none if it is no single row."""
    replay, problem = reader.replay, reader.replay.problem
    whole = np.zeros(problem.features)
    whole[change.columns] = change.values
    scores, squares = np.zeros((2, problem.samples))
    for client in change.clients:
        shard = replay.shards[client]
        for at, X in shard.pieces(replay.job.compute.dtype):
            rows = shard.rows[at]
            scores[rows] += X @ whole[shard.columns].astype(X.dtype)
            squares[rows] += np.asarray((X.multiply(X) if shard.sparse else X * X).sum(axis=1)).ravel()
    cosines = np.abs(scores) / np.sqrt(np.maximum(squares, 1e-300))
    truth = replay.full_rows(np.argmax(np.where(squares > 0, cosines, 0.0), keepdims=True))[0, change.columns]
    nearest = match(change.values, truth[None])
    if abs(nearest.cosine) > ALIKE and nearest.scaled_error < SINGLE:
        yield truth
