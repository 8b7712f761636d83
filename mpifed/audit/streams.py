"""Key streams of the auditor's masked replay: each masks one message for one pair of clients.

A stream that two pairs share, or that is reused with other partners, shows in no single mask, since masks are sums of
streams. So the auditor, who runs all parties, checks the streams themselves, whatever keys and nonces they come from:
the first 128 bits of each, and windows of 128 bits wherever a word is a multiple of 64, so that a section that is
reused at another offset is detected as well (a section of m words is missed with probability (63/64)^m). The clients of
a pair make the same stream, with opposite signs and for the same occurrence of an exchange; nobody else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.bit_windows import half, length, ones, uneven_bits
from mpifed.comm.channel import Channel
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.key_streams import Mask, Pad, Part
from mpifed.comm.masking.channel import Masked
from mpifed.comm.masking.share_deposits import Drawn
from mpifed.core.record import Array
from mpifed.core.round import SETUP, Round

MOST = 100_000  # streams that are checked; those of further rounds are only counted
_EVERY = 64  # windows begin at words that are multiples of it


class Use(NamedTuple):
    """A stream that was added to a message."""

    message: int  # number of the message, over all exchanges
    what: str
    client: int  # -1: the client that seals a sum so far
    sign: int
    key: tuple[int, int]  # its first 128 bits
    parts: Sequence[Part]  # of the message that are masked


class Sealing(NamedTuple):
    """An occurrence of an exchange: clients that were selected, and those that sealed an upload."""

    what: str
    plan: ExchangePlan
    selected: NDArray[np.bool_]  # [N]
    clients: list[int]


class Streams(Pad):
    """Replaces a channel's pad and records which streams are added to which client's message."""

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self.made = 0  # streams, including those that are not checked
        self.messages: dict[int, Sealing] = {}
        self.drawn: list[tuple[str, Drawn]] = []  # secrets that clients drew where clients may drop out
        self.cut = 2**63  # the first message whose streams are not all checked
        self._ones: dict[tuple[int, int], tuple[NDArray[np.int64], int]] = {}  # by client and width: counts, words
        self._windows: list[tuple[Array, ...]] = []  # (first half, second half, use, offset)
        self._message, self._what = 0, ""
        self._client: int | None = None

    def observe(self, channel: Masked) -> None:
        """Replace the channel's pad from now on, and record whose message is being sealed."""
        begin, seal = channel.begin, channel.seal

        def begun(plan: ExchangePlan, now: Round) -> None:
            self._message += 1
            when = "outside the rounds" if now.index == SETUP else f"round {now.index}"
            self._what = f"{plan.exchange.name}, {when}"
            self.messages[self._message] = Sealing(self._what, plan, now.asked.copy(), [])
            begin(plan, now)

        def sealed(plan: ExchangePlan, integers: Array, client: int, now: Round) -> Array:
            self._client = client
            self.messages[self._message].clients.append(client)
            try:
                return seal(plan, integers, client, now)
            finally:
                self._client = None

        channel.watch_secrets(lambda drawn: self.drawn.append((self._what, drawn)))
        vars(channel).update(pad=self, begin=begun, seal=sealed)

    def add(self, masks: Sequence[Mask], message: NDArray[np.signedinteger], parts: Sequence[Part]) -> None:
        """Add streams as a pad does, one by one; streams removed from a sum belong to no client's message."""
        taken_away = self._client is None and all(sign < 0 for _, sign in masks)
        self.made += 0 if taken_away else len(masks)
        if taken_away or self.made > MOST:
            self.cut = self.cut if taken_away else min(self.cut, self._message)
            super().add(masks, message, parts)
            return
        at = [np.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts]
        count = sum(map(len, at))
        for stream, sign in masks:
            words = np.zeros(max(count, length(message)), dtype=message.dtype)
            super().add([(stream, 1)], words, [slice(0, len(words))])
            self._note(words.view(f"u{words.itemsize}"), sign, parts)
            start = 0
            for part in parts:
                stop = start + (part.stop - part.start if isinstance(part, slice) else len(part))
                message[part] += words[start:stop] if sign > 0 else -words[start:stop]
                start = stop

    def _note(self, words: Array, sign: int, parts: Sequence[Part]) -> None:
        count = len(words) - length(words) + 1
        at = np.flatnonzero(words[:count] % _EVERY == 0)
        at = at if len(at) and at[0] == 0 else np.concatenate([[0], at])
        use = np.full(len(at), len(self.uses), dtype=np.int64)
        first, second = half(words, at, False, False), half(words, at, True, False)
        self._windows.append((first, second, use, at))
        key = self._client or 0, words.itemsize
        counts, before = self._ones.get(key, (0, 0))
        self._ones[key] = counts + ones(words), before + len(words)
        client, begins = -1 if self._client is None else self._client, (int(first[0]), int(second[0]))
        self.uses.append(Use(self._message, self._what, client, sign, begins, parts))

    def uneven(self) -> list[str]:
        """Clients whose streams have a bit that is not set in half of the words."""
        texts = {client: uneven_bits(*counts) for (client, _), counts in self._ones.items()}
        return [f"the streams of client {client}: {text}" for client, text in texts.items() if text]

    def shared(self) -> list[str]:
        """Descriptions of streams whose uses are not those of the two clients of a pair."""
        if not self.uses:
            return []
        first, second, use, at = (np.concatenate(parts) for parts in zip(*self._windows, strict=True))
        order = np.lexsort((use, second, first))
        first, second, use, at = first[order], second[order], use[order], at[order]
        begins = np.flatnonzero(np.r_[True, (first[1:] != first[:-1]) | (second[1:] != second[:-1])])
        sizes = np.diff(np.r_[begins, len(first)])
        first_use, second_use = use[begins], use[begins + np.minimum(sizes, 2) - 1]
        message, client, sign = np.array([(user.message, user.client, user.sign) for user in self.uses]).T
        pair = (
            (message[first_use] == message[second_use])
            & (client[first_use] != client[second_use])
            & (sign[first_use] == -sign[second_use])
        )
        pair &= at[begins] == at[begins + np.minimum(sizes, 2) - 1]
        wrong = (sizes > 2) | ((sizes == 2) & ~pair)
        stops = begins + sizes
        groups = {tuple(use[start:stop].tolist()) for start, stop in zip(begins[wrong], stops[wrong], strict=True)}
        return list(dict.fromkeys(map(self._described, sorted(groups))))

    def _described(self, uses: tuple[int, ...]) -> str:
        users = [self.uses[i] for i in uses]
        names = ["the sum so far" if user.client < 0 else f"client {user.client}" for user in users]
        places = dict.fromkeys(f"{name} in {user.what}" for name, user in zip(names, users, strict=True))
        return "the same stream masks " + " and ".join([*places][:4])


def streams_of(channel: Channel) -> Streams:
    """Record the streams of a masked channel from now on."""
    assert isinstance(channel, Masked)
    streams = Streams()
    streams.observe(channel)
    return streams
