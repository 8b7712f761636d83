"""Virtual time: when clients answer, by delays that the job's seed draws, and so alike on any number of ranks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from mpifed.core.record import Array, Integers
from mpifed.core.round import SETUP, Arrivals, Round, uniform
from mpifed.job.schema import Asynchrony, SimulatedNetwork

_NOBODY = np.zeros(0, bool)


def delays(network: SimulatedNetwork, seed: int, turn: int, clients: Integers) -> Array:
    """[n] seconds until these clients' answers come, who are asked at the `turn`-th time that anybody is."""
    drawn: Array = np.zeros(len(clients))
    for spread, index in ((network.delay_spread, turn), (network.client_spread, SETUP)):
        if spread:
            drawn = drawn + spread * Round(index, seed, _NOBODY).normals("delay", clients, (1,), "float64")[:, 0]
    seconds: Array = (network.delay_s or 0.0) * np.exp(drawn)
    return seconds


def _level(turn: Round, purpose: str) -> float:
    """A number from 0 to 1."""
    return float(uniform(turn.words(purpose, -1)(1))[0])


class Buffers:
    """The rounds of a run with `[asynchrony]`, one after the other.

    Clients who are at work, or wait in the buffer, are not asked; of the others each is as likely as the next. All
    answers of one instant are taken before anybody starts, in the order in which these clients did.
    """

    def __init__(self, table: Asynchrony, network: SimulatedNetwork, seed: int, clients: int) -> None:
        self.table, self.network, self.seed, self.clients = table, network, seed, clients
        self.rounds: list[tuple[Integers, Arrivals]] = []  # (who, ascending; their arrivals)
        self._at_work: list[tuple[float, int, int, int, bool]] = []  # a heap: (when, start, client, model, if lost)
        self._waiting: list[tuple[int, int]] = []  # in the buffer: (client, model)
        self._busy: list[int] = []  # ascending
        self._asked = self._lost = self._late = 0
        self._start(0.0)

    def at(self, index: int) -> tuple[Integers, Arrivals]:
        """Who answers in round `index`, and their arrivals."""
        while len(self.rounds) <= index:
            self._next_instant()
        return self.rounds[index]

    def _release(self, client: int) -> None:
        del self._busy[bisect_left(self._busy, client)]

    def _start(self, now: float) -> None:
        while len(self._at_work) < self.table.concurrency and len(self._busy) < self.clients:
            turn = Round(self._asked, self.seed, _NOBODY)
            number = int(_level(turn, "who starts") * (self.clients - len(self._busy)))
            before = bisect_right(range(len(self._busy)), number, key=lambda k: self._busy[k] - k)  # of the busy ones
            client = number + before
            (delay,) = delays(self.network, self.seed, self._asked, np.array([client]))
            lost = _level(turn, "loss") < self.network.loss
            heappush(self._at_work, (now + float(delay), self._asked, client, len(self.rounds), lost))
            self._busy.insert(before, client)
            self._asked += 1

    def _next_instant(self) -> None:
        now = self._at_work[0][0]
        while self._at_work and self._at_work[0][0] == now:
            _, _, client, model, lost = heappop(self._at_work)
            late = not lost and len(self.rounds) - model > self.table.max_staleness
            if lost or late:
                self._release(client)
                self._lost, self._late = self._lost + lost, self._late + late
                continue
            self._waiting.append((client, model))
            if len(self._waiting) == self.table.buffer:
                who, began = np.array(sorted(self._waiting)).T
                models, places = np.unique(began, return_inverse=True)
                self.rounds.append((who, Arrivals(models, places, now, self._lost, self._late)))
                for one in who.tolist():
                    self._release(one)
                self._waiting, self._lost, self._late = [], 0, 0
        self._start(now)


buffers = lru_cache(maxsize=4)(Buffers)  # of this process's jobs: each round goes on from the one before
