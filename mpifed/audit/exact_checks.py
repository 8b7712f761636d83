"""Checks of all masks of a recording: uploads less their plain values, which are known from the auditor's plain replay.

Masks are sums of key streams, so that their words are uniform and independent. Then no number of 64 bits is zero, and
no two masks begin with the same 128 bits, or with their negatives: by chance among n words with a probability of at
most n / 2^64, and n^2 / 2^128. In a sum for the server from which nobody may leave, the masks of all clients cancel.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from mpifed.audit.recording import Replay
from mpifed.comm.channels.base import withheld
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
_WINDOW_BYTES = 16


class ExactChecks(NamedTuple):
    """What was checked, and the findings."""

    text: str  # coverage and verdict in words
    leaks: dict[str, list[str]]  # by finding, each occurrence in words


def exact_checks(replay: Replay, plain: Replay) -> ExactChecks:
    """All checks of masked uploads; `plain`: the same rounds with plain security."""
    if replay.channel != "masked":
        return ExactChecks(
            {"plain": "nothing is masked or encrypted"}.get(replay.channel, "ciphertexts are not examined"), {}
        )
    if replay.job.privacy is not None and replay.job.privacy.noise == "secure":
        return ExactChecks("masks are not examined: with secret noise, plain values are not known", {})
    leaks, known, sums, words = defaultdict[str, list[str]](list), dict[bytes, str](), 0, 0
    for exchange in all_exchanges(replay.algorithm):
        last = dict[int, Array]()
        for sealed, clear in zip(*(run.plays(exchange.name) for run in (replay, plain)), strict=True):
            if exchange.clear:
                continue
            message, where = sealed.message, "outside the rounds" if sealed.round == SETUP else f"round {sealed.round}"
            own_masks = replay.job.participation.max_dropouts > 0 or exchange.hear is not None
            total = np.zeros(message.size, np.int64)
            places = {client: np.arange(message.size)[message.own(client)] for client in sorted(clear.uploads)}
            filled = np.bincount(np.concatenate([*places.values(), []]).astype(int), minlength=message.size)
            before = np.zeros_like(filled)
            present = np.isin(np.arange(message.clients), list(places))
            few = withheld(message, replay.job.protection(), present)
            for client, at in places.items():
                numbers, before_it = clear.uploads[client], last.get(client, 0)
                if exchange.keeps:  # all go on counting, and upload changes
                    numbers = np.where(np.isin(at, few), before_it, numbers)
                    last[client] = numbers
                mask = sealed.uploads[client] - (numbers - before_it)
                total[at] += mask
                # who alone fills a place needs no mask there; of two clients, one has the negative of the other's
                masked = own_masks | (filled[at] > 2) | ((filled[at] == 2) & (before[at] == 0))
                before[at] += 1
                numbers, name = mask.view(f"u{mask.itemsize}")[masked], f"client {client} in {exchange.name}, {where}"
                words += len(numbers)
                zero = numbers == 0
                if numbers.itemsize < 8:  # 64 adjacent zero bits
                    zero = zero[1:] & zero[:-1]
                if zero.any():
                    leaks[NO_MASK].append(f"{name}: {int(zero.sum())} numbers, the {int(zero.argmax()) + 1}th first")
                start = numbers[: _WINDOW_BYTES // numbers.itemsize]
                key = min(start.tobytes(), (-start).tobytes())
                if len(key) == _WINDOW_BYTES and start.any() and known.setdefault(key, name) is not name:
                    leaks[REPEATED].append(f"{name} has that of {known[key]}, up to the sign")
            sums += 1
            if total.any() and not own_masks:
                leaks[LEFT].append(f"{exchange.name}, {where}: {np.count_nonzero(total)} numbers")
    phrases = ", ".join(NAMES[name] if name in leaks else text for name, text in _NOTHING.items())
    chance = words / 2.0**64 + words**2 / 2.0**128
    text = f"masks: {sums:,} sums, {words:,} words (probability of a false alarm {chance:.1g}): {phrases}"
    return ExactChecks(text, dict(leaks))
