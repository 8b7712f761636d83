"""A short recorded run with all parties in this process: what is sent, which rows are read, what the auditor knows.

Each client is sealed alone, and its upload is put down as it is sent before it enters the sum. What never leaves a
party, such as a secret key, is not a message, and so is never recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.channels.base import Channel, Payload, Plan
from mpifed.comm.mpi import Comm, Solo
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.sums import Message
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, ServerRecord, States
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData, CsrRows, Piece
from mpifed.job.job import Job
from mpifed.job.participation import next_attempt, next_round
from mpifed.maths.problem import Problem
from mpifed.run.evaluation import measure
from mpifed.run.setup import measures_of, prepare

LIMIT_BYTES = 2**28  # of messages, from which on no further round is recorded unless it is asked for


@dataclass(eq=False)
class Play:
    """An exchange as it was played once."""

    exchange: Exchange
    message: Message
    round: int  # SETUP before round 0, and for what is measured
    question: Record  # what the server broadcasts; of what has columns, a client may receive its own alone
    uploads: dict[int, Array]  # by client, as sent: integers at its own positions, or bytes as uint8
    rows: dict[int, set[int]]  # by client, positions of those that were read
    before: Play | None  # the play before in the same round
    total: Record | None = None  # the sum, decoded, as its receivers get it; None if nobody does

    @property
    def asked(self) -> Record:
        """The question; where it asks nothing, the last one of the round that asks something."""
        return self.question if bare_leaves(self.question) or self.before is None else self.before.asked


class Transcript:
    """All that is sent in a run."""

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.notes: list[tuple[int, str, Array]] = []  # client, what, bytes of what it sends beside uploads
        self.now: Play | None = None  # in progress

    @property
    def messages(self) -> list[Array]:
        """Every array that was sent."""
        sent = [data for _, _, data in self.notes]
        for one in self.plays:
            sent += [*one.uploads.values(), *bare_leaves(one.question)]
            sent += [] if one.total is None else bare_leaves(one.total)
        return sent

    @property
    def nbytes(self) -> int:
        """The bytes of all of them."""
        return sum(data.nbytes for data in self.messages)

    def note(self, client: int, what: str, payload: Payload) -> None:
        """Record what a client sends beside uploads: keys, shares."""
        self.notes.append((client, what, _copied(np.frombuffer(payload, np.uint8))))

    def read(self, client: int, rows: Array) -> None:
        """Record that rows of a client are read."""
        if self.now is not None:
            self.now.rows[client].update(np.asarray(rows).ravel().tolist())


def _copied(data: Any) -> Array:  # an array or a number
    """A copy of a message, which nobody changes."""
    message = np.array(data)
    message.setflags(write=False)
    return message


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
        if self._transcript.now is not None:
            self._transcript.now.uploads[client] = _copied(self._inner.sent(plan, upload, client))
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
        plays, asked, rows = self._transcript.plays, map_leaves(_copied, question), defaultdict[int, set[int]](set)
        before = plays[-1] if plays and plays[-1].round == now.index else None
        one = self._transcript.now = Play(plan.exchange, plan.message, int(now.index), asked, {}, rows, before)
        plays.append(one)
        total = super().sum(plan, states, question, now, measured)
        self._transcript.now = None
        one.total = None if total is None else map_leaves(_copied, total)
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


class Replay(NamedTuple):
    """A recorded run, and what the auditor knows about it."""

    job: Job
    algorithm: Algorithm
    channel: str  # that aggregated the uploads
    shards: dict[int, ClientData]
    transcript: Transcript
    rounds: int  # that were not void
    now: Round  # the last of these
    server: ServerRecord  # at the end

    @property
    def problem(self) -> Problem:
        return self.algorithm.problem

    def plays(self, exchange: str) -> list[Play]:
        """All occurrences of an exchange, in order."""
        return [play for play in self.transcript.plays if play.exchange.name == exchange]

    def rows(self, round: int, exchange: str, client: int) -> NDArray[np.int64]:
        """Positions of the client's rows that entered an exchange, ascending."""
        entered = [play.rows.get(client, set()) for play in self.plays(exchange) if play.round == round]
        return np.array(sorted(set().union(*entered)), dtype=np.int64)

    def features(self, client: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p_i] rows of a client, dense, in float64, by position."""
        shard = self.shards[client]
        if shard.sparse:
            return np.asarray(shard.take_sparse(rows, np.float64).toarray())
        out = np.empty((len(rows), shard.features))
        shard.take(rows, out)
        return out

    def full_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p] samples with all columns, from all clients that hold parts of them."""
        values = np.zeros((len(rows), self.problem.features))
        for client, shard in self.shards.items():
            _, here, positions = np.intersect1d(rows, shard.rows, return_indices=True)
            order = np.argsort(positions)  # files are read in order
            values[np.ix_(here[order], shard.columns)] = self.features(client, positions[order])
        return values

    def in_clear(self, exchange: Exchange) -> bool:
        """Whether the server can read every client's upload."""
        return self.channel == "plain" or exchange.clear


def replay_job(job: Job, rounds: int, limit: float = float("inf")) -> Replay:
    """Record the set-up, `rounds` rounds of a job, and evaluations before and after.

    The result depends on the job's seed alone, except for keys and secret noise. `limit`: bytes of messages from which
    on no further round is recorded. Raises UsageError, DataError or TooFewClients as the run itself would.
    """
    transcript = Transcript()
    ready = prepare(job, Solo(), make_ranks=partial(RecordedRanks, transcript))
    ranks, algorithm = ready.ranks, ready.algorithm
    measures = measures_of(job, algorithm) if job.record.evaluate_every else ()
    server, clients = play(algorithm.setup, ready.server, ready.clients, ready.everybody, ranks)
    measure(measures, algorithm, server, ranks.blocks, clients, ready.everybody, ranks)
    index, attempt, last = 0, 0, ready.everybody
    while index < min(rounds, job.rounds) and not (index and transcript.nbytes > limit):
        if attempt == job.participation.attempts:
            raise TooFewClients(
                f"round {index} was void in all of {attempt} attempts, since too many clients dropped out: the run "
                "itself ends here; raise [participation] max_dropouts or attempts"
            )
        now = next_round(job, ranks.clients, algorithm.exchanges, index, attempt, ready.key)
        server, clients = play(algorithm.exchanges, server, clients, now, ranks)
        again = next_attempt(job, now, algorithm.exchanges, attempt)
        attempt = again or 0
        if again is None:
            index, last = index + 1, now
    measure(measures, algorithm, server, ranks.blocks, clients, ready.everybody, ranks)
    shards = {shard.client: shard for block in ranks.blocks for shard in block.shards}
    return Replay(job, algorithm, ranks.channel.name, shards, transcript, index, last, server)
