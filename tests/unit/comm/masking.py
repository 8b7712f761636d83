"""One masked exchange on several ranks, which are threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpifed.comm.accumulate import make_sum
from mpifed.comm.aggregator import make_channel
from mpifed.comm.channel import Channel, ChannelSetting, Protection
from mpifed.comm.exchange_plan import ExchangePlan
from ranks import Threads, on_ranks

from mpifed.core.exchange import Field, Placed, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.record import map_leaves
from mpifed.core.round import Leaving, Round

BINS = 16
CHANCE = 12  # standard deviations of chi-square that uniform numbers pass but once in 10^10 times


class Heard(NamedTuple):
    """What is left on a rank after an exchange."""

    opened: bool
    reduced: Any  # [m]
    bytes: list[bytes]  # all that this rank was given
    plan: ExchangePlan
    channel: Any


class Case(NamedTuple):
    """An exchange, and what it is played with."""

    hosted: list[list[int]]  # by rank
    answer: Any  # [N, ...]
    fields: Any
    kind: type = ToServer
    protection: Protection = Protection("masked")
    columns: Cells | None = None
    now: Round | None = None
    dtype: str = "float64"
    hearer: int | None = None

    @property
    def clients(self) -> int:
        return sum(map(len, self.hosted))

    @property
    def round(self) -> Round:
        return self.now or Round(3, 1, np.ones(self.clients, dtype=bool))

    def plan(self) -> ExchangePlan:
        more = {} if self.hearer is None else {"hearer": self.hearer}
        exchange = self.kind("up", self.fields, None, None, None, **more)
        columns = self.columns or Cells.all(self.clients)
        return ExchangePlan(exchange, lambda: make_sum(exchange, self.clients, dtype=self.dtype), columns)

    def channel(self, comm: Any) -> Channel:
        mine = np.array(self.hosted[comm.rank], dtype=np.int64)
        columns = self.columns or Cells.all(self.clients)
        return make_channel(ChannelSetting(comm, mine, self.clients, columns, self.protection))

    def of(self, who: Any) -> Any:
        """The answers of some."""

        def take(leaf: Any) -> Any:
            if isinstance(leaf, Placed):
                return Placed([leaf.values[i] for i in who], [leaf.at[i] for i in who], leaf.size, leaf.axis)
            return leaf[who]

        return map_leaves(take, self.answer)


def play(case: Case, meddle: Callable[[Channel, ExchangePlan], None] | None = None, turns: int = 1) -> list[Heard]:
    """What each rank has in the end; `meddle` is called after answers are in."""

    def on(comm: Threads) -> Heard:
        channel, plan, now = case.channel(comm), case.plan(), case.round
        channel.prepare([plan])
        for _ in range(turns):
            channel.begin(plan, now)
            here = channel.setting.hosted[now.present[channel.setting.hosted]]
            for some in (here[:1], here[1:]):
                if len(some):
                    channel.add(plan, case.of(some), some, now)
            plan.sum.message[-1] = comm.rank
            if meddle is not None:
                meddle(channel, plan)
            opened = channel.collect(plan, now)
        return Heard(opened, plan.reduced.copy(), comm.heard, plan, channel)

    return on_ranks(len(case.hosted), on)


def plain(case: Case) -> Any:
    """[m] the sum, in the clear."""
    alike = case._replace(protection=Protection(), kind=ToServer, hearer=None)
    return play(alike)[0].reduced


def check_alike(case: Case, turns: int = 1) -> list[Heard]:
    """The same numbers as in the clear for those who may hear them, and nobody else may."""
    expected, found = plain(case), play(case, turns=turns)
    for rank, heard in enumerate(found):
        staying = [client for client in case.hosted[rank] if case.round.staying[client]]
        may = rank == 0 if case.kind is ToServer else bool(staying)
        if case.hearer is not None:
            may = case.hearer in staying
        assert heard.opened == may
        if may:
            np.testing.assert_array_equal(heard.reduced[:-1], expected[:-1])
    assert found[0].reduced[-1] == sum(range(len(case.hosted)))
    return found


def errors_of(case: Case, meddle: Callable[[Channel, ExchangePlan], None] | None = None) -> list[Exception]:
    """What `collect` raises on each rank: on all of them."""
    found: list[Exception] = []

    def catching(channel: Any, plan: ExchangePlan) -> None:
        if meddle is not None:
            meddle(channel, plan)
        collect = channel.collect

        def collecting(plan: ExchangePlan, now: Round) -> bool:
            try:
                return bool(collect(plan, now))
            except Exception as error:
                found.append(error)
                return False

        channel.collect = collecting

    ranks = play(case, catching)
    assert len(found) == len(ranks), found
    return found


def leaving(clients: int, most: int, before: list[int], after: list[int] | None = None, asked: Any = None) -> Round:
    """A round in which some leave before they answer its exchange, and some after that."""
    halves = np.full(clients, 2)
    halves[before] = 0
    halves[after or []] = 1
    who = np.ones(clients, dtype=bool) if asked is None else asked
    return Round(3, 1, who, leaving=Leaving(who, halves, most)).at(0)


def chi_square(integers: Any) -> float:
    """How far the integers' top and bottom bits are from uniform, in standard deviations of chi-square."""
    unsigned = integers.view(f"u{integers.itemsize}")
    worst = 0.0
    for shift in (0, 8 * integers.itemsize - 4):
        digits = (unsigned >> unsigned.dtype.type(shift)) % unsigned.dtype.type(BINS)
        counts = np.bincount(digits.astype(int), minlength=BINS)
        expected = len(integers) / BINS
        chi = float(((counts - expected) ** 2 / expected).sum())
        worst = max(worst, (chi - (BINS - 1)) / np.sqrt(2 * (BINS - 1)))
    return worst


def values(clients: int, size: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-100, 100, (clients, size))


def vector(clients: int = 6, size: int = 50, hosted: list[list[int]] | None = None, **more: Any) -> Case:
    """Everybody answers with a vector."""
    ranks = hosted or [[], list(range(clients // 2)), list(range(clients // 2, clients))]
    return Case(ranks, values(clients, size), Field((size,)), **more)


class Answer(NamedTuple):
    v: Any  # [9]
    count: Any  # []
    m: Any  # [2, 2]


MEMBERS = slice(0, 3), slice(2, 5), np.array([0, 3]), slice(5, 6)
COLUMNS = Cells.of_columns(Holdings(6, np.array([0, 1, 2, 0, 3]), MEMBERS))


def placed(kind: Any, **more: Any) -> Case:
    """Columns of which some clients hold the same, one client holds its own, and one sends what it alone knows."""
    rng, members = np.random.default_rng(2), [COLUMNS.columns.of(client) for client in range(5)]
    parts = [rng.uniform(-9, 9, (len(np.arange(6)[at]), 2)) for at in members]
    answer = Answer(rng.uniform(-9, 9, (5, 9)), rng.uniform(-9, 9, 5), Placed(parts, members, 6))
    fields = Answer(Field((9,)), Field(sender=1), Field((6, 2), columns=0))
    protection = Protection("masked", allow=("up.count", "up.m"), max_dropouts=more.pop("most", 0))
    return Case([[], [0, 4], [1, 2, 3]], answer, fields, kind, protection, COLUMNS, **more)
