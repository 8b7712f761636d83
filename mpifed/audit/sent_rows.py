"""Search for rows that an upload contains verbatim, up to a factor; needs no declaration of the algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpifed.audit.attack_result import SENT, AttackResult, Floats, beyond_chance, not_applicable, pictures
from mpifed.audit.reader import EACH, SUM, Reader
from mpifed.core.record import Array, leaves
from mpifed.core.reveals import Received

MOST_CLIENTS = 16  # most clients whose uploads are searched
NARROWEST = 3  # least nonzero numbers of a row: with fewer, matches occur by chance
NEAR = 1e-3  # largest relative distance of a row from the upload, which is rounded
CHANCE = 1e-6  # probability that unrelated numbers are as near to any row
LARGEST = 2**28  # most products of a search
LARGEST_ROWS = 2**22  # most numbers in the rows of a search


class _SentRow(NamedTuple):
    """A row, and the part of an upload that matches it."""

    row: int
    field: str
    values: Floats
    truth: Floats


def sent_rows(reader: Reader, explained: set[str]) -> Iterator[AttackResult]:
    """Search the uploads of every exchange, including set-up and measures, on which no attack has succeeded.

    Rows with shuffled columns are searched for as a control: if they match as often, matches are by chance.
    """
    looked = [
        exchange for name, exchange in reader.exchanges.items() if name not in explained and reader.plays(exchange)
    ]
    messages = (
        message
        for exchange in looked
        for play in reader.first_and_last(exchange)
        for message in reader.received(exchange, play, MOST_CLIENTS)
    )
    candidates = [(seen, received) for seen, received in messages if not received.sealed]
    for seen in (EACH, SUM):
        answers, hits, strangers = 0, dict[tuple[str, str, int], _SentRow](), 0
        for whose, received in candidates:
            if whose == seen:
                answers += 1
                met, by_chance = _search(reader, received)
                hits |= {(received.exchange.name, hit.field, hit.row): hit for hit in met}
                strangers += by_chance
        if answers:
            yield _result(hits, answers, strangers, seen)
        elif seen == EACH and looked:
            yield not_applicable(SENT, "no client's own upload can be read", seen="masked or encrypted uploads")


def _result(hits: dict[tuple[str, str, int], _SentRow], answers: int, strangers: int, seen: str) -> AttackResult:
    rows = {hit.row for hit in hits.values()}
    success = beyond_chance(len(hits), strangers)
    text = f"{len(rows)} rows, up to a factor, in {answers} uploads and sums that were searched"
    places = dict.fromkeys(f'"{exchange}"' + (f" (`{name}`)" if name else "") for exchange, name, _ in hits)
    text += f": in {', '.join(places)}" if places else ""
    text += f"; and {strangers} rows with shuffled columns" if strangers else ""
    names = tuple(dict.fromkeys(exchange for exchange, _, _ in hits))
    shown = pictures([(hit.values, hit.truth) for hit in hits.values()])
    return AttackResult(SENT, "server", seen, True, success, text, len(rows), len(rows), *shown, names)


def _search(reader: Reader, received: Received) -> tuple[list[_SentRow], int]:
    """(rows of these clients in the fields of a message, number of matches of shuffled rows)."""
    fields = [(name, np.ravel(np.asarray(leaf, dtype=np.float64))) for name, leaf in leaves(received.answer)]
    width = len(received.columns)
    fields = [(name, values) for name, values in fields if len(values) >= width and values.any()]
    if width < NARROWEST or not fields:
        return [], 0
    numbers, rows = _rows(reader, received)
    plain = (np.count_nonzero(rows, axis=1) < NARROWEST) | (np.ptp(rows, axis=1) == 0)
    numbers, rows = numbers[~plain], rows[~plain]
    order = np.random.default_rng(reader.replay.job.seed).permutation(width)
    hits, strangers = list[_SentRow](), 0
    for name, values in fields:
        for windows in _windows(values, width, _strides(reader, received)):
            hits += [_SentRow(int(numbers[at]), name, window, rows[at]) for at, window in _near(windows, rows)]
            strangers += len(_near(windows, rows[:, order]))
    return hits, strangers


def _rows(reader: Reader, received: Received) -> tuple[Array, Floats]:
    """(row indices, [S, p_i] rows) to search for: first those that entered, then others up to the limit."""
    replay, most = reader.replay, max(1, LARGEST_ROWS // len(received.columns))
    at = received.round, received.exchange.name
    entered = [replay.shards[client].rows[replay.rows(*at, client)] for client in received.clients]
    numbers = np.concatenate([*entered, received.rows])
    numbers = numbers[np.sort(np.unique(numbers, return_index=True)[1])][:most]
    shard = replay.shards[received.clients[0]]
    if len(received.clients) == 1 and len(shard.columns) == len(received.columns):  # else the message is a sum
        numbers = np.sort(numbers)  # files are read in order
        return numbers, replay.features(shard.client, np.searchsorted(shard.rows, numbers))
    numbers = np.sort(numbers)
    return numbers, replay.full_rows(numbers)[:, received.columns]


def _strides(reader: Reader, received: Received) -> list[int]:
    """Possible strides of a row's numbers: adjacent, or those of a matrix with a column per score."""
    first = np.shape(getattr(reader.replay.algorithm.model(reader.replay.server), "first", ()))
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
    # probability for random directions
    near = np.minimum(NEAR, (CHANCE / pairs) ** (1 / (np.count_nonzero(rows, axis=1) - 1)))
    nearest = dict[int, Floats]()
    for turned in (windows, windows[:, ::-1]):
        cosines = np.abs(turned @ units.T) / lengths[:, None]  # [m, S]
        best = cosines.argmax(axis=0)
        error = np.sqrt(np.maximum(0.0, 1 - cosines[best, np.arange(len(rows))] ** 2))
        nearest |= {int(at): turned[best[at]] for at in np.flatnonzero(error < near)}
    return list(nearest.items())
