"""Ranks as threads of one process; masked exchanges on them, and what each rank hears, and has in the end."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.comm.channels import make_channel
from mpifed.comm.channels.base import Channel, ChannelSetting, Kept, Plan, Protection
from mpifed.comm.sums import Message
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings, Placed
from mpifed.core.record import map_leaves
from mpifed.core.round import Leaving, Round

CHANCE = 12  # standard deviations of chi-square that uniform numbers pass but once in 10^10 times


class Threads:
    """The ranks as one thread has them; it keeps all that this rank was given, as bytes, in `heard`."""

    def __init__(self, rank: int, slots: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.nodes, self._slots, self._barrier = rank, len(slots), len(slots), slots, barrier
        self.heard: list[bytes] = []

    def _meet(self, value: Any) -> list[Any]:
        self._slots[self.rank] = value
        self._barrier.wait(300)
        found = list(self._slots)
        self._barrier.wait(300)
        return found

    def _hear(self, value: Any) -> Any:
        self.heard.append(value.tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value))
        return value

    def Bcast(self, array: Any) -> None:
        array[...] = self._hear(self._meet(array.copy())[0])

    def Reduce(self, array: Any) -> None:
        found = self._meet(array.copy())
        if self.rank == 0:
            array[...] = self._hear(np.sum(found, axis=0, dtype=array.dtype))

    def Allreduce(self, array: Any) -> None:
        array[...] = self._hear(np.sum(self._meet(array.copy()), axis=0, dtype=array.dtype))

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self._hear(self._meet(value)[root])

    def gather(self, value: Any) -> list[Any] | None:
        found = self._meet(value)
        return [self._hear(one) for one in found] if self.rank == 0 else None

    def allgather(self, value: Any) -> list[Any]:
        return [self._hear(one) for one in self._meet(value)]

    def reduce(self, value: Any, op: Callable[[Any, Any], Any]) -> Any:
        found = self.gather(value)
        return functools.reduce(op, found) if found is not None else None

    def raise_on_all_ranks(self, error: BaseException | None = None) -> None:
        for one in self._meet(error):
            if one is not None:
                raise one


def on_ranks(size: int, play: Callable[[Threads], Any]) -> list[Any]:
    """What `play` gives on each rank; the error of a rank that did not just wait for another."""
    slots, barrier = [None] * size, threading.Barrier(size)

    def run(rank: int) -> Any:
        try:
            return play(Threads(rank, slots, barrier))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        ended = [pool.submit(run, rank) for rank in range(size)]
    failed = [each for each in ended if not isinstance(each.exception(), threading.BrokenBarrierError | None)]
    return [each.result() for each in failed or ended]


class Shard(NamedTuple):
    client: int
    samples: int = 1
    y: Any = np.zeros(1)
    joint: None = None


class Heard(NamedTuple):
    opened: bool
    reduced: Any  # [m]
    plan: Plan
    channel: Any


class Case(NamedTuple):
    """An exchange, and what it is played with."""

    hosted: list[list[int]]  # by rank
    answer: Any  # [N, ...]
    fields: Any
    to_clients: bool = False
    protection: Protection = Protection("masked")
    now: Round | None = None
    keeps: bool = False

    @property
    def clients(self) -> int:
        return sum(map(len, self.hosted))

    @property
    def round(self) -> Round:
        return self.now or Round(3, 1, np.ones(self.clients, dtype=bool))

    def plan(self, channel: Channel) -> Plan:
        def nothing(*_: Any) -> Any: ...

        hears = {"hear": nothing} if self.to_clients else {"absorb": nothing}
        exchange = Exchange("up", self.fields, nothing, nothing, **hears)  # type: ignore[arg-type]
        kept = Kept(self.clients) if self.keeps else None
        return Plan(Message(exchange, self.clients), channel, kept)

    def channel(self, comm: Any) -> Channel:
        mine = np.sort(np.array(self.hosted[comm.rank], dtype=np.int64))
        return make_channel(ChannelSetting(comm, mine, self.clients, self.protection))

    def of(self, who: Any) -> Any:

        def take(leaf: Any) -> Any:
            if isinstance(leaf, Placed):
                return Placed([leaf.values[i] for i in who], [leaf.at[i] for i in who], leaf.size, leaf.axis)
            return leaf[who]

        return map_leaves(take, self.answer)


def play(case: Case, meddle: Any = None, turns: int = 1, said: str = "") -> list[Heard]:
    """What each rank has in the end; `meddle` is called after answers are in. If this is `said`, all refuse the sum."""

    def on(comm: Threads) -> Heard:
        channel, now = case.channel(comm), case.round
        plan = case.plan(channel)
        channel.prepare([plan])
        for _ in range(turns):
            channel.begin(plan, now)
            here = channel.setting.hosted[now.present[channel.setting.hosted]]
            for some in (here[:1], here[1:]):
                if len(some):
                    add = channel.add_one_by_one if case.keeps else channel.add
                    add(plan, case.of(some), some, now)
            plan.sum.numbers[-1] = comm.rank
            if meddle is not None:
                meddle(channel, plan)
            opened = False
            with pytest.raises(TooFewClients, match=said) if said else nullcontext():
                opened = channel.collect(plan, now)
        return Heard(opened, plan.reduced.copy(), plan, channel)

    return on_ranks(len(case.hosted), on)


def check_alike(case: Case, turns: int = 1) -> list[Heard]:
    """The same numbers as in the clear for those who may hear them, and nobody else may."""
    expected = play(case._replace(protection=Protection(), to_clients=False))[0].reduced
    found = play(case, turns=turns)
    for rank, heard in enumerate(found):
        assert heard.opened == (case.round.staying[case.hosted[rank]].any() if case.to_clients else rank == 0)
        if heard.opened:
            np.testing.assert_array_equal(heard.reduced[:-1], expected[:-1])
    assert found[0].reduced[-1] == sum(range(len(case.hosted)))
    return found


def leaving(most: int, before: list[int], after: list[int] | None = None) -> Round:
    """A round of six clients in which some leave before they answer its exchange, and some after that."""
    halves, who = np.full(6, 2), np.ones(6, dtype=bool)
    halves[before], halves[after or []] = 0, 1
    return Round(3, 1, who, leaving=Leaving(who, halves, most)).at(0)


def chi_square(integers: Any) -> float:
    """How far the integers' top and bottom bits are from uniform, in standard deviations of chi-square."""
    unsigned, worst = integers.view(f"u{integers.itemsize}"), 0.0
    for shift in (0, 8 * integers.itemsize - 4):
        counts = np.bincount(((unsigned >> unsigned.dtype.type(shift)) % unsigned.dtype.type(16)).astype(int))
        expected = len(integers) / 16
        worst = max(worst, (float(((counts - expected) ** 2 / expected).sum()) - 15) / np.sqrt(30))
    return worst


def vector(clients: int = 6, size: int = 50, hosted: list[list[int]] | None = None, **more: Any) -> Case:
    """Everybody answers with a vector."""
    ranks = hosted or [[], list(range(clients // 2)), list(range(clients // 2, clients))]
    values = np.random.default_rng(0).uniform(-100, 100, (clients, size))
    return Case(ranks, values, Field((size,)), **more)


class Answer(NamedTuple):
    v: Any  # [9]
    count: Any  # []
    m: Any  # [6, 2]


COLUMNS = Holdings(6, np.array([0, 1, 2, 0, 3]), (slice(0, 3), slice(2, 5), np.array([0, 3]), slice(5, 6)))


def placed(to_clients: bool, protection: Protection) -> Case:
    """Columns of which some clients hold the same, one client holds its own, and one sends what it alone knows."""
    rng, members = np.random.default_rng(2), [COLUMNS.of(client) for client in range(5)]
    parts = [rng.uniform(-9, 9, (len(np.arange(6)[at]), 2)) for at in members]
    answer = Answer(rng.uniform(-9, 9, (5, 9)), rng.uniform(-9, 9, 5), Placed(parts, members, 6))
    fields = Answer(Field((9,)), Field(sender=1), Field((6, 2), held=COLUMNS))
    protection = protection._replace(allow=("up.count", "up.m"))
    return Case([[], [0, 4], [1, 2, 3]], answer, fields, to_clients, protection)
