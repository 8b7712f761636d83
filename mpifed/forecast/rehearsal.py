"""A rehearsal: the rank with the most to do plays in this process, on random rows in the shapes of its shards.

It tells what a round and a measurement cost before any shard is opened. Messages between ranks are left out.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import CHUNK
from mpifed.comm.accounts import Account
from mpifed.comm.aggregator import Aggregator
from mpifed.comm.line import Line
from mpifed.comm.placement import Placement
from mpifed.comm.transport import Alone
from mpifed.core.block import Block
from mpifed.core.errors import DataError
from mpifed.core.exchange import Exchange, States, ToClients, play
from mpifed.core.record import Record
from mpifed.core.round import SETUP, Round, secret_rng
from mpifed.core.state_check import Specs, check_renewed, check_started
from mpifed.forecast.cost import Cost
from mpifed.forecast.extrapolated import Part, line, narrowed, shortened
from mpifed.forecast.scenery import Stage
from mpifed.forecast.understudy import Understudy
from mpifed.maths.privacy.settings import Privacy
from mpifed.run.config import Job
from mpifed.run.measure import measure
from mpifed.run.participation import first_rounds, most_summed, next_round
from mpifed.run.setup import all_exchanges, measures_of
from mpifed.shards import store

BUDGET_S = 0.02  # for playing the same thing again and again
PATIENCE_S = 0.1  # for playing it at all: what takes longer is played once, and in part
_TOGETHER = 1000  # clients of a block
SEALED_PATIENCE_S = 10.0  # the same with cryptography, which tracing slows tenfold


class _Rehearsal(Aggregator):
    """An aggregator of a single rank that keeps the broadcasts and reports the sizes its clients would have."""

    def __init__(self, stage: Stage, blocks: Sequence[Block]) -> None:
        data = stage.data
        super().__init__(
            Alone(), blocks, data.clients, **stage.job.sum_settings(), cells=stage.cells,
            protection=stage.job.protection(), rehearsed=True, by_blocks=stage.job.by_blocks,
            summed={one.name: most_summed(stage.job, stage.algorithm, one) for one in all_exchanges(stage.algorithm)},
        )  # fmt: skip
        self.questions: dict[str, Record] = {}
        self.specs: Specs | None = None  # of the server's state, until a round has shown that it keeps them
        self._before: dict[str, dict[str, float]] = {}  # what does not count, by exchange
        self._crypto_s: dict[str, list[float]] = defaultdict(list)  # of all ranks, by exchange, each time
        self._hosts, self._lapped_s, self._answered_s, self.opening_s = stage.hosts, 0.0, 0.0, 0.0
        channel: Any = self.channel
        self._understudy: Understudy | None = None
        if channel.name == "encrypted" and not hasattr(channel.scheme, "fuse"):
            channel.scheme = self._understudy = Understudy(channel.scheme)
        self.make_ready(all_exchanges(stage.algorithm))
        self.check_rounds(stage.algorithm.exchanges, first_rounds(stage.job, data.clients, stage.algorithm.exchanges))
        self.agree_on_keys()
        self._keys_owed_s = self.owed_s

    @property
    def owed_s(self) -> float:
        """Seconds of work that was not done."""
        return self._understudy.owed_s if self._understudy else 0.0

    def tell(self, exchange: Exchange, question: Record | None) -> Record:
        """The broadcast."""
        self.questions[exchange.name] = question
        return super().tell(exchange, question)

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, Record]:
        """The sum; and how long it takes to open it, on every rank that may."""
        self._crypto_s[exchange.name].append(0.0)
        found = super().tally(exchange, clients, question, now)
        self.opening_s += time.perf_counter() + self.owed_s - self._answered_s
        everywhere = isinstance(exchange, ToClients) and exchange.hearer is None
        self._crypto_s[exchange.name][-1] += self._lap(self._line(exchange)) * (self._hosts if everywhere else 1)
        return found

    def _answer(self, line: Line, clients: States, question: Record, now: Round) -> States:
        """The uploads; and how long it takes to seal those of all clients present."""
        self._lap(line)
        found = super()._answer(line, clients, question, now)
        here = now.present[self.channel.setting.hosted].sum()
        self._crypto_s[line.exchange.name][-1] += self._lap(line) * float(now.present.sum() / max(here, 1))
        return found

    def _count(self, exchange: Exchange, line: Line, question: Record, now: Round) -> None:
        """The bytes; when all have uploaded, and before the sum is opened."""
        super()._count(exchange, line, question, now)
        self._answered_s = time.perf_counter() + self.owed_s

    def _lap(self, line: Line) -> float:
        """Seconds of cryptography since it was last asked; of one exchange."""
        before, self._lapped_s = self._lapped_s, line.account.crypto_s + self.owed_s
        return self._lapped_s - before

    def costs(self) -> dict[str, dict[str, float]]:
        """What the agreement on keys, and each exchange when it is played, cost on all ranks together."""
        keys = self.channel.keys
        found = {"keys": _cost(keys, 1, [keys.crypto_s + self._keys_owed_s])}
        for name, one in self._lines.items():
            if one.account.played and not one.exchange.off_clock:
                found[name] = _cost(one.account, one.account.played, self._crypto_s[name])
        return found

    def count_anew(self) -> None:
        """Leave out what has been played so far, where it is played again."""
        self._before = {name: line.account.numbers() for name, line in self._lines.items()}

    def accounts_of_one(self) -> dict[str, dict[str, float]]:
        """Of each exchange, the mean of a time; `crypto_s` as in `costs`."""
        found = {}
        for name, cost in self.costs().items():
            if name in self._lines:
                now, before = self._lines[name].account.numbers(), self._before.get(name, {})
                before = before if before.get("played", 0) < now["played"] else {}
                played = now["played"] - before.get("played", 0)
                found[name] = {key: (value - before.get(key, 0)) / played for key, value in now.items()}
                found[name]["crypto_s"] = cost["crypto_s"]
        return found

    def partners(self, present: int) -> int:
        """With how many others each of so many clients shares masks; 0 where nobody does."""
        channel: Any = self.channel
        return min(present - 1, channel.neighbours(present)) if channel.name == "masked" else 0


def _cost(account: Account, played: int, seconds: Sequence[float]) -> dict[str, float]:
    """Of one time; the first is slow."""
    crypto_s = median(seconds[1:] or seconds)
    return {"up_bytes": account.up_bytes // played, "down_bytes": account.down_bytes // played, "crypto_s": crypto_s}


def agreement_s() -> float:
    """Seconds that it takes one of two clients to agree on a secret."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from mpifed.comm.keys import agree, derive

    times = []
    for _ in range(3):
        private, public = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
        start = time.perf_counter()
        derive(agree(private, public), b"")
        times.append(time.perf_counter() - start)
    return min(times)


def load_libraries(privacy: Privacy | None) -> None:
    """Those that a private round loads when it needs them: that takes longer than the round."""
    if privacy is not None and privacy.noise == "secure":
        secret_rng(0)


def _rehearse(
    stage: Stage, blocks: Sequence[Block], now: Round, act: Callable[[Record, States, _Rehearsal], object],
    budget_s: float = BUDGET_S,
) -> Cost:  # fmt: skip
    """What `act` in `now` costs on a rank that serves and hosts `blocks`, from the states before round 0."""
    tracemalloc.start()
    try:
        aggregator, everybody = _Rehearsal(stage, blocks), _everybody(stage)
        server = stage.algorithm.start_server(everybody)
        clients = [stage.algorithm.start_clients(block, everybody) for block in blocks]
        count = len(blocks[0].clients) if blocks else 0
        aggregator.specs = check_started(stage.job.algorithm["name"], server, clients[0] if blocks else None, count)
        with suppress(DataError):  # made-up labels may be all of one class, and the one who counts them on another rank
            server, clients = play(stage.algorithm.setup, server, clients, everybody, aggregator)
        loaded = len(sys.modules)
        times = [_seconds_of(lambda: act(server, clients, aggregator), aggregator)]
        imported = len(sys.modules) > loaded  # libraries that are first needed here: no later time takes as long
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if imported or sum(times[0]) < (PATIENCE_S if aggregator.channel.name == "plain" else SEALED_PATIENCE_S):
        times.clear()  # the first is slow, and tracing slows it further
        aggregator.count_anew()
    while not times or sum(map(sum, times)) < budget_s:
        times.append(_seconds_of(lambda: act(server, clients, aggregator), aggregator))
    hosting, opening = (median(parts) for parts in zip(*times, strict=True))
    partners = aggregator.partners(int(now.present.sum()))
    return Cost(
        hosting, opening, memory, aggregator.costs(), aggregator.accounts_of_one(), aggregator.questions, partners
    )


def _seconds_of(act: Callable[[], object], aggregator: _Rehearsal) -> tuple[float, float]:
    """What takes longer where there are more clients, and the opening of sums."""
    start, opened_s = time.perf_counter() + aggregator.owed_s, aggregator.opening_s
    with np.errstate(all="ignore"):  # a mean over clients who are all on other ranks
        act()
    opening = aggregator.opening_s - opened_s
    return time.perf_counter() + aggregator.owed_s - start - opening, opening


def _everybody(stage: Stage) -> Round:
    return Round(SETUP, stage.job.seed, np.ones(stage.data.clients, dtype=bool))


def typical_round(
    job: Job, data: store.Federation, exchanges: Sequence[Exchange], host: NDArray[np.int64]
) -> tuple[Round, int]:
    """Of the first rounds the one whose busiest rank has the median to do, and that rank; nobody leaves it."""
    indices = range(min(job.rounds, 16))
    rounds = [next_round(job, data.clients, exchanges, index)._replace(leaving=None) for index in indices]
    rounds = rounds[1:] or rounds  # nobody returns in the first
    work = 1 + data.counts / data.counts.mean()  # [N] clients cost something whether they are small or large
    loads = [np.bincount(host, now.present * work) for now in rounds]
    middle = np.argsort([load.max() for load in loads])[len(loads) // 2]
    return rounds[middle], int(loads[middle].argmax())


def rehearse_round(
    stage: Stage, placement: Placement, now: Round, rank: int, budget_s: float = BUDGET_S
) -> Cost:  # fmt: skip
    """What round `now` costs on `rank`; where that takes long, from the costs of less."""
    places = [block for block in placement.of(rank) if now.present[block.start : block.stop].any()]
    return narrowed(stage, lambda narrow: shortened(narrow, lambda part: _some_blocks(part, places, now, budget_s)))


def _some_blocks(stage: Stage, places: Sequence[range], now: Round, budget_s: float) -> Cost:
    """What a round costs, from the costs of a few of its blocks."""
    few = _blocks(stage, places[:2], now, budget_s)  # from the third block on, each adds the same memory
    if len(places) <= 2:
        return few
    count = min(len(places), max(3, int(2 * PATIENCE_S / few.seconds)))
    some = _blocks(stage, places[:count], now, budget_s)
    each = max(some.memory - few.memory, 0.0) / (count - 2)
    return some._replace(hosting=some.hosting * len(places) / count, memory=some.memory + (len(places) - count) * each)


def _blocks(stage: Stage, places: Sequence[range], now: Round, budget_s: float) -> Cost:
    """What a round costs on a rank with these blocks; of large ones, from some of their clients."""

    def played(server: Record, clients: States, aggregator: _Rehearsal) -> None:
        after, renewed = play(stage.algorithm.exchanges, server, clients, now, aggregator)
        if aggregator.specs is not None:
            some = (renewed[0], clients[0], len(aggregator.blocks[0].clients)) if renewed else (None, None, 0)
            check_renewed(stage.job.algorithm["name"], after, aggregator.specs, *some)
            aggregator.specs = None

    def of(most: int) -> Cost:
        blocks = [stage.block(place[:most]) for place in places]
        return _rehearse(stage, blocks, now, played, budget_s)

    largest = max(map(len, places), default=0)
    if largest <= _TOGETHER:
        return of(largest)
    part = Part("clients of a block", largest, lambda most: stage)
    return line(part, _TOGETHER // 2, of(_TOGETHER // 2), _TOGETHER, of(_TOGETHER))


def rehearse_measuring(stage: Stage, rows: int, certify: bool) -> Cost:
    """What a measurement costs on a rank with so many rows that scores the test data as well."""
    return narrowed(stage, lambda part: _measuring(part, rows, certify))


def _measuring(stage: Stage, rows: int, certify: bool) -> Cost:
    whole = stage.data.split == "columns"  # then all rows are gone through together
    block = stage.block([int(stage.data.widths.argmax())], None if whole else CHUNK)
    test = stage.test_block() if stage.data.test_samples else None
    measures = measures_of(stage.job, stage.algorithm)
    cost = _rehearse(
        stage, [block], _everybody(stage),
        lambda server, clients, aggregator: measure(
            measures, stage.algorithm, server, [block], clients, _everybody(stage), aggregator, test, certify,
        ),
    )  # fmt: skip
    played = int(block.counts[0]) + (int(test.counts[0]) if test else 0)
    return cost._replace(hosting=cost.hosting * (rows + stage.data.test_samples) / played)
