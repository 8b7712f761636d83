"""The draws of `[simulated_network]`: which clients are there, and when their answers come.

All follow from the job's seed, and so are alike on any number of ranks, and after every kill.
"""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array, Flags, Integers
from mpifed.core.round import SETUP, Arrivals, Round, uniform
from mpifed.job.schema import Asynchrony, JobSettings, SimulatedNetwork
from mpifed.job.trace import trace_of

_NOBODY = np.zeros(0, bool)


def delays(network: SimulatedNetwork, seed: int, turn: int, clients: Integers) -> Array:
    """[n] seconds until these clients' answers come, who are asked at the `turn`-th time that anybody is."""
    drawn: Array = np.zeros(len(clients))
    for spread, index in ((network.delay_spread, turn), (network.client_spread, SETUP)):
        if spread:
            drawn = drawn + spread * Round(index, seed, _NOBODY).normals("delay", clients, (1,), "float64")[:, 0]
    seconds: Array = (network.delay_s or 0.0) * np.exp(drawn)
    return seconds


def _levels(turn: Round, purpose: str, clients: Integers) -> Array:
    """[n] a number from 0 to 1 for each."""
    return uniform(turn.words_of_clients(purpose, clients).view(np.uint64))


def _level(turn: Round, purpose: str) -> float:
    """A number from 0 to 1."""
    return float(uniform(turn.words(purpose, -1)(1))[0])


def available(network: SimulatedNetwork | None, seed: int, clients: int, index: int) -> Flags:
    """[N] who is there in round `index`; with `[asynchrony]`, in that period of `delay_s`.

    A client's state is a Markov chain: who is away comes back with probability 1 / L, L the mean absence, who is there
    goes with (1 - a) / (a L), a the availability. A number u of each round leads from either state to the same one, if
    it is below 1 / L (there) or at least 1 - (1 - a) / (a L) (away); else nothing changes. So a state is found from the
    last round whose u says it, without those before.
    """
    if network is None or not network.unsteady:
        return np.ones(clients, dtype=bool)
    if network.trace is not None:
        return trace_of(network.trace).there(index, clients)
    there, everybody = np.zeros(clients, dtype=bool), np.arange(clients)
    a, L = network.availability, network.mean_absence or 1 / network.availability
    left = np.ones(clients, dtype=bool)
    for t in range(index, -1, -1):
        u = _levels(Round(t, seed, _NOBODY), "availability", everybody)
        comes, stays = (1 / L, 1 - (1 - a) / (a * L)) if t else (a, a)  # at first by its share of all rounds
        there |= left & (u < comes)
        left &= (u >= comes) & (u < stays)
        if not left.any():
            break
    return there


class Answers(NamedTuple):
    """What comes of a synchronous round."""

    counted: Flags  # [n] whose answers are in its sum
    late: Flags  # [n] whose come after the round has ended
    seconds: float  # that it lasts


def answers(job: JobSettings, now: Round) -> Answers:
    """What comes of a synchronous round, which ends with the first `clients_per_round` answers, or when time is up.

    Of answers of one instant some are first by chance.
    """
    network, clients = job.simulated_network or SimulatedNetwork(), now.ids
    turn = Round(now.index, job.seed, _NOBODY)
    lost = _levels(turn, "loss", clients) < network.loss
    seconds = delays(network, job.seed, now.index, clients)
    first = np.lexsort((turn.words_of_clients("first", clients), seconds, lost))[: job.per_round]
    counted = np.zeros(len(clients), dtype=bool)
    counted[first] = ~lost[first] & (seconds[first] <= (network.deadline_s or np.inf))
    whole = len(first) > 0 and counted[first].all()
    until = seconds[first].max() if whole else network.deadline_s or network.delay_s or 0.0
    return Answers(counted, ~counted & ~lost, float(until))


class Buffers:
    """The rounds of a run with `[asynchrony]`, one after the other.

    Clients who are at work, or wait in the buffer, are not asked; of the others who are there each is as likely as the
    next. All answers of one instant are taken before anybody starts, in the order in which these clients did.
    """

    def __init__(self, table: Asynchrony, network: SimulatedNetwork, seed: int, clients: int) -> None:
        self.table, self.network, self.seed = table, network, seed
        self._unit = network.delay_s or 1.0  # seconds of a period
        self.rounds: list[tuple[Integers, Arrivals]] = []  # (who, ascending; their arrivals)
        self._at_work: list[tuple[float, int, int, int, bool]] = []  # a heap: (when, start, client, model, if lost)
        self._waiting: list[tuple[int, int]] = []  # in the buffer: (client, model)
        self._free = np.ones(clients, dtype=bool)
        self._asked = self._lost = self._late = 0
        self._start(0.0)

    def at(self, index: int) -> tuple[Integers, Arrivals]:
        """Who answers in round `index`, and their arrivals."""
        while len(self.rounds) <= index:
            self._next_instant()
        return self.rounds[index]

    def _start(self, now: float) -> None:
        there = available(self.network, self.seed, len(self._free), self._period(now))
        while len(self._at_work) < self.table.concurrency and len(some := np.flatnonzero(self._free & there)):
            turn = Round(self._asked, self.seed, _NOBODY)
            client = int(some[int(_level(turn, "who starts") * len(some))])
            (delay,) = delays(self.network, self.seed, self._asked, np.array([client]))
            lost = _level(turn, "loss") < self.network.loss
            heappush(self._at_work, (now + float(delay), self._asked, client, len(self.rounds), lost))
            self._free[client] = False
            self._asked += 1
        self._next_start = np.inf  # when others may be there, where more could be at work
        if len(self._at_work) < self.table.concurrency and self.network.unsteady:
            period, trace = self._period(now) + 1.0, self.network.trace
            self._next_start = self._unit * (period if trace is None else trace_of(trace).next_from(period))

    def _period(self, now: float) -> int:
        """How many periods have passed by now, though `//` rounds."""
        period = int(now // self._unit)
        return period + ((period + 1) * self._unit <= now) - (period * self._unit > now)

    def _next_instant(self) -> None:
        now = min(self._next_start, self._at_work[0][0] if self._at_work else np.inf)
        if now == np.inf:
            raise UsageError(
                f"[simulated_network] trace: after round {len(self.rounds)} nobody who could start is there any more; "
                "lower rounds or buffer, or give a longer trace",
                agreed=True,
            )
        while self._at_work and self._at_work[0][0] == now:
            _, _, client, model, lost = heappop(self._at_work)
            late = not lost and len(self.rounds) - model > self.table.max_staleness
            if lost or late:
                self._free[client] = True
                self._lost, self._late = self._lost + lost, self._late + late
                continue
            self._waiting.append((client, model))
            if len(self._waiting) == self.table.buffer:
                who, began = np.array(sorted(self._waiting)).T
                models, places = np.unique(began, return_inverse=True)
                self.rounds.append((who, Arrivals(models, places, now, self._lost, self._late)))
                self._free[who] = True
                self._waiting, self._lost, self._late = [], 0, 0
        self._start(now)


buffers = lru_cache(maxsize=4)(Buffers)  # of this process's jobs: each round goes on from the one before
