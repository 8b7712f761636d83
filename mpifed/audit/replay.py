"""A short recorded run with all parties in this process."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.recording import Play, RecordedRanks, Transcript, dense_rows
from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import play
from mpifed.core.algorithm import Algorithm
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Problem, ServerRecord
from mpifed.core.record import Record
from mpifed.core.round import Round
from mpifed.data.block import ClientData
from mpifed.job.job import Job
from mpifed.job.participation import next_attempt, next_round
from mpifed.run.evaluation import measure
from mpifed.run.setup import measures_of, prepare

LIMIT_BYTES = 2**28  # of messages, from which on no further round is recorded unless it is asked for


class RoundStart(NamedTuple):
    """The server's state before a round."""

    now: Round
    server: Record


@dataclass
class Replay:
    """A recorded run, and what the auditor knows about it."""

    job: Job
    algorithm: Algorithm
    channel: str  # that aggregated the uploads
    shards: dict[int, ClientData]
    transcript: Transcript
    rounds: int  # that were not void
    last: RoundStart  # of these
    server: ServerRecord  # at the end

    @property
    def problem(self) -> Problem:
        return self.algorithm.problem

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return self.algorithm.exchanges

    def plays(self, exchange: str) -> list[Play]:
        """All occurrences of an exchange, in order."""
        return [play for play in self.transcript.plays if play.exchange.name == exchange]

    def rows(self, round: int, exchange: str, client: int) -> NDArray[np.int64]:
        """Positions of the client's rows that entered an exchange, ascending."""
        entered = [play.rows.get(client, set()) for play in self.plays(exchange) if play.round == round]
        return np.array(sorted(set().union(*entered)), dtype=np.int64)

    def features(self, client: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p_i] rows of a client, dense, by position."""
        return dense_rows(self.shards[client], rows)

    def full_rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, p] samples with all columns, from all clients that hold parts of them."""
        values = np.zeros((len(rows), self.problem.features))
        for shard in self.shards.values():
            _, here, positions = np.intersect1d(rows, shard.rows, return_indices=True)
            order = np.argsort(positions)  # files are read in order
            values[np.ix_(here[order], shard.columns)] = dense_rows(shard, positions[order])
        return values

    def in_clear(self, exchange: Exchange) -> bool:
        """Whether the server can read every client's upload."""
        return self.channel == "plain" or exchange.clear


def replay_job(job: Job, rounds: int, limit: float = math.inf) -> Replay:
    """Record the set-up, `rounds` rounds of a job, and evaluations before and after.

    The result depends on the job's seed alone, except for keys and secret noise. `limit`: bytes of messages from which
    on no further round is recorded. Raises UsageError, DataError or TooFewClients as the run itself would.
    """
    transcript = Transcript()
    ready = prepare(job, Solo(), make_ranks=partial(RecordedRanks, transcript))
    ranks, algorithm = ready.ranks, ready.algorithm
    measures = measures_of(job, algorithm) if job.record.evaluate_every else ()
    server, clients = play(algorithm.setup, ready.server, ready.clients, ready.everybody, ranks)

    def measured() -> None:
        measure(measures, algorithm, server, ranks.blocks, clients, ready.everybody, ranks)

    measured()
    index = attempt = 0
    last = RoundStart(ready.everybody, server)
    while index < min(rounds, job.rounds):
        if attempt == job.participation.attempts:
            raise TooFewClients(
                f"round {index} was void in each of {attempt} attempts, or after a sum had already been decoded, since "
                "too many clients dropped out: the run itself ends here, and there is nothing to audit; raise "
                "[participation] max_dropouts or attempts"
            )
        if index and transcript.nbytes > limit:
            break
        now = next_round(job, ranks.clients, algorithm.exchanges, index, attempt, ready.key)
        before = RoundStart(now, copy.deepcopy(server))
        server, clients = play(algorithm.exchanges, server, clients, now, ranks)
        again = next_attempt(job, now, algorithm.exchanges, attempt)
        attempt = again or 0
        if again is None:
            index, last = index + 1, before
    measured()
    shards = {shard.client: shard for block in ranks.blocks for shard in block.shards}
    channel = ranks.channel.name
    return Replay(job, algorithm, channel, shards, transcript, index, last, server)
