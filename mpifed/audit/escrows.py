"""What clients give out of their hands so that a sum can be opened without those who leave; in the auditor's own play.

The secrets of each turn are looked for in all messages, at every byte: seeds of own masks, the keys of deposits and
those of single messages, by either half. So are the shares of them, whatever the messages are called: of one client
there may be shares of one secret, never of both. Fewer shares than the job asks for must not tell a secret, and no two
pairs of clients may send each other shares under one key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.stage import Stage
from mpifed.comm.masking.escrow import Drawn
from mpifed.comm.masking.shares import rebuild
from mpifed.core.errors import BrokenProtocol
from mpifed.run.transcript import Message

_HALF = 8  # bytes of a secret or share that are looked for
_BITS = 24  # of a word, by which most are passed over


def sent(stage: Stage) -> list[str]:
    """Messages that have a secret of a turn in them, as its bytes are."""
    drawn = stage.streams.drawn if stage.streams else []
    halves = dict[int, str]()
    for what, one in drawn:
        for name, secret in _secrets(one):
            for half in (secret[:_HALF], secret[-_HALF:]):
                halves[int.from_bytes(half, "little")] = f"the {name} of client {one.client} in {what}"
    found = []
    for message, words in _seen(halves, stage.transcript.messages):
        about = f"{message.what or message.kind} of {message.sender} to {message.receiver}"
        found += [f"{about}: {halves[word]}" for word in words]
    return list(dict.fromkeys(found))


def _secrets(one: Drawn) -> Iterator[tuple[str, bytes]]:
    yield "seed", one.seed
    yield "key of the deposit", one.wrap
    yield from ((f"key of the message with client {other}", key) for other, key in one.keys.items())


def opened(stage: Stage) -> list[str]:
    """Of which clients more can be opened than should be."""
    drawn = stage.streams.drawn if stage.streams else []
    return [*_both(drawn, stage.transcript.messages), *_few(drawn, stage.job.participation.max_dropouts), *_one(drawn)]


def _both(drawn: Sequence[tuple[str, Drawn]], messages: Sequence[Message]) -> list[str]:
    """Whose shares of both secrets of a turn are in messages."""
    of = dict[int, tuple[int, str]]()
    for number, (_, one) in enumerate(drawn):
        for kind, shares in (("seed", one.seed_shares), ("key", one.wrap_shares)):
            of |= {int.from_bytes(share[:_HALF], "little"): (number, kind) for share in shares}
    kinds: dict[int, set[str]] = defaultdict(set)
    for _, words in _seen(of, messages):
        for word in words:
            kinds[of[word][0]].add(of[word][1])
    both = [drawn[number] for number, kind in sorted(kinds.items()) if len(kind) > 1]
    return [f"client {one.client} in {what}: shares of its seed and of its key were sent" for what, one in both]


def _few(drawn: Sequence[tuple[str, Drawn]], most: int) -> list[str]:
    """Whose secrets fewer shares tell than those of the neighbours who stay when `most` leave."""
    found = []
    for what, one in drawn:
        for name, secret, shares in (("seed", one.seed, one.seed_shares), ("key", one.wrap, one.wrap_shares)):
            least = len(shares) - most
            if least < 2:
                found.append(f"client {one.client} in {what}: one share tells its {name}")
                continue
            try:
                known = rebuild(dict(enumerate(shares[: least - 1], 1)), least - 1) == secret
            except BrokenProtocol:
                known = False
            if known:
                found.append(f"client {one.client} in {what}: fewer than {least} shares tell its {name}")
    return found


def _one(drawn: Sequence[tuple[str, Drawn]]) -> list[str]:
    """Which pairs send shares under a key of another pair, or another turn."""
    pairs: dict[bytes, tuple[str, list[int]]] = {}
    found = []
    for what, one in drawn:
        for holder, key in one.under.items():
            pair = f"{what}, turn {one.turn}", sorted((one.client, holder))
            first = pairs.setdefault(key, pair)
            if first != pair:
                found.append(f"clients {pair[1]} in {pair[0]} share under the key of clients {first[1]} in {first[0]}")
    return found


def _seen(halves: Iterable[int], messages: Sequence[Message]) -> Iterator[tuple[Message, list[int]]]:
    """The messages in which any of these words is, at any byte, and which."""
    known = np.array(sorted(halves), dtype=np.uint64)
    if not len(known):
        return
    some, low = np.zeros(2**_BITS, dtype=bool), np.uint64(2**_BITS - 1)
    some[known & low] = True
    for message in messages:
        raw, found = message.data.tobytes(), set[int]()
        for start in range(min(_HALF, len(raw) - _HALF + 1)):
            words: NDArray[np.uint64] = np.frombuffer(raw, "<u8", (len(raw) - start) // _HALF, start)
            words = words[some[words & low]]
            found.update(words[np.isin(words, known)].tolist())
        if found:
            yield message, sorted(found)
