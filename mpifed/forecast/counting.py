"""The bytes of each exchange, from the fields that travel: a round without clients, in which every sum is zero.

The shapes of what the server broadcasts follow from its state, and never from the values of a sum; uploads have the
shapes that an exchange declares. So the channel counts what a run counts, and nothing is computed, masked or encrypted
but the self-test of an encryption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

import numpy as np

from mpifed.algorithms.measure import Measure
from mpifed.comm.channels import make_channel
from mpifed.comm.channels.base import Plan
from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.core.errors import MpifedError
from mpifed.core.exchange import Exchange, ServerRecord, States
from mpifed.core.record import Record, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.job.job import Job
from mpifed.job.participation import arithmetic, first_rounds, next_round
from mpifed.run.setup import all_exchanges
from mpifed.run.state_check import check_state


class Counting(Ranks):
    """A single rank that keeps each broadcast, and gives a sum of zeros."""

    def __init__(self, job: Job, algorithm: Any) -> None:  # a dataclass, of any algorithm
        """Raises UsageError as a run would before its first round."""
        clients, exchanges = algorithm.problem.clients, algorithm.exchanges
        how = arithmetic(job, algorithm)
        super().__init__(Solo(), [], clients, how, job.protection(), columns=algorithm.problem.columns)
        self.channel = make_channel(self.channel.setting._replace(hosted=np.arange(clients)))
        self.broadcasts: dict[str, Record] = {}
        self.make_ready(all_exchanges(algorithm))
        self.check_rounds(exchanges, first_rounds(job, clients, exchanges))
        self.agree_on_keys()
        self.everybody = Round(SETUP, job.seed, np.ones(clients, dtype=bool))
        self.now = _typical_round(job, clients, exchanges)
        server = algorithm.start_server(self.everybody)
        check_state(job.algorithm["name"], "start_server()", server)
        self.server = self._after(exchanges, self._after(algorithm.setup, server, self.everybody), self.now)

    def measure(self, measures: Sequence[Measure]) -> None:
        """Keep the broadcasts of these too."""
        for measure in measures:
            self._after(measure.exchanges, measure.start(self.server), self.everybody, measured=True)

    def _after(self, exchanges: Sequence[Exchange], server: Record, now: Round, measured: bool = False) -> ServerRecord:
        nobody = ClientStates(self.blocks.first, lambda _: ())
        return play(exchanges, server, nobody, now, self, measured=measured)[0]

    def serve(self, plan: Plan, method: Callable[..., Record], *arguments: Record) -> Record:
        """The server's part; its state as it was where a method refuses a sum of zeros."""
        with suppress(MpifedError, ArithmeticError, np.linalg.LinAlgError), np.errstate(all="ignore"):
            served: Record = super().serve(plan, method, *arguments)
            return served
        return arguments[0]

    def sum(self, plan: Plan, states: States, question: Record, now: Round, measured: bool) -> ServerRecord:
        """A sum of zeros, once its bytes are counted."""
        one = question if now.arrivals is None else map_leaves(itemgetter(0), question)  # which each client is sent
        self.broadcasts[plan.exchange.name] = one
        if plan.kept is not None:
            plan.channel.begin(plan, now)
        if not measured:
            self._count(plan, question, now)
        return plan.message.decode(np.zeros(plan.message.size, np.int64))

    def hear(self, plan: Plan, states: States, total: Record, now: Round, measured: bool) -> None:
        """There are no clients."""

    def bytes_of(self, name: str) -> dict[str, int]:
        """`up_bytes` and `down_bytes` of an exchange, once, or of "keys"; 0 of what is measured."""
        costs = self.channel.keys.costs if name == "keys" else self._plans[name].account.costs
        return {key: int(costs[key] // max(1, costs["played"])) for key in ("up_bytes", "down_bytes")}

    def of_rounds(self, job: Job, exchanges: Sequence[Exchange]) -> tuple[dict[str, int], int]:
        """`up_bytes` and `down_bytes` of all rounds of a job, and how many of them pass, for want of answers."""
        totals, passing, one = Counter[str](), 0, np.zeros(1, np.int64)
        if not job.unsteady and self.now.arrivals is None:
            for exchange in exchanges:
                totals.update({key: job.rounds * value for key, value in self.bytes_of(exchange.name).items()})
            return dict(totals), 0
        for index in range(job.rounds):
            now = next_round(job, self.clients, exchanges, index)
            passing += now.void
            if now.arrivals is not None:  # a broadcast is of one model here
                now = now._replace(arrivals=now.arrivals._replace(models=one))
            for number, exchange in enumerate(exchanges[:1] if now.void else exchanges):
                plan, here = self._plans[exchange.name], exchange.at(now, number)
                spent = plan.channel.spent(plan, self.broadcasts[exchange.name], self._columns, here)
                totals.update(up_bytes=spent.up_bytes, down_bytes=spent.down_bytes)
        return dict(totals), passing

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
    if job.unsteady:
        rounds.sort(key=lambda now: -len(now.ids))
    if (arrivals := rounds[0].arrivals) is not None:
        return rounds[0]._replace(arrivals=arrivals._replace(lost=0, late=0))
    return next((now for now in rounds if now.rejoining is not None and now.rejoining.any()), rounds[0])
