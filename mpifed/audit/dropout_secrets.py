"""Secrets and shares by which a sum is decoded without clients that drop out; in the auditor's replay.

The secrets of each occurrence of an exchange are searched for in all messages, at every byte and by either half: seeds
of clients' own masks, keys of deposits and of single messages. So are their shares, in messages of any name: for each
client, shares of one secret may be sent, never of both. Fewer shares than the job's threshold must not determine a
secret, and no two pairs of clients may send each other shares under the same key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mpifed.audit.bit_windows import KnownWords
from mpifed.audit.replay import Replay
from mpifed.comm.masking.secret_sharing import rebuild
from mpifed.comm.masking.share_deposits import Drawn
from mpifed.core.errors import BrokenProtocol
from mpifed.run.transcript import RecordedMessage

_HALF = 8  # bytes of a secret or share that are searched for


def messages_with_secrets(replay: Replay) -> list[str]:
    """Messages that contain the bytes of a secret."""
    drawn = replay.streams.drawn if replay.streams else []
    halves = dict[int, str]()
    for what, draw in drawn:
        for name, secret in _secrets(draw):
            for half in (secret[:_HALF], secret[-_HALF:]):
                halves[int.from_bytes(half, "little")] = f"the {name} of client {draw.client} in {what}"
    texts = []
    for message, words in _messages_with(halves, replay.transcript.messages):
        about = f"{message.what or message.kind} of {message.sender} to {message.receiver}"
        texts += [f"{about}: {halves[word]}" for word in words]
    return list(dict.fromkeys(texts))


def _secrets(draw: Drawn) -> Iterator[tuple[str, bytes]]:
    yield "seed", draw.seed
    yield "key of the deposit", draw.wrap
    yield from ((f"key of the message with client {other}", key) for other, key in draw.keys.items())


def rebuilt(replay: Replay) -> list[str]:
    """Clients whose secrets can be reconstructed beyond what the protocol needs."""
    drawn = replay.streams.drawn if replay.streams else []
    return [
        *_both_secrets(drawn, replay.transcript.messages),
        *_too_few_shares(drawn, replay.job.participation.max_dropouts),
        *_reused_keys(drawn),
    ]


def _both_secrets(drawn: Sequence[tuple[str, Drawn]], messages: Sequence[RecordedMessage]) -> list[str]:
    """Clients of whom shares of both secrets were sent."""
    of = dict[int, tuple[int, str]]()
    for number, (_, draw) in enumerate(drawn):
        for kind, shares in (("seed", draw.seed_shares), ("key", draw.wrap_shares)):
            of |= {int.from_bytes(share[:_HALF], "little"): (number, kind) for share in shares}
    kinds: dict[int, set[str]] = defaultdict(set)
    for _, words in _messages_with(of, messages):
        for word in words:
            kinds[of[word][0]].add(of[word][1])
    both = [drawn[number] for number, kind in sorted(kinds.items()) if len(kind) > 1]
    return [f"client {draw.client} in {what}: shares of its seed and of its key were sent" for what, draw in both]


def _too_few_shares(drawn: Sequence[tuple[str, Drawn]], most: int) -> list[str]:
    """Clients whose secrets can be rebuilt from fewer shares than remain when `most` neighbours drop out."""
    texts = []
    for what, draw in drawn:
        for name, secret, shares in (("seed", draw.seed, draw.seed_shares), ("key", draw.wrap, draw.wrap_shares)):
            least = len(shares) - most
            if least < 2:
                texts.append(f"client {draw.client} in {what}: a single share determines its {name}")
                continue
            try:
                known = rebuild(dict(enumerate(shares[: least - 1], 1)), least - 1) == secret
            except BrokenProtocol:
                known = False
            if known:
                texts.append(f"client {draw.client} in {what}: fewer than {least} shares determine its {name}")
    return texts


def _reused_keys(drawn: Sequence[tuple[str, Drawn]]) -> list[str]:
    """Pairs of clients that encrypt shares under the key of another pair or occurrence."""
    pairs: dict[bytes, tuple[str, list[int]]] = {}
    texts = []
    for what, draw in drawn:
        for holder, key in draw.under.items():
            pair = f"{what}, turn {draw.turn}", sorted((draw.client, holder))
            first = pairs.setdefault(key, pair)
            if first != pair:
                texts.append(
                    f"clients {pair[1]} in {pair[0]} encrypt shares under the key of clients {first[1]} in {first[0]}"
                )
    return texts


def _messages_with(
    halves: Iterable[int], messages: Sequence[RecordedMessage]
) -> Iterator[tuple[RecordedMessage, list[int]]]:
    """(message, words) for messages that contain any of these words at any byte."""
    known = KnownWords(np.array(sorted(halves), dtype=np.uint64))
    for message in messages:
        raw = message.data.tobytes()
        positions = known.positions(np.frombuffer(raw, np.uint8))
        words = {int.from_bytes(raw[at : at + _HALF], "little") for at in positions}
        if words:
            yield message, sorted(words)
