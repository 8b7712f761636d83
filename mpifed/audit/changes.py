"""Rows from how sums over dual variables changed: X'alpha of each client in the clear, or of all, which w follows.

Where one sample alone has moved in between, the change is that sample's row times its step: who hears it has the row
but for its length and sign. Clients with the same samples have moved the same one, so that their parts fit together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.cocoa import CoCoA
from mpifed.algorithms.hyfdca import HyFDCA
from mpifed.audit.attacks.matching import ALIKE, match
from mpifed.audit.attempt import MOVED, Attempt, Floats, none
from mpifed.audit.heard import HIDDEN, Heard, pictures
from mpifed.audit.stage import Stage
from mpifed.audit.targets import SUM

TRIED = 64  # changes that are looked at, of each kind
ONE = 1e-3  # a change farther than that from every row, relative to its length, is of several
NARROWEST = 3  # numbers other than zero: of fewer, some row among many is near by chance

# X'alpha, or its change, in the answers to these
_PULLED = {"return-primal": "pulled", "primal": "pulled", "planes": "pulled", "changes": "w"}


class _Change(NamedTuple):
    """How X'alpha of some clients changed, or a change that they have sent as such."""

    clients: tuple[int, ...]  # who hold the same samples; or all, where it is of the sum
    columns: NDArray[np.int64]
    values: Floats


def from_changes(stage: Stage, exchanges: Heard) -> Iterator[Attempt]:
    """Changes that are one row, up to its length."""
    names = [name for name in _PULLED if name in exchanges and exchanges.plays(name)]
    if not names:
        yield none(MOVED, "no exchange of a round was recorded to its end")
        return
    if exchanges.readable(names[-1]):
        yield _moved(stage, list(_of_each(stage, exchanges, names)), exchanges.seen(names[-1]))
    else:
        yield none(MOVED, HIDDEN, seen="sealed uploads")
    yield _moved(stage, list(_of_sum(stage, exchanges)), SUM)


def _of_each(stage: Stage, exchanges: Heard, names: list[str]) -> Iterator[_Change]:
    """Of the clients who hold the same samples together."""
    told: dict[int, list[tuple[tuple[int, int], Floats]]] = defaultdict(list)
    for order, name in enumerate(names):
        for play, answers in exchanges.answers(name, _PULLED[name]):
            for client, pulled in answers.items():
                told[client].append(((play.round, order), pulled[stage.shards[client].columns]))
    together: dict[tuple[Any, ...], list[tuple[int, Floats]]] = defaultdict(list)
    for client, several in sorted(told.items()):
        several.sort(key=lambda one: one[0])
        for when, change in _changes(stage, several):
            key = when, int(stage.cells.rows.groups[client])
            together[key].append((client, change))
    for _, parts in sorted(together.items()):
        clients = tuple(client for client, _ in parts)
        columns = np.concatenate([stage.shards[client].columns for client in clients])
        yield _Change(clients, columns, np.concatenate([change for _, change in parts]))


def _of_sum(stage: Stage, exchanges: Heard) -> Iterator[_Change]:
    """Of all clients, as the server hears it in every channel."""
    name = next(name for name in ("primal", "planes", "changes") if name in exchanges)
    opened = [play for play in exchanges.plays(name) if play.opened_for == "server" and _PULLED[name] in play.opened]
    several = [((play.round, 0), np.asarray(play.opened[_PULLED[name]], dtype=np.float64)) for play in opened]
    for _, change in _changes(stage, several):
        yield _Change(tuple(stage.shards), np.arange(len(change)), change)


def _changes(
    stage: Stage, several: list[tuple[tuple[int, int], Floats]]
) -> Iterator[tuple[tuple[tuple[int, int], ...], Floats]]:
    """(when, change), from zero on; what is a direction already is a change itself."""
    algorithm: Any = stage.algorithm
    if isinstance(algorithm, CoCoA) or (isinstance(algorithm, HyFDCA) and algorithm.rule == "line-search"):
        yield from (((when,), values) for when, values in several)
        return
    before: tuple[tuple[int, int], Any] = ((-1, 0), 0.0)
    for when, values in several:
        yield (before[0], when), values - before[1]
        before = when, values


def _moved(stage: Stage, changes: list[_Change], seen: str) -> Attempt:
    """Those changes that are some row, up to a factor; none is taken for one that is not as near as rounding leaves."""
    there = [one for one in changes if np.count_nonzero(one.values) >= NARROWEST][:TRIED]
    pairs = [pair for pair in (_nearest(stage, one) for one in there) if pair is not None]
    text = f"{len(pairs)} of {len(there)} changes are one row, up to its length; others are of several rows that moved"
    success = bool(pairs)
    return Attempt(MOVED, "server", seen, True, success, text, len(pairs), len(there), *pictures(pairs))


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
