"""Transcripts by exchange: broadcasts, each client's uploads, and decoded sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mpifed.audit.replay import Replay
from mpifed.audit.transcript import RecordedMessage, client_of
from mpifed.comm.sums import Message
from mpifed.core.exchange import Exchange
from mpifed.core.record import AnyRecord, Array, Record, leaves, map_leaves
from mpifed.job.participation import arithmetic


class Play(NamedTuple):
    """The messages of one occurrence of an exchange."""

    round: int
    question: dict[str, Array]  # by the names of leaves
    uploads: dict[int, list[RecordedMessage]]  # by client, the parts of its upload
    opened: dict[str, Array]  # the decoded sum, by the names of leaves; empty if no party decoded it
    opened_for: str  # "server", "clients", "client 3"; "" if no party decoded it


def plays(messages: Iterable[RecordedMessage], exchange: str) -> list[Play]:
    """All occurrences of an exchange, in order, from the records of all ranks."""
    by_turn: dict[int, Play] = {}
    for message in messages:
        if message.exchange != exchange or message.kind not in ("question", "upload", "opened"):
            continue
        play = by_turn.setdefault(message.turn, Play(message.round, {}, {}, {}, ""))
        client = client_of(message)
        if message.kind == "question":
            play.question[message.what] = message.data
        elif message.kind == "opened":
            play.opened[message.what] = message.data
            by_turn[message.turn] = play._replace(opened_for=message.receiver)
        elif client is not None:
            play.uploads.setdefault(client, []).append(message)
    return [by_turn[turn] for turn in sorted(by_turn)]


def filled(template: AnyRecord, values: dict[str, Array]) -> AnyRecord:
    """A record with the structure of `template` and the leaves of `values`, by name."""
    names = iter([name for name, _ in leaves(template)])
    return map_leaves(lambda _: values[next(names)], template)


def message_of(replay: Replay, exchange: Exchange) -> Message:
    """Layout of clients' numbers in the messages of an exchange, in the fixed-point format of the recording."""
    return Message(exchange, replay.algorithm.problem.clients, arithmetic(replay.job, replay.algorithm))


def decoded(message: Message, upload: list[RecordedMessage]) -> Record | None:
    """One client's upload, zero in others' positions; None if it is not of integers of this size."""
    if not upload or upload[0].data.dtype.itemsize != message.dtype.itemsize:  # ciphertexts are bytes
        return None
    client = client_of(upload[0])
    assert client is not None
    numbers = np.zeros(message.size, message.dtype)
    message.put(numbers, client, upload[0].data.view(message.dtype))
    return message.decode(numbers)
