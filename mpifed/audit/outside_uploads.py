"""Messages outside masked or encrypted uploads: kinds that the protocol does not send, and copies in the clear.

Every note of a transcript must be of a kind that the protocol sends, and every upload a single message of the size that
follows from the job. The plain uploads are known from the auditor's plain replay: their 64-bit words with several
distinct bytes are searched for at every byte of notes and of malformed uploads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.bit_windows import KnownWords, distinct_bytes
from mpifed.audit.messages import complete, filled, plan_of, plays, private_uploads
from mpifed.audit.replay import Replay
from mpifed.comm.encryption.bundles import unbundle
from mpifed.comm.encryption.channel import Encrypted
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.masking.secret_sharing import SHARE_BYTES
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import ToClients
from mpifed.core.record import Array, Record, leaves
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import SERVER, RecordedMessage, client_of

_DIFFERENT = 4  # distinct bytes of a word that is searched for: others occur by chance
_KEY = "public key of the encryption"
_ZEROS = 2  # most zero bytes of a word that is searched for in such a key, which has 32-bit words of its own
_MOST = 2**24  # words that are searched for; of more, a subset spread evenly over each upload
KNOWN: dict[str, dict[str, int | None]] = {
    "masked": {
        "public key": 32, "deposit and sealed shares": None, "share of the seed of client #": SHARE_BYTES,
        "share of the key of client #": SHARE_BYTES, "sum so far, sealed": None,
    },
    "encrypted": {
        _KEY: None, f"{_KEY} so far": None,
        "secret key of the encryption, sealed for the clients": None, "opened sum": None,
    },
}  # fmt: skip  # by channel, its kinds of notes and their sizes in bytes, where fixed


class ClassifiedMessages(NamedTuple):
    """Messages of a transcript, classified."""

    sound: tuple[RecordedMessage, ...]  # all messages but malformed uploads
    strange: list[str]  # descriptions of messages that the protocol does not send
    suspect: list[RecordedMessage]  # notes and malformed uploads, which are searched for copies


def classify(replay: Replay, messages: Sequence[RecordedMessage]) -> ClassifiedMessages:
    """Classify the messages of a transcript; with plain security all are sound."""
    channel = replay.transcript.channel
    if channel == "plain":
        return ClassifiedMessages(tuple(messages), [], [])
    strange, odd, sums = [], set[tuple[str, int, int]](), set[int]()
    for exchange in all_exchanges(replay.algorithm):
        plan = plan_of(replay, exchange)
        for play in plays(messages, exchange.name):
            for client, upload in play.uploads.items():
                wrong = _wrong(replay, plan, client, upload)
                if wrong:
                    odd.add((exchange.name, play.turn, client))
                    strange.append(f"client {client} in {exchange.name}, turn {play.turn}, sends {wrong}")
        if channel == "encrypted" and not isinstance(exchange, ToClients):
            sums |= _opened_sums(plan, messages)
    known, suspect = KNOWN[channel], list[RecordedMessage]()
    for message in messages:
        if message.kind == "upload" and (message.exchange, message.turn, client_of(message)) in odd:
            suspect.append(message)
        if message.kind != "note" or id(message) in sums:
            continue
        suspect.append(message)
        what = re.sub(r"\d+$", "#", message.what)
        if what not in known or what == "opened sum" or known[what] not in (None, message.data.nbytes):
            strange.append(
                f"{message.what or 'a message'} of {message.sender} to {message.receiver}, {message.data.nbytes} bytes"
            )
    sound = tuple(message for message in messages if (message.exchange, message.turn, client_of(message)) not in odd)
    return ClassifiedMessages(sound, list(dict.fromkeys(strange)), suspect)


def _wrong(replay: Replay, plan: ExchangePlan, client: int, upload: list[RecordedMessage]) -> str:
    """How an upload differs in size or type from that of the job; "" if it does not."""
    if len(upload) > 1:
        return f"{len(upload)} messages, expected a single one"
    (message,), assumed = upload, plan.sum.message.dtype
    if replay.transcript.channel == "masked" or not plan.exchange.private:
        if message.data.dtype != assumed or message.data.nbytes != plan.sent[client]:
            return (
                f"{message.data.nbytes} bytes of type {message.data.dtype}, expected {plan.sent[client]} of {assumed}"
            )
        return ""
    channel = replay.aggregator.channel
    assert isinstance(channel, Encrypted)
    expected = {i for vector in channel.vectors(plan) if vector.senders[client] for i in vector.numbers}
    try:
        blocks = unbundle(message.data)
        if blocks.keys() != expected:
            return f"ciphertexts {sorted(blocks)[:8]}, expected {sorted(expected)[:8]}"
        for block in blocks.values():
            channel.scheme.load(block)
    except (BrokenProtocol, ValueError) as error:
        return f"no ciphertexts ({error})"
    return ""


def _opened_sums(plan: ExchangePlan, messages: Sequence[RecordedMessage]) -> set[int]:
    """Ids of the notes that give the server a sum it may decode: one per occurrence, equal to the decoded sum."""
    notes = [note for note in messages if (note.kind, note.what) == ("note", "opened sum")]
    notes = [note for note in notes if note.exchange == plan.exchange.name and note.receiver == SERVER]
    times, handed_over = Counter(note.turn for note in notes), set()
    opened = {play.turn: play.opened for play in plays(messages, plan.exchange.name)}
    for note in notes:
        sum_of = opened.get(note.turn, {})
        if times[note.turn] > 1 or note.data.nbytes != plan.sum.message[:-1].nbytes:
            continue
        numbers = np.append(note.data.view(plan.sum.message.dtype), 0)
        if not complete(plan.exchange.fields, sum_of) or _same(plan.sum.total(numbers), sum_of, plan):
            handed_over.add(id(note))
    return handed_over


def _same(total: Record, opened: dict[str, Array], plan: ExchangePlan) -> bool:
    pairs = zip(leaves(total), leaves(filled(plan.exchange.fields, opened)), strict=True)
    return all(np.array_equal(a, b) for (_, a), (_, b) in pairs)


def copies(suspect: Sequence[RecordedMessage], plain: Replay) -> list[str]:
    """Descriptions of the messages that contain words of clients' uploads."""
    words = _words([message.data for message in private_uploads(plain, plain.transcript.messages)])
    if not suspect or not len(words):
        return []
    starts = np.cumsum([0, *(message.data.nbytes for message in suspect)])
    text = np.frombuffer(b"".join(message.data.tobytes() for message in suspect), np.uint8)
    counts = Counter[int]()
    for at in KnownWords(words).positions(text):
        number = int(np.searchsorted(starts, at, "right")) - 1
        if _KEY not in suspect[number].what or (text[at : at + 8] == 0).sum() <= _ZEROS:
            counts[number] += 1
    places = [(suspect[i], count) for i, count in sorted(counts.items())]
    texts = [
        f"{message.what or message.kind} of {message.sender} in {message.exchange}, round {message.round}: {count}"
        for message, count in places
    ]
    return [f"{text} 64-bit words of clients' uploads" for text in texts]


def _words(answers: Sequence[Array]) -> NDArray[np.uint64]:
    """64-bit words of uploads with several distinct bytes, from every number on; ascending."""
    step = 1 + sum(answer.nbytes // 8 for answer in answers) // _MOST
    pieces = [np.zeros(0, np.uint64)]
    for answer in answers:
        for start in range(0, 8, answer.itemsize):
            data = answer.view(np.uint8)[start:]
            pieces.append(data[: len(data) // 8 * 8].view("<u8")[::step])
    words: NDArray[np.uint64] = np.unique(np.concatenate(pieces))
    return words[distinct_bytes(words) >= _DIFFERENT]
