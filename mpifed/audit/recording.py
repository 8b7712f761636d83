"""A short recorded run with all parties in this process: what is sent, which rows are read, what can be read of it.

Uploads are put down client by client, in the clear and as they are sent; sums are made as the job has it. What never
leaves a party, such as a secret key, is not a message, and so is never recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.local_method import LocalSteps
from mpifed.algorithms.reveals import Received, Revealed
from mpifed.audit.reveals import revealed
from mpifed.comm.channels.base import Channel, Plan
from mpifed.comm.mpi import Comm, Solo
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.sums import Message
from mpifed.core.device import host_record
from mpifed.core.exchange import Exchange, ServerRecord, States
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, Flags, Integers, Record, bare_leaves, map_leaves, nbytes
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData
from mpifed.job.job import Job
from mpifed.job.participation import next_round, round_of
from mpifed.maths.problem import Problem
from mpifed.run.evaluation import measure
from mpifed.run.setup import measures_of, prepare

Kind = TypeVar("Kind", bound=Revealed)
LIMIT_BYTES = 2**28  # of messages, from which on no further round is recorded unless it is asked for


@dataclass(eq=False)
class Play:
    """An exchange as it was played once."""

    exchange: Exchange
    message: Message
    round: int  # SETUP before round 0, and for what is measured
    question: Record  # what the server broadcasts; of what has columns, a client may receive its own alone
    before: Play | None  # the play before in the same round
    uploads: dict[int, Record] = field(default_factory=dict)  # by client, decoded from its own integers
    sealed: dict[int, Array] = field(default_factory=dict)  # by client, its mask, or its ciphertext's bytes as uint8
    rows: dict[int, Flags] = field(default_factory=dict)  # by client, which of its rows were read
    total: Record | None = None  # the sum, decoded, as its receivers get it; None if nobody does

    def turns(self) -> Iterator[Play]:
        """This play, and those before it in the same round, the last first."""
        yield self
        yield from () if self.before is None else self.before.turns()

    @property
    def asked(self) -> Record:
        """The question; where it asks nothing, the last one of the round that asks something."""
        return next((play.question for play in self.turns() if bare_leaves(play.question)), ())


class RecordedRanks(Ranks):
    """Puts down what is asked, what is uploaded, the sums, and the rows that clients read for them."""

    def __init__(self, comm: Comm, blocks: Sequence[Block], *arguments: Any, **named: Any) -> None:  # of `Ranks`
        observed = [Block(tuple(ObservedShard(one, self) for one in block.shards), block.dtype) for block in blocks]
        super().__init__(comm, observed, *arguments, **named)
        self.plays = list[Play]()
        self.now: Play | None = None  # in progress
        self.nbytes = 0  # of all that was sent
        if self.channel.name != "plain":
            self.channel = cast("Channel", Recording(self.channel, self))

    def sum(self, plan: Plan, states: States, question: Record, now: Round, measured: bool) -> ServerRecord:
        exchange, plays = plan.exchange, self.plays
        before = plays[-1] if plays and plays[-1].round == now.index else None
        play = self.now = Play(exchange, plan.message, int(now.index), map_leaves(np.array, question), before)
        if exchange.answer is not None:
            plan.exchange = replace(exchange, answer=partial(_answer, plan, exchange.answer, play.uploads))
        total = super().sum(plan, states, question, now, measured)
        plan.exchange, self.now = exchange, None
        play.total = None if total is None else map_leaves(np.array, total)
        plays.append(play)
        self.nbytes += sum(map(nbytes, [play.question, *(play.sealed or play.uploads).values()]))
        return total


def _answer(
    plan: Plan, answer: Callable[..., tuple[Record, Record | Lazy]], uploads: dict[int, Record], state: Record,
    question: Record, block: Block, now: Round,
) -> tuple[Record, Record | Lazy]:  # fmt: skip
    """The answers of a block's clients, of which `uploads` keeps each one's."""
    after, upload = answer(state, question, block, now)
    parts: Iterable[tuple[Any, Record]] = [(slice(None), upload)]  # indices
    if isinstance(upload, Lazy):
        parts = made = list(upload.parts())
        upload = Lazy(lambda: iter(made), upload.total)
    for who, part in parts:
        for i, client in enumerate(block.clients[who].tolist()):
            uploads[client] = plan.message.decode(plan.integers(host_record(part), i, client))
    return after, upload


class Recording:
    """Around a secure channel: one client at a time is sealed, put down, and put into the sum."""

    add = add_one_by_one = Channel.add_one_by_one

    def __init__(self, inner: Channel, ranks: RecordedRanks) -> None:
        self._inner, self._ranks = inner, ranks

    def __getattr__(self, name: str) -> Any:  # of the attribute's type, which mypy cannot follow
        return getattr(self._inner, name)

    def begin(self, plan: Plan, now: Round) -> None:
        self._inner.begin(plan, now)
        plan.sum.begin(False)  # uploads are added, and the first overwrites nothing

    def seal(self, plan: Plan, integers: Integers, client: int, now: Round) -> Array:
        kept = {} if plan.kept is None else plan.kept.sent
        before, own = kept.get(client, 0), plan.message.own(client)
        upload = self._inner.seal(plan, integers, client, now)
        sent = self._inner.sent(plan, upload, client)
        if self._ranks.now:
            # where it goes on counting, an upload is a change
            counted = kept.get(client, integers[own]) - before
            self._ranks.now.sealed[client] = sent - counted if self.name == "masked" else sent.copy()
        return upload


class ObservedShard:
    """A shard whose reads are recorded."""

    joint = None  # rows must be read through this class
    sees_reads = True

    def __init__(self, shard: ClientData, ranks: RecordedRanks) -> None:
        self._shard, self._ranks = shard, ranks

    def __getattr__(self, name: str) -> Any:  # of the attribute's type, which mypy cannot follow
        value = getattr(self._shard, name)
        if name not in ("take", "take_sparse", "pieces"):
            return value

        def read(first: Array, *rest: object) -> object:
            if play := self._ranks.now:
                entered = play.rows.setdefault(self._shard.client, np.zeros(self._shard.samples, dtype=bool))
                entered[slice(None) if name == "pieces" else first] = True  # pieces are of all rows
            return value(first, *rest)

        return read


class Replay(NamedTuple):
    """A recorded run, and what the auditor knows about it; messages are decoded on demand, and sealed ones not."""

    job: Job
    algorithm: Algorithm
    channel: str  # that aggregated the uploads
    shards: dict[int, ClientData]
    plays: list[Play]
    nbytes: int  # of what was sent
    rounds: int
    server: ServerRecord  # at the end

    @property
    def problem(self) -> Problem:
        return self.algorithm.problem

    def full_rows(self, rows: Array) -> NDArray[np.float64]:
        """[b, p] samples with all columns, from all clients that hold parts of them; `rows` in order."""
        values = np.zeros((len(rows), self.problem.features))
        for shard in self.shards.values():
            here = np.isin(rows, shard.rows)
            (X,) = Block((shard,), "float64").take(np.searchsorted(shard.rows, rows[None, here])).X
            values[np.ix_(here, shard.columns)] = X if isinstance(X, np.ndarray) else X.toarray()
        return values

    def labels(self, rows: Array) -> Array:
        """[b] those of samples."""
        y = np.zeros(self.problem.samples, self.shards[0].y.dtype)
        for shard in self.shards.values():
            y[shard.rows] = shard.y
        return y[rows]

    def received(self, play: Play, client: int | None = None) -> Received | None:
        """A client's upload, or the sum over all columns that the server decodes; None where it cannot read it."""
        clients, columns = sorted(play.uploads), np.arange(self.problem.features)
        answer = None if play.exchange.hear is not None else play.total
        if client is not None:
            clients, columns = [client], self.shards[client].columns
            answer = None if play.sealed else play.uploads.get(client)
        if answer is None or not clients:
            return None
        before = None if play.before is None else self.received(play.before, client)
        rows = np.unique(np.concatenate([self.shards[client].rows for client in clients]))
        now, wide = round_of(self.job, self.problem.clients, play.round), map_leaves(np.float64, answer)
        return Received(play.exchange, play.round, play.asked, wide, tuple(clients), rows, columns.copy(), now, before)

    def revealed(self, received: Received, kind: type[Kind]) -> Iterator[Kind]:
        """What of a kind a message reveals; UsageError where the algorithm's own declaration is wrong."""
        method = self.algorithm
        here = method.in_round(received.now) if isinstance(method, LocalSteps) else method
        yield from (item for item in revealed(here, received) if isinstance(item, kind))

    def of_clients(self, kind: type[Kind]) -> Iterator[tuple[Play, int, Kind]]:
        """(occurrence, client, item) of a kind in uploads of single clients, in order."""
        for at in self.plays:
            for client in sorted(at.uploads):
                if received := self.received(at, client):
                    yield from ((at, client, item) for item in self.revealed(received, kind))


def replay_job(job: Job, rounds: int, limit: float = float("inf")) -> Replay:
    """Record the set-up, `rounds` rounds of a job, each played once, and the evaluation after them.

    The result depends on the job's seed alone, except for keys and secret noise. `limit`: bytes of messages from which
    on no further round is recorded. Raises UsageError or DataError as the run itself would.
    """
    ready = prepare(job, Solo(), make_ranks=RecordedRanks)
    ranks, algorithm = cast("RecordedRanks", ready.ranks), ready.algorithm
    server, clients = play(algorithm.setup, ready.server, ready.clients, ready.everybody, ranks)
    index = 0
    while index < min(rounds, job.rounds) and not (index and ranks.nbytes > limit):
        now = next_round(job, ranks.clients, algorithm.exchanges, index, 0, ready.key)
        server, clients = play(algorithm.exchanges, server, clients, now, ranks)
        index += 1
    if job.record.evaluate_every:
        measure(measures_of(job, algorithm), algorithm, server, ranks.blocks, clients, ready.everybody, ranks)
    shards = {shard.client: shard for block in ranks.blocks for shard in block.shards}
    return Replay(job, algorithm, ranks.channel.name, shards, ranks.plays, ranks.nbytes, index, server)
