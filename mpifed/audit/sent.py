"""Rows that stand in an answer as they are, up to a factor, whatever the algorithm says of it: no guess is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.attempt import SENT, Attempt, Floats, none
from mpifed.audit.reader import EACH, SUM, Reader, pictures
from mpifed.core.exchange import Exchange
from mpifed.core.record import leaves
from mpifed.core.reveals import Received

MOST_CLIENTS = 16
NARROWEST = 3  # numbers other than zero: of fewer, some row is near by chance
NEAR = 1e-3  # how far a row may lie from its place in an answer, relative to its length: answers are rounded
CHANCE = 1e-6  # that numbers which have nothing to do with rows are as near to any of them
LARGEST = 2**28  # products in one search
LARGEST_ROWS = 2**22  # numbers in the rows of one search


class _Hit(NamedTuple):
    """A row, and what stands in an answer."""

    row: int
    name: str  # of the field
    values: Floats
    truth: Floats


def sent_rows(reader: Reader, explained: set[str]) -> Iterator[Attempt]:
    """Of every exchange, set-up and measures included, of which no attack has made something already.

    Rows whose columns are shuffled are looked for, too: where these are met as often, rows are so plain that any are.
    """
    looked = [one for name, one in reader.exchanges.items() if name not in explained and reader.plays(one)]
    found = [(seen, one) for exchange in looked for seen, one in _received(reader, exchange) if not one.sealed]
    for seen in (EACH, SUM):
        answers, hits, strangers = 0, dict[tuple[str, str, int], _Hit](), 0
        for whose, received in found:
            if whose == seen:
                answers += 1
                met, by_chance = _search(reader, received)
                hits |= {(received.exchange.name, one.name, one.row): one for one in met}
                strangers += by_chance
        if answers:
            yield _attempt(hits, answers, strangers, seen)
        elif seen == EACH and looked:
            yield none(SENT, "no client's own answer can be read", seen="sealed uploads")


def _attempt(hits: dict[tuple[str, str, int], _Hit], answers: int, strangers: int, seen: str) -> Attempt:
    rows = {hit.row for hit in hits.values()}
    success = len(hits) > strangers + 3 * np.sqrt(strangers)
    text = f"{len(rows)} rows stand in {answers} answers that were looked through, up to a factor"
    places = dict.fromkeys(f'"{exchange}"' + (f" (`{name}`)" if name else "") for exchange, name, _ in hits)
    text += f": in those to {', '.join(places)}" if places else ""
    text += f"; and {strangers} whose columns were shuffled" if strangers else ""
    names = tuple(dict.fromkeys(exchange for exchange, _, _ in hits))
    shown = pictures([(hit.values, hit.truth) for hit in hits.values()])
    return Attempt(SENT, "server", seen, True, bool(success), text, len(rows), len(rows), *shown, names)


def _received(reader: Reader, exchange: Exchange) -> Iterator[tuple[str, Received]]:
    """(how it was seen, what) the first time and the last."""
    plays = reader.plays(exchange)
    for play in plays[:1] + plays[1:][-1:]:
        if reader.readable(exchange):
            for client in list(play.uploads)[:MOST_CLIENTS]:
                received = reader.of_client(exchange, play, client)
                if received is not None:
                    yield EACH, received
        for received in reader.of_sum(exchange, play):
            yield SUM, received


def _search(reader: Reader, received: Received) -> tuple[list[_Hit], int]:
    """(rows of these clients in the fields of an answer, how many shuffled ones are)."""
    fields = [(name, np.ravel(np.asarray(leaf, dtype=np.float64))) for name, leaf in leaves(received.answer)]
    width = len(received.columns)
    fields = [(name, values) for name, values in fields if len(values) >= width and values.any()]
    if width < NARROWEST or not fields:
        return [], 0
    numbers, rows = _rows(reader, received)
    plain = (np.count_nonzero(rows, axis=1) < NARROWEST) | (np.ptp(rows, axis=1) == 0)
    numbers, rows = numbers[~plain], rows[~plain]
    order = np.random.default_rng(reader.stage.job.seed).permutation(width)
    hits, strangers = list[_Hit](), 0
    for name, values in fields:
        for windows in _windows(values, width, _strides(reader, received)):
            hits += [_Hit(int(numbers[at]), name, found, rows[at]) for at, found in _near(windows, rows)]
            strangers += len(_near(windows, rows[:, order]))
    return hits, strangers


def _rows(reader: Reader, received: Received) -> tuple[Any, Floats]:
    """(numbers, [S, p_i]) of rows that may be there: those that entered first, as many as are compared."""
    stage, most = reader.stage, max(1, LARGEST_ROWS // len(received.columns))
    at = received.round, received.exchange.name
    entered = [stage.shards[client].rows[stage.rows(*at, client)] for client in received.clients]
    numbers = np.concatenate([*entered, received.rows])
    numbers = numbers[np.sort(np.unique(numbers, return_index=True)[1])][:most]
    shard = stage.shards[received.clients[0]]
    if len(received.clients) == 1 and len(shard.columns) == len(received.columns):  # else it is a sum of one answer
        numbers = np.sort(numbers)  # files are read in order
        return numbers, stage.features(shard.client, np.searchsorted(shard.rows, numbers))
    numbers = np.sort(numbers)
    return numbers, stage.whole(numbers)[:, received.columns]


def _strides(reader: Reader, received: Received) -> list[int]:
    """How far apart a row's numbers may stand: next to each other, or as in a matrix with a column for each score."""
    first = np.shape(getattr(reader.stage.algorithm.model(reader.stage.server), "first", ()))
    return list(dict.fromkeys((1, first[1] if len(first) == 2 else 1)))


def _windows(values: Floats, width: int, strides: list[int]) -> Iterator[Floats]:
    """[m, p] places where a row may stand; of long answers those at which matrices would have them."""
    for stride in strides:
        span = (width - 1) * stride + 1
        starts = np.arange(len(values) - span + 1)
        if len(starts) * width > LARGEST_ROWS:
            starts = starts[starts % (width * stride) < stride][: LARGEST_ROWS // width]
        if len(starts):
            yield values[starts[:, None] + stride * np.arange(width)]


def _near(windows: Floats, rows: Floats) -> list[tuple[int, Floats]]:
    """(which row, the window) of rows that stand in some window up to a factor, in this order or backwards."""
    lengths = np.linalg.norm(windows, axis=1)
    windows, lengths = windows[lengths > 0], lengths[lengths > 0]
    rows = rows[: max(1, LARGEST // max(1, windows.size))]
    if not len(windows) or not len(rows):
        return []
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = 2 * len(windows) * len(rows)
    near = np.minimum(NEAR, (CHANCE / pairs) ** (1 / (np.count_nonzero(rows, axis=1) - 1)))  # of random directions
    found = dict[int, Floats]()
    for turned in (windows, windows[:, ::-1]):
        cosines = np.abs(turned @ units.T) / lengths[:, None]  # [m, S]
        best = cosines.argmax(axis=0)
        error = np.sqrt(np.maximum(0.0, 1 - cosines[best, np.arange(len(rows))] ** 2))
        found |= {int(at): turned[best[at]] for at in np.flatnonzero(error < near)}
    return list(found.items())
