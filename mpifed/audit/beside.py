"""What travels beside that which a channel has sealed: messages that it does not have, and copies in the clear.

Every note of a transcript must be one that the channel is known to send, and every upload one message of the size that
follows from the job. Of the plain answers, which the auditor has from the plain channel, all words of 64 bits with
some different bytes are looked for at every byte of the notes, and of the uploads that are not as they should be.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.plays import complete, filled, line_of, plays
from mpifed.audit.stage import Stage
from mpifed.comm.encryption.opening import unbundle
from mpifed.comm.line import Line
from mpifed.comm.masking.shares import SHARE_BYTES
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import ToClients
from mpifed.core.record import leaves
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import SERVER, Message, client_of

_DIFFERENT = 4  # bytes of a word that is looked for: others occur by chance
_KEY = "public key of the encryption"
_ZEROS = 2  # bytes of a word that is looked for in such a key, at most: some of its own words have but 32 bits
_MOST = 2**24  # words that are looked for; of more, so many that are spread evenly over each answer
KNOWN: dict[str, dict[str, int | None]] = {
    "masked": {
        "public key": 32, "deposit and sealed shares": None, "share of the seed of client #": SHARE_BYTES,
        "share of the key of client #": SHARE_BYTES, "sum so far, sealed": None,
    },
    "encrypted": {
        _KEY: None, f"{_KEY} so far": None,
        "secret key of the encryption, sealed for the clients": None, "part of an opening": None, "opened sum": None,
    },
}  # fmt: skip  # by channel, what its notes are, and of how many bytes, where that is always the same


class Beside(NamedTuple):
    """Of a transcript."""

    sound: tuple[Message, ...]  # all messages but uploads that are not as they should be
    strange: list[str]  # what no such channel sends, in words
    suspect: list[Message]  # in which copies are to be looked for


def beside(stage: Stage, messages: Sequence[Message]) -> Beside:
    """What there is beside sealed uploads; nothing in the plain channel, which seals none."""
    channel = stage.transcript.channel
    if channel == "plain":
        return Beside(tuple(messages), [], [])
    strange, odd, sums = [], set[tuple[str, int, int]](), set[int]()
    for exchange in {one.name: one for one in all_exchanges(stage.algorithm)}.values():
        line = line_of(stage, exchange)
        for play in plays(messages, exchange.name):
            for client, upload in play.uploads.items():
                wrong = _wrong(stage, line, client, upload)
                if wrong:
                    odd.add((exchange.name, play.turn, client))
                    strange.append(f"client {client} in {exchange.name}, turn {play.turn}, sends {wrong}")
        if channel == "encrypted" and not isinstance(exchange, ToClients):
            sums |= _opened_sums(line, messages)
    known, suspect = KNOWN[channel], list[Message]()
    for one in messages:
        if one.kind == "upload" and (one.exchange, one.turn, client_of(one)) in odd:
            suspect.append(one)
        if one.kind != "note" or id(one) in sums:
            continue
        suspect.append(one)
        what = re.sub(r"\d+$", "#", one.what)
        if what not in known or what == "opened sum" or known[what] not in (None, one.data.nbytes):
            strange.append(f"{one.what or 'something'} of {one.sender} to {one.receiver}, {one.data.nbytes} bytes")
    sound = tuple(one for one in messages if (one.exchange, one.turn, client_of(one)) not in odd)
    return Beside(sound, list(dict.fromkeys(strange)), suspect)


def _wrong(stage: Stage, line: Line, client: int, upload: list[Message]) -> str:
    """How an upload differs from what the job has the client send; "" where it does not."""
    if len(upload) > 1:
        return f"{len(upload)} messages rather than one"
    (one,), assumed = upload, line.sum.message.dtype
    if stage.transcript.channel == "masked" or not line.exchange.private:
        if one.data.dtype != assumed or one.data.nbytes != line.sent[client]:
            return f"{one.data.nbytes} bytes of type {one.data.dtype}, expected {line.sent[client]} of {assumed}"
        return ""
    assert stage.aggregator is not None
    channel: Any = stage.aggregator.channel
    expected = {i for vector in channel.vectors(line) if vector.senders[client] for i in vector.numbers}
    try:
        blocks = unbundle(one.data)
        if blocks.keys() != expected:
            return f"ciphertexts {sorted(blocks)[:8]}, expected {sorted(expected)[:8]}"
        for block in blocks.values():
            channel.scheme.load(block)
    except (BrokenProtocol, ValueError) as error:
        return f"no ciphertexts ({error})"
    return ""


def _opened_sums(line: Line, messages: Sequence[Message]) -> set[int]:
    """Which notes hand the server a sum that it may hear: one of each play, the same numbers that it has heard."""
    notes = [one for one in messages if (one.kind, one.what) == ("note", "opened sum")]
    notes = [one for one in notes if one.exchange == line.exchange.name and one.receiver == SERVER]
    times, found = Counter(one.turn for one in notes), set()
    opened = {play.turn: play.opened for play in plays(messages, line.exchange.name)}
    for one in notes:
        sum_of = opened.get(one.turn, {})
        if times[one.turn] > 1 or one.data.nbytes != line.sum.message[:-1].nbytes:
            continue
        numbers = np.append(one.data.view(line.sum.message.dtype), 0)
        if not complete(line.exchange.fields, sum_of) or _same(line.sum.total(numbers), sum_of, line):
            found.add(id(one))
    return found


def _same(total: Any, opened: dict[str, NDArray[Any]], line: Line) -> bool:
    pairs = zip(leaves(total), leaves(filled(line.exchange.fields, opened)), strict=True)
    return all(np.array_equal(a, b) for (_, a), (_, b) in pairs)


def copies(suspect: Sequence[Message], plain: Stage) -> list[str]:
    """In which of these messages there are words of what clients have answered."""
    private = {one.name for one in all_exchanges(plain.algorithm) if one.private}
    answers = [one for one in plain.transcript.messages if one.kind == "upload" and one.exchange in private]
    words = _words([one.data for one in answers])
    if not suspect or not len(words):
        return []
    starts = np.cumsum([0, *(one.data.nbytes for one in suspect)])
    text = np.frombuffer(b"".join(one.data.tobytes() for one in suspect), np.uint8)
    found = Counter[int]()
    for at in windows(text, lambda some: words[np.minimum(np.searchsorted(words, some), len(words) - 1)] == some):
        number = int(np.searchsorted(starts, at, "right")) - 1
        if _KEY not in suspect[number].what or (text[at : at + 8] == 0).sum() <= _ZEROS:
            found[number] += 1
    told = [(suspect[i], count) for i, count in sorted(found.items())]
    texts = [f"{one.what or one.kind} of {one.sender} in {one.exchange}, round {one.round}: {n}" for one, n in told]
    return [f"{text} words of 64 bits that clients have answered" for text in texts]


def _words(answers: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """All words of 64 bits of answers, at every number, that have some different bytes; ascending."""
    step = 1 + sum(one.nbytes // 8 for one in answers) // _MOST
    found = [np.zeros(0, np.uint64)]
    for one in answers:
        for start in range(0, 8, one.itemsize):
            data = one.view(np.uint8)[start:]
            found.append(data[: len(data) // 8 * 8].view("<u8")[::step])
    words: NDArray[np.uint64] = np.unique(np.concatenate(found))
    octets = np.sort(words.view(np.uint8).reshape(-1, 8), axis=1)
    different: NDArray[np.bool_] = (np.diff(octets, axis=1) != 0).sum(axis=1) + 1 >= _DIFFERENT
    return words[different]


def windows(text: NDArray[np.uint8], known: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]) -> Iterable[int]:
    """Where a word of 64 bits that is `known` begins, at every byte."""
    for start in range(min(8, len(text))):
        words = text[start : start + (len(text) - start) // 8 * 8].view("<u8")
        for piece in range(0, len(words), 2**20):
            yield from ((np.flatnonzero(known(words[piece : piece + 2**20])) + piece) * 8 + start).tolist()
