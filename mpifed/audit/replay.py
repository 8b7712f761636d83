"""A short recorded run with all parties in this process.

Its transcript has the messages of all parties. The auditor also records which rows of which client entered each
exchange, and the server's states before the rounds.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.audit.transcript import Transcript
from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import Ranks, play
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Measure, ServerRecord
from mpifed.core.protocols import CsrRows, Piece
from mpifed.core.record import Array, Record
from mpifed.core.round import SETUP, Round
from mpifed.data.block import Block, ClientData
from mpifed.data.roster import Roster
from mpifed.job.job import Job
from mpifed.job.participation import next_attempt, next_round
from mpifed.run.evaluation import measure
from mpifed.run.setup import Ready, measures_of, prepare

LIMIT_BYTES = 2**28  # of messages, from which on no further round is recorded unless it is asked for


class RowObserver:
    """Records which rows enter which exchange."""

    def __init__(self) -> None:
        self.at: tuple[int, str] | None = None  # current round and exchange
        self.entered: dict[tuple[int, str], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))

    def note(self, client: int, rows: Array) -> None:
        """Record that rows of a client are read."""
        if self.at is not None:
            self.entered[self.at][client].update(np.asarray(rows).ravel().tolist())

    def observe(self, ranks: Ranks) -> None:
        """Record reads in the sums of this ranks from now on."""
        shards = [[ObservedShard(shard, self) for shard in block.shards] for block in ranks.blocks]
        blocks = [Block(tuple(own), block.dtype) for own, block in zip(shards, ranks.blocks, strict=True)]
        ranks.blocks = Roster.of(blocks)
        add = ranks.sum

        def observed(*given: Any) -> Any:  # as `Ranks.sum`
            plan, now = given[0], given[3]
            self.at = now.index, plan.exchange.name
            try:
                return add(*given)
            finally:
                self.at = None

        vars(ranks).update(sum=observed)


class ObservedShard:
    """A shard whose reads are recorded."""

    joint = joint_columns = None  # rows must be read through this class
    sees_reads = True

    def __init__(self, shard: ClientData, observer: RowObserver) -> None:
        self._shard, self._observer = shard, observer

    def __getattr__(self, name: str) -> Any:  # of the attribute's type, which mypy cannot follow
        return getattr(self._shard, name)

    def take(self, at: Array, out: Array) -> None:
        self._observer.note(self._shard.client, at)
        self._shard.take(at, out)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        self._observer.note(self._shard.client, at)
        return self._shard.take_sparse(at, dtype)

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        for rows, X in self._shard.pieces(dtype):
            self._observer.note(self._shard.client, np.arange(rows.start, rows.stop))
            yield rows, X


class RoundStart(NamedTuple):
    """The server's state before a round."""

    now: Round
    server: Record


@dataclass
class Replay:
    """A recorded run, and what the auditor knows about it."""

    job: Job
    algorithm: Algorithm
    blocks: list[Block]
    transcript: Transcript
    ranks: Ranks  # that ran the exchanges
    round_starts: list[RoundStart] = field(default_factory=list)  # before each round that was not void
    server: ServerRecord = None  # at the end
    entered: dict[tuple[int, str], dict[int, set[int]]] = field(default_factory=dict)  # rows, by (round, exchange)
    test: Block | None = None

    @property
    def shards(self) -> dict[int, ClientData]:
        return {shard.client: shard for block in self.blocks for shard in block.shards}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return self.algorithm.exchanges

    def rows(self, round: int, exchange: str, client: int) -> NDArray[np.int64]:
        """Positions of the client's rows that entered an exchange, ascending."""
        positions = self.entered.get((round, exchange), {}).get(client, set())
        return np.array(sorted(positions), dtype=np.int64)

    def features(self, client: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p_i] rows of a client, dense, by position."""
        return dense_rows(self.shards[client], rows)

    def full_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p] samples with all columns, from all clients that hold parts of them."""
        values = np.zeros((len(rows), self.algorithm.problem.features))
        for shard in self.shards.values():
            _, here, positions = np.intersect1d(rows, shard.rows, return_indices=True)
            order = np.argsort(positions)  # files are read in order
            values[np.ix_(here[order], shard.columns)] = dense_rows(shard, positions[order])
        return values

    def in_clear(self, exchange: Exchange) -> bool:
        """Whether the server can read every client's upload."""
        return self.transcript.channel == "plain" or exchange.clear


def dense_rows(shard: ClientData, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """[b, p] rows of a shard, dense, in float64."""
    if shard.sparse:
        return np.asarray(shard.take_sparse(rows, np.float64).toarray())
    out = np.empty((len(rows), shard.features))
    shard.take(rows, out)
    return out


def replay_job(job: Job, rounds: int, limit: float = math.inf) -> Replay:
    """Record the set-up, `rounds` rounds of a job, and evaluations before and after.

    The result depends on the job's seed alone, except for keys and secret noise. `limit`: bytes of messages from which
    on no further round is recorded. Raises UsageError, DataError or TooFewClients as the run itself would.
    """
    observer, transcript = RowObserver(), Transcript()
    ready = prepare(job, Solo(), recorder=transcript)
    ranks = ready.ranks
    transcript.channel = ranks.channel.name
    blocks = list(ranks.blocks)
    observer.observe(ranks)
    replay = Replay(job, ready.algorithm, blocks, transcript, ranks, test=ready.test)
    _play(replay, ready, rounds, limit)
    replay.entered = {key: dict(clients) for key, clients in observer.entered.items()}
    return replay


def _play(replay: Replay, ready: Ready, rounds: int, limit: float) -> None:
    ranks = ready.ranks
    everybody = Round(SETUP, replay.job.seed, np.ones(ranks.clients, dtype=bool))
    measures: tuple[Measure, ...] = (
        measures_of(replay.job, replay.algorithm) if replay.job.record.evaluate_every else ()
    )
    server, clients = play(replay.algorithm.setup, ready.server, ready.clients, everybody, ranks)
    exchanges = replay.algorithm.exchanges

    def measured() -> None:
        measure(measures, replay.algorithm, server, ranks.blocks, clients, everybody, ranks, None)

    measured()
    attempt = 0
    while (index := len(replay.round_starts)) < min(rounds, replay.job.rounds):
        if attempt == replay.job.participation.attempts:
            raise TooFewClients(
                f"round {index} was void in each of {attempt} attempts, or after a sum had already been decoded, since "
                "too many clients dropped out: the run itself ends here, and there is nothing to audit; raise "
                "[participation] max_dropouts or attempts"
            )
        if index and replay.transcript.nbytes > limit:
            break
        now = next_round(replay.job, ranks.clients, exchanges, index, attempt, ready.key)
        before = RoundStart(now, copy.deepcopy(server))
        server, clients = play(exchanges, server, clients, now, ranks)
        again = next_attempt(replay.job, now, exchanges, attempt)
        attempt = again or 0
        if again is not None:
            continue
        replay.round_starts.append(before)
    measured()
    replay.server = server
