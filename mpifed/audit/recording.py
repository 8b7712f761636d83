"""What is sent, and which rows are read, while exchanges are played with all parties in this process; in memory.

Each client is sealed alone, and its upload is put down as it is sent before it enters the sum. What never leaves a
party, such as a secret key, is not a message, and so is never recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.comm.channels.base import Channel, Payload, Plan
from mpifed.comm.mpi import Comm
from mpifed.comm.rounds import Ranks
from mpifed.comm.sums import Message
from mpifed.core.exchange import Exchange, ServerRecord, States
from mpifed.core.protocols import CsrRows, Piece
from mpifed.core.record import Array, Record, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData


@dataclass(eq=False)
class Play:
    """An exchange as it was played once."""

    exchange: Exchange
    message: Message
    round: int  # SETUP before round 0, and for what is measured
    question: Record  # what the server broadcasts; of what has columns, a client may receive its own alone
    uploads: dict[int, Array]  # by client, as sent: integers at its own positions, or bytes as uint8
    rows: dict[int, set[int]]  # by client, positions of those that were read
    total: Record | None = None  # the sum, decoded, as its receivers get it; None if nobody does


class Transcript:
    """All that is sent in a run."""

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.notes: list[tuple[int, str, Array]] = []  # client, what, bytes of what it sends beside uploads
        self.now: Play | None = None  # in progress
        self.messages = self.nbytes = 0

    def copied(self, data: Any) -> Array:  # an array or a number
        """A copy of a message, which is counted, and which nobody changes."""
        message = np.array(data)
        message.setflags(write=False)
        self.messages += 1
        self.nbytes += message.nbytes
        return message

    def note(self, client: int, what: str, payload: Payload) -> None:
        """Record what a client sends beside uploads: keys, shares."""
        self.notes.append((client, what, self.copied(np.frombuffer(payload, np.uint8))))

    def upload(self, client: int, data: np.ndarray) -> None:
        """Record what a client uploads."""
        if self.now is not None:
            self.now.uploads[client] = self.copied(data)

    def read(self, client: int, rows: Array) -> None:
        """Record that rows of a client are read."""
        if self.now is not None:
            self.now.rows[client].update(np.asarray(rows).ravel().tolist())


class Recording:
    """Around any channel: one client at a time is sealed, put down, and put into the sum."""

    add = add_one_by_one = Channel.add_one_by_one

    def __init__(self, inner: Channel, transcript: Transcript) -> None:
        self._inner, self._transcript = inner, transcript
        inner.tap = transcript.note

    def __getattr__(self, name: str) -> Any:  # of the attribute's type, which mypy cannot follow
        return getattr(self._inner, name)

    def begin(self, plan: Plan, now: Round) -> None:
        self._inner.begin(plan, now)
        plan.sum.begin(False)  # uploads are added, and the first overwrites nothing

    def gather(self, plan: Plan, upload: np.ndarray, client: int) -> None:
        self._transcript.upload(client, self._inner.sent(plan, upload, client))
        self._inner.gather(plan, upload, client)


class RecordedRanks(Ranks):
    """Puts down what is asked, what is uploaded, the sums, and the rows that clients read for them."""

    def __init__(
        self,
        transcript: Transcript,
        comm: Comm,
        blocks: Sequence[Block],
        *arguments: Any,  # of `Ranks`
        **named: Any,  # of `Ranks`
    ) -> None:
        shards = [tuple(ObservedShard(shard, transcript) for shard in block.shards) for block in blocks]
        observed = [Block(own, block.dtype) for own, block in zip(shards, blocks, strict=True)]
        super().__init__(comm, observed, *arguments, **named)
        self._transcript = transcript
        self.channel, self._clear = (
            cast("Channel", Recording(channel, transcript)) for channel in (self.channel, self._clear)
        )

    def sum(self, plan: Plan, states: States, question: Record, now: Round, measured: bool) -> ServerRecord:
        copied = self._transcript.copied
        asked, rows = map_leaves(copied, question), defaultdict[int, set[int]](set)
        play = self._transcript.now = Play(plan.exchange, plan.message, int(now.index), asked, {}, rows)
        self._transcript.plays.append(play)
        total = super().sum(plan, states, question, now, measured)
        self._transcript.now = None
        play.total = None if total is None else map_leaves(copied, total)
        return total


class ObservedShard:
    """A shard whose reads are recorded."""

    joint = None  # rows must be read through this class
    sees_reads = True

    def __init__(self, shard: ClientData, transcript: Transcript) -> None:
        self._shard, self._transcript = shard, transcript

    def __getattr__(self, name: str) -> Any:  # of the attribute's type, which mypy cannot follow
        return getattr(self._shard, name)

    def take(self, at: Array, out: Array) -> None:
        self._transcript.read(self._shard.client, at)
        self._shard.take(at, out)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        self._transcript.read(self._shard.client, at)
        return self._shard.take_sparse(at, dtype)

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        for rows, X in self._shard.pieces(dtype):
            self._transcript.read(self._shard.client, np.arange(rows.start, rows.stop))
            yield rows, X


def dense_rows(shard: ClientData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """[b, p] rows of a shard, dense, in float64."""
    if shard.sparse:
        return np.asarray(shard.take_sparse(rows, np.float64).toarray())
    out = np.empty((len(rows), shard.features))
    shard.take(rows, out)
    return out
