"""The bytes of each exchange, from the fields that travel: a round without clients, in which every sum is zero.

The shapes of what the server broadcasts follow from its state, and never from the values of a sum; uploads have the
shapes that an exchange declares. So the channel counts what a run counts, and nothing is computed, masked or encrypted
but the self-test of an encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mpifed.comm.aggregator import Aggregator, make_channel
from mpifed.comm.transport import Alone
from mpifed.core.errors import MpifedError
from mpifed.core.exchange import Exchange, Measure, ServerRecord, States, play
from mpifed.core.record import Record
from mpifed.core.round import SETUP, Round
from mpifed.core.state_check import check_started
from mpifed.job.job import Job
from mpifed.job.participation import first_rounds, next_round
from mpifed.run.setup import aggregation_settings, all_exchanges

Bytes = dict[str, int]  # up_bytes and down_bytes


class Counting(Aggregator):
    """An aggregator of one rank that keeps each broadcast, and gives a sum of zeros."""

    def __init__(self, job: Job, algorithm: Any) -> None:  # a dataclass, of any algorithm
        """Raises UsageError as a run would before its first round."""
        clients, exchanges = algorithm.problem.clients, algorithm.exchanges
        super().__init__(Alone(), [], clients, **aggregation_settings(job, algorithm))
        self.channel = make_channel(self.channel.setting._replace(hosted=np.arange(clients)))
        self.broadcasts: dict[str, Record] = {}
        self.make_ready(all_exchanges(algorithm))
        self.check_rounds(exchanges, first_rounds(job, clients, exchanges))
        self.agree_on_keys()
        everybody = Round(SETUP, job.seed, np.ones(clients, dtype=bool))
        self.now = _typical_round(job, clients, exchanges)
        server = algorithm.start_server(everybody)
        check_started(job.algorithm["name"], server, None, 0)
        server, _ = play(algorithm.setup, server, [], everybody, self)
        play(exchanges, server, [], self.now, self)
        self._server, self._everybody = server, everybody

    def measure(self, measures: Sequence[Measure]) -> None:
        """Keep the broadcasts of these too."""
        for measurement in measures:
            play(measurement.exchanges, measurement.start(self._server), [], self._everybody, self)

    def serve(self, exchange: Exchange, method: Callable[..., Any], *arguments: Any) -> Any:  # of any exchange
        """The server's part; its state as it was where a method refuses a sum of zeros."""
        with suppress(MpifedError, ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
            return super().serve(exchange, method, *arguments)
        return arguments[0]

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, ServerRecord]:
        """A sum of zeros, once its bytes are counted."""
        plan = self._plan(exchange)
        self.broadcasts[exchange.name] = question
        if plan.stale is not None:
            self._channel(exchange).begin(plan, now)
        self._count(exchange, plan, question, now)
        return clients, plan.sum.total(np.zeros_like(plan.sum.message))

    def hear(self, exchange: Any, clients: States, total: Record, now: Round) -> States:  # of ToClients
        return clients

    def bytes_of(self, name: str) -> Bytes:
        """The bytes of an exchange, once, over all clients; of "keys", those of the key agreement."""
        account = self.channel.keys if name == "keys" else self._plans[name].account
        times = 1 if name == "keys" else max(1, account.played)
        return {"up_bytes": account.up_bytes // times, "down_bytes": account.down_bytes // times}

    @property
    def partners(self) -> int:
        """The number of clients with whom each client of the round shares masks; 0 without masks."""
        channel: Any = self.channel  # of the class that its name says
        present = int(self.now.present.sum())
        return min(present - 1, channel.neighbours(present)) if channel.name == "masked" else 0


def _typical_round(job: Job, clients: int, exchanges: Sequence[Exchange]) -> Round:
    """A round without drop-outs: after the first, in which no client returns, one in which some do."""
    indices = range(1, min(job.rounds, 16)) or range(1)
    rounds = [next_round(job, clients, exchanges, index)._replace(leaving=None) for index in indices]
    return next((now for now in rounds if now.returning is not None and now.returning.any()), rounds[0])
