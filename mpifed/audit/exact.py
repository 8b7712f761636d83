"""Checks of all masks of a recording: uploads as they were sent, less what the same clients sent in the clear.

Masks are sums of key streams, so that their words are uniform and independent. Then no number of 64 bits is zero, and
no two masks begin with the same 128 bits, or with their negatives: by chance among n words with a probability of at
most n / 2^64, and n^2 / 2^128. In a sum for the server from which nobody may leave, the masks of all clients cancel.
Of ciphertexts no two end alike: their last part is that of their randomness under the public key.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from mpifed.audit.findings import NAMES
from mpifed.audit.recording import Replay
from mpifed.core.round import SETUP

_WINDOW = 16  # bytes that never come again
_PASSED = {"no-mask": "no zero", "repeated-mask": "no repeat", "mask-left": "all cancel"}


class ExactChecks(NamedTuple):
    """What was checked, and the findings."""

    text: str  # coverage and verdict in words
    leaks: dict[str, list[str]]  # by finding, each occurrence in words


def exact_checks(replay: Replay) -> ExactChecks:
    """All checks of sealed uploads."""
    leaks, before = defaultdict[str, list[str]](list), dict[bytes, str]()
    sums, words = 0, 0
    for play in replay.plays:
        exchange, message = play.exchange, play.message
        own_masks = replay.job.participation.max_dropouts > 0 or exchange.hear is not None
        total, filled = np.zeros((2, message.size), np.int64)
        places = {client: np.arange(message.size)[message.own(client)] for client in sorted(play.sealed)}
        for at in places.values():
            filled[at] += 1
        first = np.ones(message.size, dtype=bool)
        where = f"{exchange.name}, " + ("outside the rounds" if play.round == SETUP else f"round {play.round}")
        for client, at in places.items():
            sealed, name = play.sealed[client], f"client {client} in {where}"
            start = sealed[-_WINDOW:]
            if replay.channel == "masked":
                total[at] += sealed
                # who alone fills a place needs no mask there; of two clients, one has the negative of the other's
                numbers = sealed[own_masks | (filled[at] > 2) | ((filled[at] == 2) & first[at])]
                first[at] = False
                words += len(numbers)
                if len(zeros := np.flatnonzero(numbers == 0)):
                    leaks["no-mask"].append(f"{name}: {len(zeros)} numbers, the {zeros[0] + 1}th first")
                start = numbers[: _WINDOW // numbers.itemsize]
            key = min(start.tobytes(), (-start).tobytes())
            if len(key) == _WINDOW and start.any() and before.setdefault(key, name) is not name:
                leaks["repeated-mask"].append(f"{name} has that of {before[key]}, up to the sign")
        sums += bool(places)
        if total.any() and not own_masks:
            leaks["mask-left"].append(f"{where}: {np.count_nonzero(total)} numbers")
    if not sums:
        return ExactChecks("nothing is masked or encrypted", {})
    if replay.channel == "encrypted":
        return ExactChecks(f"ciphertexts: of {sums:,} sums, {'some repeat' if leaks else 'no repeat'}", dict(leaks))
    phrases = ", ".join(NAMES[name] if name in leaks else text for name, text in _PASSED.items())
    return ExactChecks(f"masks: {sums:,} sums, {words:,} words: {phrases}", dict(leaks))
