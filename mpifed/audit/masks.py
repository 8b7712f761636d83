"""The masks of a transcript themselves: uploads less what was masked, which the auditor has from the plain channel.

Where masks are sums of key streams as they should be, their words are uniform and independent. Then no number of 64
bits is zero, no window of 128 bits occurs twice or with the other sign, and every bit is one, and unlike the next, in
half of the words. All words are looked at, and windows at every offset. The chance of a false alarm among n words is
at most n / 2^64 for zeros, n^2 / 2^128 for windows, and 2 exp(-32) for each of these counts of bits, of each client's
words of an exchange (Hoeffding).

Where the plaintexts cannot be had, a mask that is used twice shows in the difference of two uploads of a client, whose
high bits are then those of a difference of small numbers: all such pairs are looked at, and their sums as well.

A mask may look right and yet cancel in a sum that the server is not to hear. So the masks of all who answer are added
up: in a sum for the server nothing is left of them, and in one for the clients, or where clients may leave, what is
left is looked at as a mask itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mpifed.audit.plays import Play, line_of, plays
from mpifed.audit.sealed import hidden
from mpifed.audit.stage import Stage
from mpifed.audit.windows import ones, repeats, uneven_bits
from mpifed.comm.line import Line
from mpifed.core.exchange import ToClients
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message

LEVEL = 1e-9  # of all tests of differences and sums
EVERYBODY = -1  # the client of a mask that is the sum of those of all who answered


class Mask(NamedTuple):
    """What a client has added to the numbers that it sent once."""

    exchange: str
    turn: int
    round: int
    client: int
    at: NDArray[np.int64]  # positions among the numbers that it sent
    words: NDArray[Any]  # unsigned

    @property
    def name(self) -> str:
        """For a report."""
        when = "beside the rounds" if self.round == SETUP else f"round {self.round}"
        return f"{whose(self.client)} in {self.exchange}, {when}"


def whose(client: int) -> str:
    """For a report."""
    return "all clients together" if client == EVERYBODY else f"client {client}"


class Masks(NamedTuple):
    """Of all uploads of a masked transcript."""

    known: list[Mask]
    sealed: list[Mask]  # whole uploads, where the plaintext is not known
    totals: list[Mask]  # of the masks of all who answered, where something has to be left of them
    left: list[str]  # and where something is left that should not be


def masks_of(stage: Stage, messages: Sequence[Message], plain: Stage, own: bool) -> Masks:
    """The masks of all uploads to private exchanges.

    Parameters
    ----------
    plain : the same rounds in the plain channel
    own : whether the messages are of `stage` itself, which played exactly what `plain` did; of another run only what
        answers the same questions is compared
    """
    found, leaving = Masks([], [], [], []), stage.job.participation.max_dropouts > 0
    for exchange in {one.name: one for one in all_exchanges(stage.algorithm) if one.private}.values():
        line = line_of(stage, exchange)
        secret = stage.job.privacy is not None and stage.job.privacy.noise == "secure"
        answers = {} if secret else _answers(plain, exchange.name, own)
        last: dict[int, NDArray[Any]] = {}
        for number, play in enumerate(plays(messages, exchange.name)):
            known, added = answers.get(_key(play, own), {}), dict[int, NDArray[Any]]()
            for client, at, data in _uploads(stage, line, play):
                answer = known.get(client)
                about = exchange.name, number, play.round, client, at
                if answer is None or answer.shape != data.shape:
                    found.sealed.append(Mask(*about, _unsigned(data)[at]))
                    last.pop(client, None)
                    continue
                change = answer if not exchange.stale or client not in last else answer - last[client]
                last[client], added[client] = answer, data - change
                found.known.append(Mask(*about, _unsigned(added[client])[at]))
            if added and added.keys() == play.uploads.keys() == known.keys():
                total = _total(line, play, added)
                if leaving or isinstance(exchange, ToClients):
                    found.totals.append(total)
                elif total.words.any():
                    wrong = int(np.count_nonzero(total.words))
                    found.left.append(f"{total.name}: {wrong} of {len(total.words)} numbers")
    return found


def _total(line: Line, play: Play, added: dict[int, NDArray[Any]]) -> Mask:
    """What all who answered have added, at each place that one of them fills."""
    message = np.zeros_like(line.sum.message)
    filled = np.zeros(len(message), dtype=bool)
    for client, numbers in added.items():
        line.put(message, client, numbers)
        for at in line.own(client):
            filled[at] = True
    at = np.flatnonzero(filled)
    return Mask(line.exchange.name, play.turn, play.round, EVERYBODY, at, _unsigned(message)[at])


def _uploads(stage: Stage, line: Line, play: Play) -> Iterator[tuple[int, NDArray[np.int64], NDArray[Any]]]:
    """(client, positions that a mask hides, all numbers that it sent)."""
    clients, kind = stage.algorithm.problem.clients, line.sum.message.dtype
    present = np.isin(np.arange(clients), list(play.uploads))
    every = stage.job.participation.max_dropouts > 0  # then each client has a mask of its own as well
    for client, (upload, *_) in play.uploads.items():
        data = upload.data.view(kind)
        at, _ = hidden(line, stage.cells, client, present, every)
        if len(data) > max(at, default=-1):
            yield client, at, data


def _unsigned(data: NDArray[Any]) -> NDArray[Any]:
    return data.view(f"u{data.itemsize}")


def _key(play: Play, own: bool) -> tuple[Any, ...]:
    """What two plays have in common in which the same clients answer the same."""
    asked = tuple((name, data.tobytes()) for name, data in play.question.items())
    return (play.turn,) if own else (play.round, hash(asked))


def _answers(plain: Stage, exchange: str, own: bool) -> dict[tuple[Any, ...], dict[int, NDArray[Any]]]:
    """By play, what each client answers; nothing where two plays with different answers cannot be told apart."""
    found: dict[tuple[Any, ...], dict[int, NDArray[Any]]] = {}
    unclear = set[tuple[Any, ...]]()
    for play in plays(plain.transcript.messages, exchange):
        answers = {client: upload[0].data for client, upload in play.uploads.items()}
        before = found.setdefault(_key(play, own), {})
        if any(not np.array_equal(before[one], answers[one]) for one in before.keys() & answers.keys()):
            unclear.add(_key(play, own))
        before.update(answers)
    return {key: answers for key, answers in found.items() if key not in unclear}


# --- what is wrong with them -----------------------------------------------------------------------------------------


def zeros(masks: Sequence[Mask]) -> list[str]:
    """Where numbers were sent as they are: 64 bits together, or in one place of a client's message at two times."""
    found = []
    alone: dict[tuple[str, int, int], int] = {}
    for one in masks:
        none = np.flatnonzero(one.words == 0)
        near = np.isin(none + 1, none) | np.isin(none - 1, none) if one.words.itemsize < 8 else np.ones(len(none), bool)
        if near.any():
            of, start = len(one.words), one.at[none[near][0]] + 1
            found.append(f"{one.name}: {int(near.sum())} of {of} numbers, the {start}th first")
        for position in one.at[none[~near]].tolist():
            place = one.exchange, one.client, position
            alone[place] = alone.get(place, 0) + 1
    found += [
        f"{whose(client)} in {exchange}: its {position + 1}th number, {times} times"
        for (exchange, client, position), times in alone.items() if times > 1
    ]  # fmt: skip
    return found


def uneven(masks: Sequence[Mask]) -> list[str]:
    """Whose masks have a bit that is not one in half of the words, or not unlike the next bit in half of them."""
    counts: dict[tuple[str, int], NDArray[np.int64]] = {}
    words: dict[tuple[str, int], int] = {}
    for one in masks:
        key = one.exchange, one.client
        counts[key], words[key] = counts.get(key, 0) + ones(one.words), words.get(key, 0) + len(one.words)
    texts = {key: uneven_bits(count, words[key]) for key, count in counts.items()}
    return [f"{whose(client)} in {exchange}: {text}" for (exchange, client), text in texts.items() if text]


def repeated(masks: Sequence[Mask]) -> list[str]:
    """Which masks are, from some place on, those of another upload, or their negatives."""
    found = []
    for width in {one.words.itemsize for one in masks}:
        ordered = [one for one in masks if one.words.itemsize == width]
        ordered.sort(key=lambda one: (one.exchange, one.client, one.turn))
        starts = np.cumsum([0, *(len(one.words) for one in ordered)])
        pairs = set[tuple[int, int, int, bool]]()
        for i, j, negative in repeats(np.concatenate([one.words for one in ordered])):
            a, b = (int(np.searchsorted(starts, at, "right")) - 1 for at in (i, j))
            pairs.add((a, b, int(j - starts[b] - i + starts[a]), negative))
        for a, b, shift, negative in sorted(pairs):
            sign = "the negative of that" if negative else "that"
            moved = f", {abs(shift)} numbers {'later' if shift > 0 else 'earlier'}" if shift else ""
            found.append(f"{ordered[b].name} has {sign} of {ordered[a].name}{moved}")
    return found


def same_word(masks: Sequence[Mask]) -> list[str]:
    """Which places of a client's message have one mask at several times, though their neighbours have not.

    Two numbers of 64 bits in one place are alike, up to the sign, with chance 2^-63, three of 32 bits with 2^-62.
    """
    together: dict[tuple[str, int, int], list[Mask]] = {}
    for one in masks:
        together.setdefault((one.exchange, one.client, one.words.itemsize), []).append(one)
    texts = []
    for (exchange, client, width), some in together.items():
        words = np.zeros((len(some), 1 + max(one.at.max(initial=0) for one in some)), dtype=some[0].words.dtype)
        for row, one in zip(words, some, strict=True):
            row[one.at] = np.minimum(one.words, -one.words)
        words.sort(axis=0)
        apart = 1 if width == 8 else 2
        places = np.flatnonzero(((words[apart:] == words[:-apart]) & (words[apart:] != 0)).any(axis=0))
        if len(places):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            texts.append(f"{whose(client)} in {exchange}: its {places[0] + 1}th number{more} at several times")
    return texts


def alike(sealed: Sequence[Mask]) -> list[str]:
    """Of uploads whose plaintexts are not known: pairs of a client's whose difference, or sum, has equal high bits."""
    same: dict[tuple[str, int, int], list[Mask]] = {}
    for one in sealed:
        same.setdefault((one.exchange, one.client, len(one.words)), []).append(one)
    pairs = [pair for some in same.values() for pair in combinations(some, 2)]
    found = []
    for one, other in pairs:
        for what, words in (("that", one.words - other.words), ("the negative of that", one.words + other.words)):
            high = words >> (8 * words.itemsize - 8)
            count = int(((high == 0) | (high == 255)).sum())
            if stats.binom.sf(count - 1, len(high), 2 / 256) < LEVEL / (2 * len(pairs)):
                sums = "differences" if what == "that" else "sums"
                found.append(f"{other.name} has about {what} of {one.name}: {count} of {len(high)} {sums} are small")
    return found
