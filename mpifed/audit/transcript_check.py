"""Check that a transcript belongs to the job: its parties, exchanges, shapes, and all clients' uploads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from mpifed.audit.replay import Replay
from mpifed.core.errors import DataError
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import CLIENTS, SERVER, Recorded, RecordedMessage, client_of

_KINDS = {"question": "broadcast", "opened": "decoded sum"}  # kinds of messages in errors
Shapes = dict[tuple[str, str, str], set[tuple[tuple[int, ...], str, bool]]]  # by exchange, kind and leaf


def check_transcript(recorded: Recorded, replay: Replay) -> None:
    """Compare a transcript with the auditor's replay.

    Raises DataError when no round is recorded, when uploads are missing although nothing was left out, or when there
    are messages that no run of the job records.
    """
    if recorded.channel != replay.transcript.channel:
        raise _damaged(f'its uploads have security "{recorded.channel}", those of the job '
                       f'"{replay.transcript.channel}"')  # fmt: skip
    clients = replay.algorithm.problem.clients
    names = {"", *(exchange.name for exchange in all_exchanges(replay.algorithm))}
    parties = {SERVER, CLIENTS, *(f"client {i}" for i in range(clients)), *(f"rank {i}" for i in recorded.ranks)}
    for message in recorded.messages:
        about = f"a message of {message.sender} to {message.receiver} in {message.exchange!r}, round {message.round}"
        if message.exchange not in names:
            raise _damaged(f"{about}: no exchange of the job; it has {', '.join(sorted(names - {''}))}")
        if not {message.sender, message.receiver} <= parties:
            raise _damaged(f"{about}: expected the server, recording ranks, and clients 0 to {clients - 1}")
        if not SETUP <= message.round < max(1, replay.job.rounds):
            raise _damaged(f"{about}: the job has rounds 0 to {replay.job.rounds - 1}")
    _check_shapes(recorded.messages, replay)
    _check_uploads(recorded, replay)


def _damaged(text: str) -> DataError:
    return DataError(f"the transcript is damaged, or of another run: {text}; record the run again")


def _shapes(messages: Iterable[RecordedMessage]) -> Shapes:
    shapes: Shapes = defaultdict(set)
    for message in messages:
        if message.kind in _KINDS:
            finite = message.data.dtype.kind != "f" or bool(np.isfinite(message.data).all())
            shapes[message.exchange, message.kind, message.what].add(
                (message.data.shape, message.data.dtype.kind, finite)
            )
    return shapes


def _check_shapes(messages: tuple[RecordedMessage, ...], replay: Replay) -> None:
    """Broadcasts and sums with a single shape in the replay must have it, and be finite."""
    replayed = _shapes(replay.transcript.messages)
    played = {(exchange, kind) for exchange, kind, _ in replayed}
    for key, shapes in _shapes(messages).items():
        if key[:2] not in played:
            continue  # evaluated at other times, or beyond the size limit of the replay's transcript
        if key not in replayed:
            raise _damaged(f"the {_KINDS[key[1]]} of {key[0]} has a field {key[2]!r}, which is none of its leaves")
        if len(replayed[key]) == 1 and (other := shapes - replayed[key]):
            (shape, kind, finite), (expected, *_) = next(iter(other)), next(iter(replayed[key]))
            what = f"shape {shape} and type {kind!r}" if finite else "numbers that are not finite"
            raise _damaged(f"the {_KINDS[key[1]]} of {key[0]} {key[2]!r} has {what}; expected shape {expected}, finite")


def _check_uploads(recorded: Recorded, replay: Replay) -> None:
    rounds = {message.round for message in recorded.messages if message.round != SETUP}
    if not any(message.kind == "upload" for message in recorded.messages):
        raise _damaged("it has no uploads of clients, so that there is nothing to check")
    if recorded.left_out or replay.job.privacy is not None:  # participation may be secret
        return
    senders, replayed = _senders(recorded.messages), _senders(replay.transcript.messages)
    known = {(message.exchange, message.round, message.kind, message.what) for message in recorded.messages}
    for message in replay.transcript.messages:
        key = message.exchange, message.round, message.kind, message.what
        if message.kind in _KINDS and message.round in rounds and key not in known:
            raise _damaged(
                f"the {_KINDS[message.kind]} of {message.exchange} {message.what!r} is missing in round {message.round}"
            )
    for (exchange, round), clients in replayed.items():
        missing = sorted(clients - senders.get((exchange, round), set()))
        if missing and round in rounds:
            few = f"{', '.join(map(str, missing[:8]))}{' and others' * (len(missing) > 8)}"
            raise _damaged(f"uploads of clients {few} to {exchange} are missing in round {round}")


def _senders(messages: Iterable[RecordedMessage]) -> dict[tuple[str, int], set[int]]:
    """Clients with uploads, by exchange and round."""
    senders: dict[tuple[str, int], set[int]] = defaultdict(set)
    for message in messages:
        client = client_of(message)
        if message.kind == "upload" and message.round != SETUP and client is not None:
            senders[message.exchange, message.round].add(client)
    return senders
