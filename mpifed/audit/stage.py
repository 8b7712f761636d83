"""A short recorded run with all parties in this process.

Its transcript has the messages of all parties. The auditor also records which rows of which client entered each
exchange, and the states before the last round.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.aggregator import Aggregator
from mpifed.comm.transport import Alone
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Measure, ServerRecord, States, ToClients, ToServer, play
from mpifed.core.holdings import Cells
from mpifed.core.record import Array, Record
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round
from mpifed.job.job import Job
from mpifed.job.participation import next_attempt, next_round
from mpifed.run.evaluation import measure
from mpifed.run.setup import Ready, measures_of, prepare
from mpifed.run.transcript import Transcript

if TYPE_CHECKING:  # plain jobs need no cryptography
    from mpifed.audit.streams import Streams


BESIDE = 100  # most recorded occurrences of an exchange outside the rounds


class Watch:
    """Records which rows enter which exchange."""

    def __init__(self) -> None:
        self.at: tuple[int, str] | None = None  # current round and exchange
        self.entered: dict[tuple[int, str], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))

    def note(self, client: int, rows: Array) -> None:
        """Record that rows of a client are read."""
        if self.at is not None:
            self.entered[self.at][client].update(np.asarray(rows).ravel().tolist())


class Watched:
    """A shard whose reads are recorded; see `mpifed.core.block.ClientData`."""

    joint = None  # rows must be read through this class

    def __init__(self, shard: Any, watch: Watch) -> None:
        self._shard, self._watch = shard, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def take(self, at: Array, out: Array) -> None:
        self._watch.note(self._shard.client, at)
        self._shard.take(at, out)

    def take_sparse(self, at: Array, dtype: Any) -> Any:
        self._watch.note(self._shard.client, at)
        return self._shard.take_sparse(at, dtype)

    def pieces(self, dtype: Any) -> Iterator[tuple[slice, Any]]:
        for rows, X in self._shard.pieces(dtype):
            self._watch.note(self._shard.client, np.arange(rows.start, rows.stop))
            yield rows, X


class _Watching:
    """An aggregator that reports its exchanges to the watch; see `mpifed.core.exchange.Summation`."""

    def __init__(self, aggregator: Aggregator, watch: Watch) -> None:
        self._aggregator, self._watch = aggregator, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._aggregator, name)

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, Record]:
        self._watch.at = now.index, exchange.name
        try:
            return self._aggregator.tally(exchange, clients, question, now)
        finally:
            self._watch.at = None

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        return self._aggregator.hear(exchange, clients, total, now)


class Scene(NamedTuple):
    """The states before a round."""

    now: Round
    server: Record
    clients: States


@dataclass
class Stage:
    """A recorded run, and what the auditor knows about it."""

    job: Job
    algorithm: Algorithm
    blocks: list[Block]
    transcript: Transcript
    scenes: list[Scene] = field(default_factory=list)  # before each round that was not void
    server: ServerRecord = None  # at the end
    entered: dict[tuple[int, str], dict[int, set[int]]] = field(default_factory=dict)  # rows, by (round, exchange)
    test: Block | None = None
    replayed: bool = True  # whether the audited messages are of the rows of this run
    aggregator: Aggregator | None = None  # that ran the exchanges
    streams: Streams | None = None  # of the masked channel

    @property
    def shards(self) -> dict[int, Any]:
        return {shard.client: shard for block in self.blocks for shard in block.shards}

    @property
    def exchanges(self) -> tuple[ToServer | ToClients, ...]:
        return self.algorithm.exchanges

    def rows(self, round: int, exchange: str, client: int) -> NDArray[np.int64]:
        """Positions of the client's rows that entered an exchange, ascending."""
        positions = self.entered.get((round, exchange), {}).get(client, set())
        return np.array(sorted(positions), dtype=np.int64)

    def features(self, client: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p_i] rows of a client, dense, by position."""
        return dense_rows(self.shards[client], rows)

    def whole(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p] samples with all columns, from all clients that hold parts of them."""
        values = np.zeros((len(rows), self.algorithm.problem.features))
        for shard in self.shards.values():
            _, here, positions = np.intersect1d(rows, shard.rows, return_indices=True)
            order = np.argsort(positions)  # files are read in order
            values[np.ix_(here[order], shard.columns)] = dense_rows(shard, positions[order])
        return values

    def in_clear(self, exchange: Exchange) -> bool:
        """Whether the server can read every client's upload."""
        return self.transcript.channel == "plain" or not exchange.private

    @property
    def cells(self) -> Cells:
        problem = self.algorithm.problem
        assert problem.rows is not None and problem.columns is not None  # set in a run
        return Cells(problem.rows, problem.columns)


def dense_rows(shard: Any, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """[b, p] rows of a shard, dense, in float64."""
    if shard.sparse:
        return np.asarray(shard.take_sparse(rows, np.float64).toarray())
    out = np.empty((len(rows), shard.features))
    shard.take(rows, out)
    return out


def rehearse(job: Job, rounds: int, fit: bool = False, between: bool = False) -> Stage:
    """Record the set-up, `rounds` rounds of a job, and evaluations before and after.

    The result depends on the job's seed alone, except for keys and secret noise.

    Parameters
    ----------
    fit : whether to record fewer rounds if more do not fit into a transcript
    between : whether to evaluate between rounds as well, as in a run

    Raises
    ------
    UsageError, DataError, TooFewClients
        as the run itself would.
    """
    watch, transcript = Watch(), Transcript(rounds, beside=BESIDE)
    ready = prepare(job, Alone(), recorder=transcript)
    aggregator = ready.aggregator
    transcript.channel = aggregator.channel.name
    blocks = list(aggregator.blocks)
    watched = [Block(tuple(Watched(shard, watch) for shard in block.shards), block.dtype) for block in blocks]
    aggregator.local_clients.blocks = Roster.of(watched)
    stage = Stage(job, ready.algorithm, blocks, transcript, test=ready.test, aggregator=aggregator)
    if transcript.channel == "masked":
        from mpifed.audit.streams import streams_of

        stage.streams = streams_of(aggregator.channel)
    _play(stage, ready, _Watching(aggregator, watch), rounds, fit, between)
    stage.entered = {key: dict(clients) for key, clients in watch.entered.items()}
    return stage


def _play(stage: Stage, ready: Ready, aggregator: Any, rounds: int, fit: bool, between: bool) -> None:
    everybody = Round(SETUP, stage.job.seed, np.ones(aggregator.clients, dtype=bool))
    measures: tuple[Measure, ...] = measures_of(stage.job, stage.algorithm) if stage.job.record.evaluate_every else ()
    transcript = stage.transcript
    server, clients = play(stage.algorithm.setup, ready.server, list(ready.clients), everybody, aggregator)
    exchanges = stage.algorithm.exchanges

    def measured() -> None:
        measure(measures, stage.algorithm, server, aggregator.blocks, clients, everybody, aggregator, None)

    begun = transcript.nbytes
    measured()
    beside, before_round, most = transcript.nbytes - begun, transcript.nbytes, 0
    attempt = 0
    while (index := len(stage.scenes)) < min(rounds, stage.job.rounds):
        if attempt == stage.job.participation.attempts:
            raise TooFewClients(
                f"round {index} was void in each of {attempt} attempts, or after a sum had already been decoded, since "
                "too many clients dropped out: the run itself ends here, and there is nothing to audit; raise "
                "[participation] max_dropouts or attempts"
            )
        if fit and index and not attempt:
            most, before_round = max(most, transcript.nbytes - before_round), transcript.nbytes
            if transcript.nbytes + most + beside > transcript.limit_bytes:
                break
        now = next_round(stage.job, aggregator.clients, exchanges, index, attempt, ready.key)
        before = Scene(now, copy.deepcopy(server), copy.deepcopy(clients))
        server, clients = play(exchanges, server, clients, now, aggregator)
        again = next_attempt(stage.job, now, exchanges, attempt)
        attempt = again or 0
        if again is not None:
            continue
        if len(stage.scenes) > 1:
            stage.scenes[-1] = stage.scenes[-1]._replace(clients=[])  # only the last round is replayed
        stage.scenes.append(before)
        if between and measures and len(stage.scenes) % stage.job.record.evaluate_every == 0:
            measured()
    transcript.rounds = len(stage.scenes)
    measured()
    stage.server = server
