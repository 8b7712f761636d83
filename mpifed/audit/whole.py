"""Whether a transcript that was read is one of the job's: its parties, exchanges, shapes, and everybody's uploads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from mpifed.audit.stage import Stage
from mpifed.core.errors import DataError
from mpifed.core.round import SETUP
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import CLIENTS, SERVER, Message, Recorded, client_of

Shapes = dict[tuple[str, str, str], set[tuple[tuple[int, ...], str, bool]]]  # by exchange, kind and leaf


def check(recorded: Recorded, stage: Stage) -> None:
    """Compare what was read with what the auditor has played itself.

    Raises
    ------
    DataError
        when there is nothing of the job's rounds, when somebody's uploads are missing although nothing was left out,
        or when there is something that no run of the job records.
    """
    if recorded.channel != stage.transcript.channel:
        raise _damaged(f'it says that answers travelled by channel "{recorded.channel}", and the job by '
                       f'"{stage.transcript.channel}"')  # fmt: skip
    clients = stage.algorithm.problem.clients
    names = {"", *(one.name for one in all_exchanges(stage.algorithm))}
    parties = {SERVER, CLIENTS, *(f"client {i}" for i in range(clients)), *(f"rank {i}" for i in recorded.ranks)}
    for one in recorded.messages:
        about = f"a message of {one.sender} to {one.receiver} in {one.exchange!r}, round {one.round}"
        if one.exchange not in names:
            raise _damaged(f"{about}: no exchange of the job; it has {', '.join(sorted(names - {''}))}")
        if not {one.sender, one.receiver} <= parties:
            raise _damaged(f"{about}: expected the server, ranks that have recorded, and clients 0 to {clients - 1}")
        if not SETUP <= one.round < max(1, stage.job.rounds):
            raise _damaged(f"{about}: the job has rounds 0 to {stage.job.rounds - 1}")
    _check_shapes(recorded.messages, stage)
    _check_uploads(recorded, stage)


def _damaged(text: str) -> DataError:
    return DataError(f"the transcript is damaged, or of another run: {text}; record the run again")


def _shapes(messages: Iterable[Message]) -> Shapes:
    found: Shapes = defaultdict(set)
    for one in messages:
        if one.kind in ("question", "opened"):
            finite = one.data.dtype.kind != "f" or bool(np.isfinite(one.data).all())
            found[one.exchange, one.kind, one.what].add((one.data.shape, one.data.dtype.kind, finite))
    return found


def _check_shapes(messages: tuple[Message, ...], stage: Stage) -> None:
    """Of questions and sums: where the auditor's own have one shape, and are finite, others' must as well."""
    mine = _shapes(stage.transcript.messages)
    played = {(exchange, kind) for exchange, kind, _ in mine}
    for key, shapes in _shapes(messages).items():
        if key[:2] not in played:
            continue  # what was measured at other times, or beyond the limit of the auditor's own transcript
        if key not in mine:
            raise _damaged(f"the {key[1]} of {key[0]} has {key[2]!r}, which is none of its leaves")
        if len(mine[key]) == 1 and (other := shapes - mine[key]):
            (shape, kind, finite), (expected, *_) = next(iter(other)), next(iter(mine[key]))
            what = f"shape {shape} and type {kind!r}" if finite else "numbers that are not finite"
            raise _damaged(f"the {key[1]} of {key[0]} {key[2]!r} has {what}; expected shape {expected}, finite")


def _check_uploads(recorded: Recorded, stage: Stage) -> None:
    rounds = {one.round for one in recorded.messages if one.round != SETUP}
    if not any(one.kind == "upload" for one in recorded.messages):
        raise _damaged("no client's upload is in it, so that there is nothing to look at")
    if recorded.left_out or stage.job.privacy is not None:  # who takes part may be secret
        return
    theirs, mine = _senders(recorded.messages), _senders(stage.transcript.messages)
    known = {(one.exchange, one.round, one.kind, one.what) for one in recorded.messages}
    for one in stage.transcript.messages:
        key = one.exchange, one.round, one.kind, one.what
        if one.kind in ("question", "opened") and one.round in rounds and key not in known:
            raise _damaged(f"the {one.kind} of {one.exchange} {one.what!r} is missing in round {one.round}")
    for (exchange, round), clients in mine.items():
        missing = sorted(clients - theirs.get((exchange, round), set()))
        if missing and round in rounds:
            few = f"{', '.join(map(str, missing[:8]))}{' and others' * (len(missing) > 8)}"
            raise _damaged(f"uploads of clients {few} to {exchange} are missing in round {round}")


def _senders(messages: Iterable[Message]) -> dict[tuple[str, int], set[int]]:
    """Which clients' uploads there are, by exchange and round."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in messages:
        client = client_of(one)
        if one.kind == "upload" and one.round != SETUP and client is not None:
            found[one.exchange, one.round].add(client)
    return found
