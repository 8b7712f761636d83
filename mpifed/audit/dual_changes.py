"""Rows from changes of sums over dual variables: X'alpha of each client in the clear, or of all clients.

If the dual variable of a single sample has changed, the change of X'alpha is that sample's row times its step: it
reveals the row up to its length and sign. Clients with the same samples have changed the same dual variable, so that
their parts of the row fit together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attack_result import MOVED, AttackResult, Floats, not_applicable, pictures
from mpifed.audit.attacks.matching import ALIKE, match
from mpifed.audit.received import HIDDEN, SUM, Reader
from mpifed.audit.replay import Replay
from mpifed.core.exchange import Exchange
from mpifed.core.reveals import DualSum

TRIED = 64  # most changes that are examined, of each kind
SINGLE = 1e-3  # largest distance from a row, relative to its length, of a change of a single sample
NARROWEST = 3  # least nonzero numbers of a change: with fewer, a row is near by chance

When: TypeAlias = tuple[int, int]  # round, and number of the exchange


class _Change(NamedTuple):
    """The change of X'alpha of clients, computed, or sent as a change."""

    clients: tuple[int, ...]  # that hold the same samples; all clients for a change of the sum
    columns: NDArray[np.int64]
    values: Floats


def dual_change_attacks(reader: Reader) -> Iterator[AttackResult]:
    """Changes that are a single row up to its length; nothing if no sums over dual variables are sent."""
    exchanges = [exchange for exchange in reader.rounds if any(True for _ in reader.revealed_by_sum(DualSum, exchange))]
    if not exchanges:
        return
    last = exchanges[-1]
    if reader.readable(last):
        yield _moved(reader.replay, list(_of_each(reader, exchanges)), reader.seen(last))
    else:
        yield not_applicable(MOVED, HIDDEN, seen="encrypted uploads")
    yield _moved(reader.replay, list(_of_sum(reader, last)), SUM)


def _of_each(reader: Reader, exchanges: list[Exchange]) -> Iterator[_Change]:
    """Changes of clients, concatenated for clients that hold the same samples."""
    replay = reader.replay
    collected: dict[int, list[tuple[When, DualSum]]] = defaultdict(list)
    for exchange in exchanges:
        for play, by_client in reader.revealed_by_client(DualSum, exchange):
            when = play.round, reader.position(exchange)
            for client, items in by_client.items():
                collected[client] += [(when, dual_sum) for dual_sum in items]
    grouped: dict[tuple[tuple[When, ...], int], list[tuple[int, Floats]]] = defaultdict(list)
    for client, sums in sorted(collected.items()):
        for whens, change in _changes(sorted(sums, key=lambda item: item[0])):
            grouped[whens, int(replay.algorithm.problem.rows.groups[client])].append((client, change))
    for _, parts in sorted(grouped.items(), key=lambda item: item[0]):
        clients = tuple(client for client, _ in parts)
        columns = np.concatenate([replay.shards[client].columns for client in clients])
        yield _Change(clients, columns, np.concatenate([change for _, change in parts]))


def _of_sum(reader: Reader, exchange: Exchange) -> Iterator[_Change]:
    """Changes of the sum over all clients, which the server decodes with any security."""
    sums = [((play.round, 0), dual_sum) for play, dual_sum in reader.revealed_by_sum(DualSum, exchange)]
    for _, change in _changes(sums):
        yield _Change(tuple(reader.replay.shards), np.arange(len(change)), change)


def _changes(sums: list[tuple[When, DualSum]]) -> Iterator[tuple[tuple[When, ...], Floats]]:
    """(when, change) between consecutive sums, from zero on; sums that are sent as changes are taken as they are."""
    before: tuple[When, Floats] = ((-1, 0), np.zeros(()))
    for when, dual_sum in sums:
        values = np.asarray(dual_sum.values, dtype=np.float64)
        yield ((when,), values) if dual_sum.change else ((before[0], when), values - before[1])
        before = when, values


def _moved(replay: Replay, changes: list[_Change], seen: str) -> AttackResult:
    """Changes that are a row up to a factor, within rounding."""
    considered = [change for change in changes if np.count_nonzero(change.values) >= NARROWEST][:TRIED]
    pairs = [pair for pair in (_nearest(replay, change) for change in considered) if pair is not None]
    text = f"{len(pairs)} of {len(considered)} changes are a single row, up to its length; the others are sums of rows"
    success, shown = bool(pairs), pictures(pairs)
    return AttackResult(MOVED, "server", seen, True, success, text, len(pairs), len(considered), *shown)


def _nearest(replay: Replay, change: _Change) -> tuple[Floats, Floats] | None:
    """(the change, the row that it equals up to a factor) in its columns; None if it is no single row."""
    problem = replay.algorithm.problem
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
    return (change.values, truth) if abs(nearest.cosine) > ALIKE and nearest.scaled_error < SINGLE else None
