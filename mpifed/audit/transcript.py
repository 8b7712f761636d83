"""What each party of a recorded run sent and received, message by message, as it travelled; in memory.

A recording has the broadcasts, the clients' uploads, what is passed to the reduction, and the sums that are received.
Channels add their own messages, such as public keys and encrypted shares. What never leaves a party, such as a secret
key, is not a message, and so is never recorded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mpifed.comm.channels.base import Plan
from mpifed.core.exchange import hearing
from mpifed.core.record import Array, Record, leaves
from mpifed.core.round import SETUP, Round

SERVER, CLIENTS = "server", "clients"


class RecordedMessage(NamedTuple):
    """What one party sent to others."""

    round: int  # SETUP before round 0, and for what is measured
    turn: int  # how often the exchange was run before, recorded or not
    exchange: str  # "" for a message outside exchanges
    kind: str  # question, upload, passed-on, opened, note
    sender: str  # "server", "clients", "client 3"
    receiver: str
    what: str  # a leaf of the question or sum, a part of an upload, or what a note is
    data: Array  # as sent: integers, or bytes as uint8


class Transcript:
    """Records all messages of a run; see `mpifed.comm.channels.base.Recorder`."""

    def __init__(self) -> None:
        self.messages: list[RecordedMessage] = []
        self.nbytes = 0  # of the messages
        self.channel = ""  # that aggregated the uploads
        self._turns: Counter[str] = Counter()  # by exchange, how often it was run

    def question(self, line: Plan, now: Round, question: Record) -> None:
        """What the server broadcasts; if the exchange says so, a client receives only the rows of its own columns."""
        self._turns[line.exchange.name] += 1
        self._add_record(line, now, "question", SERVER, CLIENTS, question)

    def upload(self, line: Plan, now: Round, client: int, upload: Any) -> None:  # in the channel's own form
        """What a client uploads, as it is sent."""
        for what, part in _parts(upload):
            self._add(line, now, "upload", f"client {client}", SERVER, what, part)

    def passed_on(self, line: Plan, now: Round, message: Any) -> None:  # in the channel's own form
        """What is passed to the reduction, on behalf of all clients."""
        for what, part in _parts(message):
            self._add(line, now, "passed-on", CLIENTS, SERVER, what, part)

    def opened(self, line: Plan, now: Round, total: Record) -> None:
        """The sum, as its receivers get it."""
        receiver = SERVER if line.exchange.hear is None else CLIENTS
        if line.exchange.hears is not None:
            receiver = f"client {np.flatnonzero(hearing(line.exchange, now))[0]}"
        self._add_record(line, now, "opened", CLIENTS, receiver, total)

    def note(self, line: Plan | None, now: Round | None, sender: str, receiver: str, what: str, payload: bytes) -> None:
        """Record a message of any other kind."""
        self._add(line, now, "note", sender, receiver, what, np.frombuffer(payload, dtype=np.uint8))

    def _add_record(self, line: Plan, now: Round, kind: str, sender: str, receiver: str, record: Record) -> None:
        for name, leaf in leaves(record):
            self._add(line, now, kind, sender, receiver, name, np.asarray(leaf))

    def _add(
        self,
        line: Plan | None,
        now: Round | None,
        kind: str,
        sender: str,
        receiver: str,
        what: str,
        data: Any,  # in the channel's own form
    ) -> None:
        index, exchange = SETUP if now is None else int(now.index), "" if line is None else line.exchange.name
        self.nbytes += data.nbytes
        turn = max(0, self._turns[exchange] - 1)
        self.messages.append(RecordedMessage(index, turn, exchange, kind, sender, receiver, what, np.array(data)))


def _parts(upload: object) -> Iterator[tuple[str, Array]]:
    """(name, array) of each part of what is sent: an array, bytes, or several of them."""
    if isinstance(upload, (bytes, bytearray, memoryview)):
        yield "", np.frombuffer(upload, dtype=np.uint8)
    elif isinstance(upload, (tuple, list)):
        for number, element in enumerate(upload):
            for name, part in _parts(element):
                yield f"{number}/{name}".rstrip("/"), part
    elif upload is not None:
        yield "", np.asarray(upload)


def client_of(message: RecordedMessage) -> int | None:
    """The number of the client who sent a message; None where the sender is not a single client."""
    match = re.fullmatch(r"client (\d{1,9})", message.sender)
    return int(match[1]) if match else None
