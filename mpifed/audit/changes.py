"""Rows from how sums over dual variables changed: X'alpha of each client in the clear, or of all, which w follows.

Where one sample alone has moved in between, the change is that sample's row times its step: who hears it has the row
but for its length and sign. Clients with the same samples have moved the same one, so that their parts fit together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attacks.matching import ALIKE, match
from mpifed.audit.attempt import MOVED, Attempt, Floats, none
from mpifed.audit.reader import HIDDEN, SUM, Reader, pictures
from mpifed.audit.stage import Stage
from mpifed.core.exchange import Exchange
from mpifed.core.reveals import DualSum

TRIED = 64  # changes that are looked at, of each kind
ONE = 1e-3  # a change farther than that from every row, relative to its length, is of several
NARROWEST = 3  # numbers other than zero: of fewer, some row among many is near by chance

When: TypeAlias = tuple[int, int]  # round, and number of the exchange


class _Change(NamedTuple):
    """How X'alpha of some clients changed, or a change that they have sent as such."""

    clients: tuple[int, ...]  # who hold the same samples; or all, where it is of the sum
    columns: NDArray[np.int64]
    values: Floats


def from_changes(reader: Reader) -> Iterator[Attempt]:
    """Changes that are one row, up to its length; nothing where no sums over dual variables are sent."""
    exchanges = [one for one in reader.rounds if any(True for _ in reader.told_by_sum(DualSum, one))]
    if not exchanges:
        return
    last = exchanges[-1]
    if reader.readable(last):
        names = tuple(one.name for one in exchanges)
        yield _moved(reader.stage, list(_of_each(reader, exchanges)), reader.seen(last), names)
    else:
        yield none(MOVED, HIDDEN, seen="sealed uploads")
    yield _moved(reader.stage, list(_of_sum(reader, last)), SUM, (last.name,))


def _of_each(reader: Reader, exchanges: list[Exchange]) -> Iterator[_Change]:
    """Of the clients who hold the same samples together."""
    stage = reader.stage
    told: dict[int, list[tuple[When, DualSum]]] = defaultdict(list)
    for exchange in exchanges:
        for play, each in reader.told(DualSum, exchange):
            when = play.round, reader.position(exchange)
            for client, several in each.items():
                told[client] += [(when, one) for one in several]
    together: dict[tuple[tuple[When, ...], int], list[tuple[int, Floats]]] = defaultdict(list)
    for client, sums in sorted(told.items()):
        for whens, change in _changes(sorted(sums, key=lambda one: one[0])):
            together[whens, int(stage.cells.rows.groups[client])].append((client, change))
    for _, parts in sorted(together.items(), key=lambda one: one[0]):
        clients = tuple(client for client, _ in parts)
        columns = np.concatenate([stage.shards[client].columns for client in clients])
        yield _Change(clients, columns, np.concatenate([change for _, change in parts]))


def _of_sum(reader: Reader, exchange: Exchange) -> Iterator[_Change]:
    """Of all clients, as the server hears it in every channel."""
    several = [((play.round, 0), one) for play, one in reader.told_by_sum(DualSum, exchange)]
    for _, change in _changes(several):
        yield _Change(tuple(reader.stage.shards), np.arange(len(change)), change)


def _changes(several: list[tuple[When, DualSum]]) -> Iterator[tuple[tuple[When, ...], Floats]]:
    """(when, change), from zero on; what is a change already is taken as it is."""
    before: tuple[When, Any] = ((-1, 0), 0.0)
    for when, one in several:
        values = np.asarray(one.values, dtype=np.float64)
        yield ((when,), values) if one.change else ((before[0], when), values - before[1])
        before = when, values


def _moved(stage: Stage, changes: list[_Change], seen: str, exchanges: tuple[str, ...]) -> Attempt:
    """Those changes that are some row, up to a factor; none is taken for one that is not as near as rounding leaves."""
    there = [one for one in changes if np.count_nonzero(one.values) >= NARROWEST][:TRIED]
    pairs = [pair for pair in (_nearest(stage, one) for one in there) if pair is not None]
    text = f"{len(pairs)} of {len(there)} changes are one row, up to its length; others are of several rows that moved"
    success, shown = bool(pairs), pictures(pairs)
    return Attempt(MOVED, "server", seen, True, success, text, len(pairs), len(there), *shown, exchanges)


def _nearest(stage: Stage, change: _Change) -> tuple[Floats, Floats] | None:
    """(the change, the row that it is) in these columns; None where it is none."""
    problem = stage.algorithm.problem
    whole = np.zeros(problem.features)
    whole[change.columns] = change.values
    scores, squares = np.zeros((2, problem.samples))
    for client in change.clients:
        shard = stage.shards[client]
        for at, X in shard.pieces(stage.job.compute.dtype):
            rows = shard.rows[at]
            scores[rows] += X @ whole[shard.columns].astype(X.dtype)
            squares[rows] += np.asarray((X.multiply(X) if shard.sparse else X * X).sum(axis=1)).ravel()
    cosines = np.abs(scores) / np.sqrt(np.maximum(squares, 1e-300))
    truth = stage.whole(np.argmax(np.where(squares > 0, cosines, 0.0), keepdims=True))[0, change.columns]
    found = match(change.values, truth[None])
    return (change.values, truth) if abs(found.cosine) > ALIKE and found.scaled_error < ONE else None
