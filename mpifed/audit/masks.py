"""The masks of a transcript: uploads less their plain values, which are known from the auditor's plain replay.

Where masks are sums of key streams, as they should be, their words are uniform and independent. Then no number of 64
bits is zero, no window of 128 bits occurs twice or with the opposite sign, and every bit is set, and differs from the
next, in half of the words. All words are checked, and windows at every offset. The probability of a false alarm among
n words is at most n / 2^64 for zeros, n^2 / 2^128 for windows, and 2 exp(-32) for each of these counts of bits, per
client and exchange (Hoeffding).

Where the plain values are not known, a mask that is used twice shows in the difference of two uploads of a client: its
high bits are then those of a difference of small numbers. All such pairs are checked, and their sums as well.

Masks may look uniform and yet cancel in a sum that the server must not learn. So the masks of all participating clients
are added up: in a sum for the server they must cancel; in a sum for the clients, or where clients may drop out, what
remains is checked as a mask itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from mpifed.audit.bit_windows import ones, repeats, uneven_bits
from mpifed.audit.messages import Play, plan_of, plays
from mpifed.audit.replay import Replay
from mpifed.audit.sealed import hidden
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.exchange import ToClients
from mpifed.core.record import Array
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import RecordedMessage

LEVEL = 1e-9  # significance level of all tests of differences and sums together
Upload: TypeAlias = tuple[int, ...]  # a key that two uploads of a client share if their numbers must be the same
EVERYBODY = -1  # the client of a sum of all clients' masks


class Mask(NamedTuple):
    """The mask of an upload: what a client has added to its numbers."""

    exchange: str
    turn: int
    round: int
    client: int
    at: NDArray[np.int64]  # positions among the numbers of the upload
    words: Array  # unsigned

    @property
    def name(self) -> str:
        when = "outside the rounds" if self.round == SETUP else f"round {self.round}"
        return f"{whose(self.client)} in {self.exchange}, {when}"


def whose(client: int) -> str:
    return "all clients together" if client == EVERYBODY else f"client {client}"


class Masks(NamedTuple):
    """Masks of all uploads of a transcript."""

    known: list[Mask]
    sealed: list[Mask]  # whole uploads whose plain values are not known
    totals: list[Mask]  # sums of all clients' masks, where they must not cancel
    left: list[str]  # descriptions of sums that must cancel and do not


def masks_of(replay: Replay, messages: Sequence[RecordedMessage], plain: Replay, same_run: bool) -> Masks:
    """The masks of all uploads to private exchanges.

    `plain`: the same rounds with plain security. `same_run`: whether the messages are those of `replay`, whose rounds
    are those of `plain`; uploads of another run are compared only where they follow the same broadcast.
    """
    masks, leaving = Masks([], [], [], []), replay.job.participation.max_dropouts > 0
    private = {exchange.name: exchange for exchange in all_exchanges(replay.algorithm) if exchange.private}
    for exchange in private.values():
        plan = plan_of(replay, exchange)
        secret = replay.job.privacy is not None and replay.job.privacy.noise == "secure"
        answers = {} if secret else _answers(plain, exchange.name, same_run)
        last: dict[int, Array] = {}
        for number, play in enumerate(plays(messages, exchange.name)):
            known, added = answers.get(_key(play, same_run), {}), dict[int, Array]()
            for client, at, data in _uploads(replay, plan, play):
                answer = known.get(client)
                about = exchange.name, number, play.round, client, at
                if answer is None or answer.shape != data.shape:
                    masks.sealed.append(Mask(*about, _unsigned(data)[at]))
                    last.pop(client, None)
                    continue
                change = answer if not exchange.stale or client not in last else answer - last[client]
                last[client], added[client] = answer, data - change
                masks.known.append(Mask(*about, _unsigned(added[client])[at]))
            if added and added.keys() == play.uploads.keys() == known.keys():
                total = _total(plan, play, added)
                if leaving or isinstance(exchange, ToClients):
                    masks.totals.append(total)
                elif total.words.any():
                    wrong = int(np.count_nonzero(total.words))
                    masks.left.append(f"{total.name}: {wrong} of {len(total.words)} numbers")
    return masks


def _total(plan: ExchangePlan, play: Play, added: dict[int, Array]) -> Mask:
    """The sum of all clients' masks, at each position that any of them fills."""
    message = np.zeros_like(plan.sum.message)
    filled = np.zeros(len(message), dtype=bool)
    for client, numbers in added.items():
        plan.put(message, client, numbers)
        for at in plan.own(client):
            filled[at] = True
    at = np.flatnonzero(filled)
    return Mask(plan.exchange.name, play.turn, play.round, EVERYBODY, at, _unsigned(message)[at])


def _uploads(replay: Replay, plan: ExchangePlan, play: Play) -> Iterator[tuple[int, NDArray[np.int64], Array]]:
    """(client, masked positions, all numbers of its upload)."""
    kind = plan.sum.message.dtype
    present = play.present(replay.algorithm.problem.clients)
    own_masks = replay.job.participation.max_dropouts > 0  # then each client also has a mask of its own
    for client, (upload, *_) in play.uploads.items():
        data = upload.data.view(kind)
        at, _ = hidden(plan, replay.cells, client, present, own_masks)
        if len(data) > max(at, default=-1):
            yield client, at, data


def _unsigned(data: Array) -> Array:
    return data.view(f"u{data.itemsize}")


def _key(play: Play, same_run: bool) -> Upload:
    """A key that two occurrences of an exchange share if each client uploads the same in both."""
    broadcast = tuple((name, data.tobytes()) for name, data in play.question.items())
    return (play.turn,) if same_run else (play.round, hash(broadcast))


def _answers(plain: Replay, exchange: str, same_run: bool) -> dict[Upload, dict[int, Array]]:
    """By key, each client's plain upload; without keys that stand for several different uploads."""
    by_play: dict[Upload, dict[int, Array]] = {}
    unclear = set[Upload]()
    for play in plays(plain.transcript.messages, exchange):
        answers = {client: upload[0].data for client, upload in play.uploads.items()}
        before = by_play.setdefault(_key(play, same_run), {})
        if any(not np.array_equal(before[client], answers[client]) for client in before.keys() & answers.keys()):
            unclear.add(_key(play, same_run))
        before.update(answers)
    return {key: answers for key, answers in by_play.items() if key not in unclear}


# --- checks of masks -------------------------------------------------------------------------------------------------


def zeros(masks: Sequence[Mask]) -> list[str]:
    """Unmasked numbers: 64 adjacent zero bits, or a zero at the same position of a client's uploads at least twice."""
    texts = []
    alone: dict[tuple[str, int, int], int] = {}
    for mask in masks:
        zero_at = np.flatnonzero(mask.words == 0)
        near = np.ones(len(zero_at), bool)
        if mask.words.itemsize < 8:
            near = np.isin(zero_at + 1, zero_at) | np.isin(zero_at - 1, zero_at)
        if near.any():
            of, start = len(mask.words), mask.at[zero_at[near][0]] + 1
            texts.append(f"{mask.name}: {int(near.sum())} of {of} numbers, the {start}th first")
        for position in mask.at[zero_at[~near]].tolist():
            place = mask.exchange, mask.client, position
            alone[place] = alone.get(place, 0) + 1
    texts += [
        f"{whose(client)} in {exchange}: its {position + 1}th number, {times} times"
        for (exchange, client, position), times in alone.items() if times > 1
    ]  # fmt: skip
    return texts


def uneven(masks: Sequence[Mask]) -> list[str]:
    """Clients whose masks have a bit that is not set, or does not differ from the next, in half of the words."""
    counts: dict[tuple[str, int], NDArray[np.int64]] = {}
    words: dict[tuple[str, int], int] = {}
    for mask in masks:
        key = mask.exchange, mask.client
        counts[key], words[key] = counts.get(key, 0) + ones(mask.words), words.get(key, 0) + len(mask.words)
    texts = {key: uneven_bits(count, words[key]) for key, count in counts.items()}
    return [f"{whose(client)} in {exchange}: {text}" for (exchange, client), text in texts.items() if text]


def repeated(masks: Sequence[Mask]) -> list[str]:
    """Masks that repeat those of another upload, or their negatives, at any offset."""
    texts = []
    for width in {mask.words.itemsize for mask in masks}:
        ordered = [mask for mask in masks if mask.words.itemsize == width]
        ordered.sort(key=lambda mask: (mask.exchange, mask.client, mask.turn))
        starts = np.cumsum([0, *(len(mask.words) for mask in ordered)])
        pairs = set[tuple[int, int, int, bool]]()
        for i, j, negative in repeats(np.concatenate([mask.words for mask in ordered])):
            a, b = (int(np.searchsorted(starts, at, "right")) - 1 for at in (i, j))
            pairs.add((a, b, int(j - starts[b] - i + starts[a]), negative))
        for a, b, shift, negative in sorted(pairs):
            sign = "the negative of that" if negative else "that"
            moved = f", {abs(shift)} numbers {'later' if shift > 0 else 'earlier'}" if shift else ""
            texts.append(f"{ordered[b].name} has {sign} of {ordered[a].name}{moved}")
    return texts


def same_word(masks: Sequence[Mask]) -> list[str]:
    """Positions of a client's message with the same mask at several times, though their neighbours differ.

    Two 64-bit numbers at a position agree, up to the sign, with probability 2^-63, three 32-bit numbers with 2^-62.
    """
    groups: dict[tuple[str, int, int], list[Mask]] = {}
    for mask in masks:
        groups.setdefault((mask.exchange, mask.client, mask.words.itemsize), []).append(mask)
    texts = []
    for (exchange, client, width), group in groups.items():
        words = np.zeros((len(group), 1 + max(mask.at.max(initial=0) for mask in group)), dtype=group[0].words.dtype)
        for row, mask in zip(words, group, strict=True):
            row[mask.at] = np.minimum(mask.words, -mask.words)
        words.sort(axis=0)
        apart = 1 if width == 8 else 2
        places = np.flatnonzero(((words[apart:] == words[:-apart]) & (words[apart:] != 0)).any(axis=0))
        if len(places):
            more = f" and {len(places) - 1} more" if len(places) > 1 else ""
            texts.append(f"{whose(client)} in {exchange}: its {places[0] + 1}th number{more} at several times")
    return texts


def alike(sealed: Sequence[Mask]) -> list[str]:
    """Pairs of a client's uploads, of unknown plain values, whose difference or sum has equal high bits."""
    same: dict[tuple[str, int, int], list[Mask]] = {}
    for mask in sealed:
        same.setdefault((mask.exchange, mask.client, len(mask.words)), []).append(mask)
    pairs = [pair for group in same.values() for pair in combinations(group, 2)]
    texts = []
    for first, other in pairs:
        for what, words in (("that", first.words - other.words), ("the negative of that", first.words + other.words)):
            high = words >> (8 * words.itemsize - 8)
            count = int(((high == 0) | (high == 255)).sum())
            if stats.binom.sf(count - 1, len(high), 2 / 256) < LEVEL / (2 * len(pairs)):
                sums = "differences" if what == "that" else "sums"
                texts.append(f"{other.name} has about {what} of {first.name}: {count} of {len(high)} {sums} are small")
    return texts
