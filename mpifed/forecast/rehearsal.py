"""Rehearsals: this process runs a round as the busiest rank would, on random rows in the shapes of its shards.

They measure the cost of a round and of an evaluation before any shard is opened, without messages between ranks.
"""

from __future__ import annotations

import itertools
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
from mpifed.comm.aggregator import Aggregator
from mpifed.comm.cost_accounts import CostAccount
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.placement import Placement
from mpifed.comm.transport import Alone
from mpifed.core.block import Block
from mpifed.core.errors import DataError
from mpifed.core.exchange import Exchange, ServerRecord, States, ToClients, play
from mpifed.core.privacy import Privacy
from mpifed.core.record import Record
from mpifed.core.round import SETUP, Round, secret_rng
from mpifed.core.state_check import Specs, check_renewed, check_started
from mpifed.forecast.extrapolated import MeasuredCost, Reducible, extrapolate, narrowed, shortened
from mpifed.forecast.sampled_encryption import SampledEncryption
from mpifed.forecast.synthetic_shards import Scenario
from mpifed.job.job import Job
from mpifed.job.participation import first_rounds, next_round
from mpifed.run.evaluation import measure
from mpifed.run.setup import aggregation_settings, all_exchanges, measures_of
from mpifed.shards import store

BUDGET_S = 0.02  # for repetitions of a round
PATIENCE_S = 0.1  # a round that takes longer is run only once, and in part
_TOGETHER = 1000  # clients of a block; larger blocks are extrapolated
SEALED_PATIENCE_S = 10.0  # PATIENCE_S with cryptography, which tracing slows down tenfold


class _Rehearsal(Aggregator):
    """An aggregator of a single rank that keeps the broadcasts, and scales cryptography to all clients of a round."""

    def __init__(self, scenario: Scenario, blocks: Sequence[Block]) -> None:
        data, settings = scenario.data, aggregation_settings(scenario.job, scenario.algorithm)
        super().__init__(Alone(), blocks, data.clients, rehearsed=True, **settings)
        self.broadcasts: dict[str, Record] = {}
        self.specs: Specs | None = None  # of the server's state, until a round has shown that it keeps them
        self._before: dict[str, dict[str, float]] = {}  # counters to subtract, by exchange
        self._crypto_s: dict[str, list[float]] = defaultdict(list)  # summed over ranks, by exchange, each time
        self._hosts, self._counted_s, self._answered_s, self.opening_s = scenario.hosts, 0.0, 0.0, 0.0
        channel: Any = self.channel  # of the class that its name says
        self._sampled: SampledEncryption | None = None
        if channel.name == "encrypted":
            channel.scheme = self._sampled = SampledEncryption(channel.scheme)
        self.make_ready(all_exchanges(scenario.algorithm))
        self.check_rounds(
            scenario.algorithm.exchanges, first_rounds(scenario.job, data.clients, scenario.algorithm.exchanges)
        )
        self.agree_on_keys()
        self._keys_skipped_s = self.skipped_s

    @property
    def skipped_s(self) -> float:
        """Seconds that skipped cryptography would have taken."""
        return self._sampled.skipped_s if self._sampled else 0.0

    def tell(self, exchange: Exchange, question: ServerRecord) -> ServerRecord:
        """Keep the broadcast."""
        self.broadcasts[exchange.name] = question
        return super().tell(exchange, question)

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, Record]:
        """The sum; counts the time to open it on all ranks that do."""
        self._crypto_s[exchange.name].append(0.0)
        result = super().tally(exchange, clients, question, now)
        self.opening_s += time.perf_counter() + self.skipped_s - self._answered_s
        everywhere = isinstance(exchange, ToClients) and exchange.hearer is None
        self._crypto_s[exchange.name][-1] += self._new_crypto_s(self._plan(exchange)) * (
            self._hosts if everywhere else 1
        )
        return result

    def _answer(self, line: ExchangePlan, clients: States, question: Record, now: Round) -> States:
        """The uploads; counts the time to seal those of all participating clients."""
        self._new_crypto_s(line)
        result = super()._answer(line, clients, question, now)
        here = now.present[self.channel.setting.hosted].sum()
        self._crypto_s[line.exchange.name][-1] += self._new_crypto_s(line) * float(now.present.sum() / max(here, 1))
        return result

    def _count(self, exchange: Exchange, line: ExchangePlan, question: Record, now: Round) -> None:
        """Count the bytes, and note the time: all have uploaded, and the sum is not yet opened."""
        super()._count(exchange, line, question, now)
        self._answered_s = time.perf_counter() + self.skipped_s

    def _new_crypto_s(self, line: ExchangePlan) -> float:
        """Seconds of cryptography in one exchange since the last call."""
        before, self._counted_s = self._counted_s, line.account.crypto_s + self.skipped_s
        return self._counted_s - before

    def costs(self) -> dict[str, dict[str, float]]:
        """The cost of the key agreement and of each exchange, once, over all ranks."""
        keys = self.channel.keys
        costs = {"keys": _cost(keys, 1, [keys.crypto_s + self._keys_skipped_s])}
        for name, entry in self._plans.items():
            if entry.account.played and not entry.exchange.off_clock:
                costs[name] = _cost(entry.account, entry.account.played, self._crypto_s[name])
        return costs

    def count_anew(self) -> None:
        """Leave out what was counted so far, for exchanges that are repeated."""
        self._before = {name: line.account.numbers() for name, line in self._plans.items()}

    def accounts_of_one(self) -> dict[str, dict[str, float]]:
        """The mean counters of each exchange; `crypto_s` as in `costs`."""
        accounts = {}
        for name, cost in self.costs().items():
            if name in self._plans:
                now, before = self._plans[name].account.numbers(), self._before.get(name, {})
                before = before if before.get("played", 0) < now["played"] else {}
                played = now["played"] - before.get("played", 0)
                accounts[name] = {key: (value - before.get(key, 0)) / played for key, value in now.items()}
                accounts[name]["crypto_s"] = cost["crypto_s"]
        return accounts

    def partners(self, present: int) -> int:
        """The number of clients with whom each of `present` clients shares masks; 0 without masks."""
        channel: Any = self.channel  # of the class that its name says
        return min(present - 1, channel.neighbours(present)) if channel.name == "masked" else 0


def _cost(account: CostAccount, played: int, seconds: Sequence[float]) -> dict[str, float]:
    """The cost of an exchange, once."""
    crypto_s = median(seconds[1:] or seconds)  # the first one is slow
    return {"up_bytes": account.up_bytes // played, "down_bytes": account.down_bytes // played, "crypto_s": crypto_s}


def agreement_s() -> float:
    """Seconds that a key agreement takes one of its two clients."""
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
    """Load the libraries of a private round, which would take longer than the round itself."""
    if privacy is not None and privacy.noise == "secure":
        secret_rng(0)


def _rehearse(
    scenario: Scenario, blocks: Sequence[Block], now: Round, act: Callable[[Record, States, _Rehearsal], object],
    budget_s: float = BUDGET_S,
) -> MeasuredCost:  # fmt: skip
    """The cost of `act` in round `now` on a rank that serves and hosts `blocks`, from the states before round 0."""
    tracemalloc.start()
    try:
        aggregator, everybody = _Rehearsal(scenario, blocks), _everybody(scenario)
        server = scenario.algorithm.start_server(everybody)
        clients = [scenario.algorithm.start_clients(block, everybody) for block in blocks]
        count = len(blocks[0].clients) if blocks else 0
        aggregator.specs = check_started(scenario.job.algorithm["name"], server, clients[0] if blocks else None, count)
        with suppress(DataError):  # random labels may all be of one class, or the client that counts them elsewhere
            server, clients = play(scenario.algorithm.setup, server, clients, everybody, aggregator)
        loaded = len(sys.modules)
        times = [_seconds_of(lambda: act(server, clients, aggregator), aggregator)]
        imported = len(sys.modules) > loaded  # libraries that are first needed here: no later run takes as long
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if imported or sum(times[0][:2]) < (PATIENCE_S if aggregator.channel.name == "plain" else SEALED_PATIENCE_S):
        times.clear()  # the first run is slow, and tracing slows it down further
        aggregator.count_anew()
    while not times or sum(hosting + opening for hosting, opening, _ in times) < budget_s:
        times.append(_seconds_of(lambda: act(server, clients, aggregator), aggregator))
    hosting, opening, processor = (median(parts) for parts in zip(*times, strict=True))
    partners = aggregator.partners(int(now.present.sum()))
    return MeasuredCost(
        hosting, opening, memory, aggregator.costs(), aggregator.accounts_of_one(), aggregator.broadcasts, partners,
        processor=processor,
    )  # fmt: skip


def _seconds_of(act: Callable[[], object], aggregator: _Rehearsal) -> tuple[float, float, float]:
    """(hosting, opening, processor): seconds of all but the opening of sums, of the opening; processor time of both."""
    processor = -time.process_time()
    start, opened_s = time.perf_counter() + aggregator.skipped_s, aggregator.opening_s
    with np.errstate(all="ignore"):  # means over no clients: all may be on other ranks
        act()
    opening = aggregator.opening_s - opened_s
    hosting = time.perf_counter() + aggregator.skipped_s - start - opening
    return hosting, opening, processor + time.process_time()


def _everybody(scenario: Scenario) -> Round:
    return Round(SETUP, scenario.job.seed, np.ones(scenario.data.clients, dtype=bool))


def typical_round(
    job: Job, data: store.ShardFolder, exchanges: Sequence[Exchange], host: NDArray[np.int64]
) -> tuple[Round, int]:
    """The first round whose busiest rank has the median load among the first 16, and that rank; without drop-outs."""
    indices = range(min(job.rounds, 16))
    rounds = [next_round(job, data.clients, exchanges, index)._replace(leaving=None) for index in indices]
    rounds = rounds[1:] or rounds  # in the first round no client returns
    load = 1 + data.counts / data.counts.mean()  # [N] even a client without rows costs something
    loads = [np.bincount(host, now.present * load) for now in rounds]
    middle = np.argsort([by_rank.max() for by_rank in loads])[len(loads) // 2]
    return rounds[middle], int(loads[middle].argmax())


def rehearse_round(
    scenario: Scenario, placement: Placement, now: Round, rank: int, budget_s: float = BUDGET_S
) -> MeasuredCost:  # fmt: skip
    """The cost of round `now` on `rank`, extrapolated if it takes long."""
    blocks = [block for block in placement.of(rank) if now.present[block.start : block.stop].any()]
    return narrowed(
        scenario, lambda narrow: shortened(narrow, lambda part: _blocks_extrapolated(part, blocks, now, budget_s))
    )


def _blocks_extrapolated(scenario: Scenario, blocks: Sequence[range], now: Round, budget_s: float) -> MeasuredCost:
    """The cost of a round, extrapolated from a few of its blocks."""
    two_blocks = _blocks(scenario, blocks[:2], now, budget_s)  # each further block adds the same memory
    if len(blocks) <= 2:
        return two_blocks
    count = min(len(blocks), max(3, int(2 * PATIENCE_S / two_blocks.seconds)))
    several = _blocks(scenario, blocks[:count], now, budget_s)
    each = max(several.memory - two_blocks.memory, 0.0) / (count - 2)
    return several._replace(
        hosting=several.hosting * len(blocks) / count,
        processor=several.processor * len(blocks) / count,
        memory=several.memory + (len(blocks) - count) * each,
    )


def _blocks(scenario: Scenario, ranges: Sequence[range], now: Round, budget_s: float) -> MeasuredCost:
    """The cost of a round on a rank with blocks of these clients; large blocks are extrapolated from fewer clients."""
    indices = itertools.count(now.index)  # other rows each time: those of the round before may be in memory

    def play_round(server: Record, clients: States, aggregator: _Rehearsal) -> None:
        here = now._replace(index=next(indices))
        after, renewed = play(scenario.algorithm.exchanges, server, clients, here, aggregator)
        if aggregator.specs is not None:
            first_block = (renewed[0], clients[0], len(aggregator.blocks[0].clients)) if renewed else (None, None, 0)
            check_renewed(scenario.job.algorithm["name"], after, aggregator.specs, *first_block)
            aggregator.specs = None

    def of(most_clients: int) -> MeasuredCost:
        blocks = [scenario.block(clients[:most_clients]) for clients in ranges]
        return _rehearse(scenario, blocks, now, play_round, budget_s)

    largest = max(map(len, ranges), default=0)
    if largest <= _TOGETHER:
        return of(largest)
    part = Reducible("clients of a block", largest, lambda most_clients: scenario)
    return extrapolate(part, _TOGETHER // 2, of(_TOGETHER // 2), _TOGETHER, of(_TOGETHER))


def rehearse_measuring(scenario: Scenario, rows: int, certify: bool) -> MeasuredCost:
    """The cost of an evaluation on a rank with `rows` rows that also scores the test data."""
    return narrowed(scenario, lambda part: _measuring(part, rows, certify))


def _measuring(scenario: Scenario, rows: int, certify: bool) -> MeasuredCost:
    all_rows = scenario.data.split == "columns"  # then rows are not evaluated in chunks
    block = scenario.block([int(scenario.data.widths.argmax())], None if all_rows else CHUNK)
    test = scenario.test_block() if scenario.data.test_samples else None
    measures = measures_of(scenario.job, scenario.algorithm)
    cost = _rehearse(
        scenario, [block], _everybody(scenario),
        lambda server, clients, aggregator: measure(
            measures, scenario.algorithm, server, [block], clients, _everybody(scenario), aggregator, test, certify,
        ),
    )  # fmt: skip
    played = int(block.counts[0]) + (int(test.counts[0]) if test else 0)
    return cost._replace(hosting=cost.hosting * (rows + scenario.data.test_samples) / played)
