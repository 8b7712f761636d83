"""Search for rows that an upload contains verbatim, up to a factor; needs no declaration of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.audit.attempt import SENT, Attempt, Floats, none
from mpifed.audit.reader import EACH, SUM, Reader, pictures
from mpifed.core.exchange import Exchange
from mpifed.core.record import leaves
from mpifed.core.reveals import Received

MOST_CLIENTS = 16  # most clients whose uploads are searched
NARROWEST = 3  # least nonzero numbers of a row: with fewer, matches occur by chance
NEAR = 1e-3  # largest relative distance of a row from the upload, which is rounded
CHANCE = 1e-6  # probability that unrelated numbers are as near to any row
LARGEST = 2**28  # most products of a search
LARGEST_ROWS = 2**22  # most numbers in the rows of a search


class _Hit(NamedTuple):
    """A row, and the part of an upload that matches it."""

    row: int
    field: str
    values: Floats
    truth: Floats


def sent_rows(reader: Reader, explained: set[str]) -> Iterator[Attempt]:
    """Search the uploads of every exchange, including set-up and measures, on which no attack has succeeded.

    Rows with shuffled columns are searched for as a control: if they match as often, matches are by chance.
    """
    looked = [
        exchange for name, exchange in reader.exchanges.items() if name not in explained and reader.plays(exchange)
    ]
    candidates = [
        (seen, received) for exchange in looked for seen, received in _received(reader, exchange) if not received.sealed
    ]
    for seen in (EACH, SUM):
        answers, hits, strangers = 0, dict[tuple[str, str, int], _Hit](), 0
        for whose, received in candidates:
            if whose == seen:
                answers += 1
                met, by_chance = _search(reader, received)
                hits |= {(received.exchange.name, hit.field, hit.row): hit for hit in met}
                strangers += by_chance
        if answers:
            yield _attempt(hits, answers, strangers, seen)
        elif seen == EACH and looked:
            yield none(SENT, "no client's own upload can be read", seen="masked or encrypted uploads")


def _attempt(hits: dict[tuple[str, str, int], _Hit], answers: int, strangers: int, seen: str) -> Attempt:
    rows = {hit.row for hit in hits.values()}
    success = len(hits) > strangers + 3 * np.sqrt(strangers)
    text = f"{len(rows)} rows, up to a factor, in {answers} uploads and sums that were searched"
    places = dict.fromkeys(f'"{exchange}"' + (f" (`{name}`)" if name else "") for exchange, name, _ in hits)
    text += f": in {', '.join(places)}" if places else ""
    text += f"; and {strangers} rows with shuffled columns" if strangers else ""
    names = tuple(dict.fromkeys(exchange for exchange, _, _ in hits))
    shown = pictures([(hit.values, hit.truth) for hit in hits.values()])
    return Attempt(SENT, "server", seen, True, bool(success), text, len(rows), len(rows), *shown, names)


def _received(reader: Reader, exchange: Exchange) -> Iterator[tuple[str, Received]]:
    """(EACH or SUM, message) of the first and last occurrence."""
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
    """(rows of these clients in the fields of a message, number of matches of shuffled rows)."""
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
            hits += [_Hit(int(numbers[at]), name, window, rows[at]) for at, window in _near(windows, rows)]
            strangers += len(_near(windows, rows[:, order]))
    return hits, strangers


def _rows(reader: Reader, received: Received) -> tuple[Any, Floats]:
    """(row indices, [S, p_i] rows) to search for: first those that entered, then others up to the limit."""
    stage, most = reader.stage, max(1, LARGEST_ROWS // len(received.columns))
    at = received.round, received.exchange.name
    entered = [stage.shards[client].rows[stage.rows(*at, client)] for client in received.clients]
    numbers = np.concatenate([*entered, received.rows])
    numbers = numbers[np.sort(np.unique(numbers, return_index=True)[1])][:most]
    shard = stage.shards[received.clients[0]]
    if len(received.clients) == 1 and len(shard.columns) == len(received.columns):  # else the message is a sum
        numbers = np.sort(numbers)  # files are read in order
        return numbers, stage.features(shard.client, np.searchsorted(shard.rows, numbers))
    numbers = np.sort(numbers)
    return numbers, stage.whole(numbers)[:, received.columns]


def _strides(reader: Reader, received: Received) -> list[int]:
    """Possible strides of a row's numbers: adjacent, or those of a matrix with a column per score."""
    first = np.shape(getattr(reader.stage.algorithm.model(reader.stage.server), "first", ()))
    return list(dict.fromkeys((1, first[1] if len(first) == 2 else 1)))


def _windows(values: Floats, width: int, strides: list[int]) -> Iterator[Floats]:
    """[m, p] windows where a row may be; of long messages, only windows aligned as in matrices."""
    for stride in strides:
        span = (width - 1) * stride + 1
        starts = np.arange(len(values) - span + 1)
        if len(starts) * width > LARGEST_ROWS:
            starts = starts[starts % (width * stride) < stride][: LARGEST_ROWS // width]
        if len(starts):
            yield values[starts[:, None] + stride * np.arange(width)]


def _near(windows: Floats, rows: Floats) -> list[tuple[int, Floats]]:
    """(position of the row, window) of rows that match a window up to a factor, in order or reversed."""
    lengths = np.linalg.norm(windows, axis=1)
    windows, lengths = windows[lengths > 0], lengths[lengths > 0]
    rows = rows[: max(1, LARGEST // max(1, windows.size))]
    if not len(windows) or not len(rows):
        return []
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    pairs = 2 * len(windows) * len(rows)
    near = np.minimum(
        NEAR, (CHANCE / pairs) ** (1 / (np.count_nonzero(rows, axis=1) - 1))
    )  # probability for random directions
    nearest = dict[int, Floats]()
    for turned in (windows, windows[:, ::-1]):
        cosines = np.abs(turned @ units.T) / lengths[:, None]  # [m, S]
        best = cosines.argmax(axis=0)
        error = np.sqrt(np.maximum(0.0, 1 - cosines[best, np.arange(len(rows))] ** 2))
        nearest |= {int(at): turned[best[at]] for at in np.flatnonzero(error < near)}
    return list(nearest.items())
