"""Checks of all masks of a recording: uploads less their plain values, which are known from the auditor's plain replay.

Masks are sums of key streams, so that their words are uniform and independent. Then no number of 64 bits is zero, and
no two masks begin with the same 128 bits, or with their negatives: by chance among n words with a probability of at
most n / 2^64, and n^2 / 2^128. In a sum for the server from which nobody may leave, the masks of all clients cancel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.recording import Play
from mpifed.audit.replay import Replay
from mpifed.core.record import Array
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges

NO_MASK, REPEATED, LEFT = "no-mask", "repeated-mask", "mask-left"
NAMES = {
    NO_MASK: "numbers that should be masked were sent unmasked",
    REPEATED: "a mask was reused, possibly with the opposite sign",
    LEFT: "masks do not cancel in a sum for the server, which differs from the sum of the clients' uploads",
}
_NOTHING = {NO_MASK: "no zero", REPEATED: "no repeat", LEFT: "all cancel"}
_SHOWN = 3
_WINDOW_BYTES = 16


class ExactChecks(NamedTuple):
    """What was checked, and the findings."""

    text: str  # coverage and verdict in words
    occurrences: dict[str, list[str]]  # by finding that was looked for, each occurrence in words

    @property
    def leaks(self) -> dict[str, list[str]]:
        """By finding, its first few occurrences."""
        more = {name: len(places) - _SHOWN for name, places in self.occurrences.items()}
        return {
            name: [*places[:_SHOWN], *[f"and {more[name]} more"] * (more[name] > 0)]
            for name, places in self.occurrences.items() if places
        }  # fmt: skip


class _Masks(NamedTuple):
    """The masks of one occurrence of an exchange."""

    name: str
    by_client: dict[int, tuple[NDArray[np.int64], Array]]  # (masked positions, unsigned words at them)
    left: int  # numbers of the sum in which masks do not cancel


def exact_checks(replay: Replay, plain: Replay) -> ExactChecks:
    """All checks of masked uploads; `plain`: the same rounds with plain security."""
    if replay.channel == "plain":
        return ExactChecks("nothing is masked or encrypted", {})
    if replay.channel == "encrypted":
        return ExactChecks("ciphertexts are not examined", {})
    if replay.job.privacy is not None and replay.job.privacy.noise == "secure":
        return ExactChecks("masks are not examined: with secret noise, plain values are not known", {})
    masks = [_of_play(replay, *both) for both in _both(replay, plain)]
    words = sum(len(numbers) for play in masks for _, numbers in play.by_client.values())
    places = {
        NO_MASK: list(_zeros(masks)),
        REPEATED: list(_repeated(masks)),
        LEFT: [f"{play.name}: {play.left} numbers" for play in masks if play.left],
    }
    phrases = [NAMES[name] if texts else _NOTHING[name] for name, texts in places.items()]
    chance = words / 2.0**64 + words**2 / 2.0**128
    counts = f"masks: {len(masks):,} sums, {words:,} words (probability of a false alarm {chance:.1g})"
    return ExactChecks(f"{counts}: {', '.join(phrases)}", places)


def _both(replay: Replay, plain: Replay) -> Iterator[tuple[Play, dict[int, Array]]]:
    """(occurrence, by client the numbers that it uploaded masked) of every masked exchange."""
    for exchange in all_exchanges(replay.algorithm):
        if exchange.clear:
            continue
        last = dict[int, Array]()
        for masked, clear in zip(*(run.plays(exchange.name) for run in (replay, plain)), strict=True):
            sent = clear.uploads
            if exchange.keeps:  # clients upload changes
                sent = {client: numbers - last.get(client, 0) for client, numbers in sent.items()}
                last |= clear.uploads
            yield masked, sent


def _of_play(replay: Replay, play: Play, sent: dict[int, Array]) -> _Masks:
    message, by_client = play.message, dict[int, tuple[NDArray[np.int64], Array]]()
    total = np.zeros(message.size, message.dtype)
    filled, before = np.zeros((2, len(total)), dtype=np.int64)
    for client in sent:
        filled[message.own(client)] += 1
    own_masks = replay.job.participation.max_dropouts > 0 or message.exchange.hear is not None
    for client, numbers in sorted(sent.items()):
        mask = play.uploads[client] - numbers
        total[message.own(client)] += mask
        # who alone fills a position of a sum needs no mask there; of two clients, one has the negative of the other's
        holders, first = filled[message.own(client)], before[message.own(client)] == 0
        at = np.flatnonzero(own_masks | (holders > 2) | ((holders == 2) & first))
        before[message.own(client)] += 1
        by_client[client] = at, mask.view(f"u{mask.itemsize}")[at]
    when = "outside the rounds" if play.round == SETUP else f"round {play.round}"
    left = 0 if own_masks else int(np.count_nonzero(total))
    return _Masks(f"{message.exchange.name}, {when}", by_client, left)


def _zeros(masks: list[_Masks]) -> Iterator[str]:
    """Unmasked numbers: 64 adjacent zero bits."""
    for play in masks:
        for client, (at, words) in play.by_client.items():
            zero = words == 0
            if words.itemsize < 8:
                zero = zero[1:] & zero[:-1] & (np.diff(at) == 1)
            if zero.any():
                first = at[np.flatnonzero(zero)[0]] + 1
                yield f"client {client} in {play.name}: {int(zero.sum())} numbers, the {first}th first"


def _repeated(masks: list[_Masks]) -> Iterator[str]:
    """Masks that begin as another, or as its negative."""
    known: dict[bytes, str] = {}
    for play in masks:
        for client, (_, words) in play.by_client.items():
            start = words[: _WINDOW_BYTES // words.itemsize]
            if start.nbytes < _WINDOW_BYTES or not start.any():
                continue
            name = f"client {client} in {play.name}"
            other = known.setdefault(min(start.tobytes(), (-start).tobytes()), name)
            if other is not name:
                yield f"{name} has that of {other}, up to the sign"
