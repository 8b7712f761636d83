"""A rehearsal: the rank with the most to do plays in this process, on random rows in the shapes of its shards.

It tells what a round and a measurement cost before any shard is opened. Messages between ranks are left out.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import CHUNK
from mpifed.comm.channel import Holdings
from mpifed.comm.federation import Federation
from mpifed.comm.placement import Placement
from mpifed.comm.transport import Alone
from mpifed.core.block import Block
from mpifed.core.errors import DataError
from mpifed.core.exchange import Algorithm, Exchange, States, play
from mpifed.core.record import Array, Record
from mpifed.core.round import SETUP, Round, secret_rng
from mpifed.maths.privacy.settings import Privacy
from mpifed.run.config import Job
from mpifed.run.measure import measure
from mpifed.run.participation import round_of
from mpifed.run.setup import all_exchanges, measures_of
from mpifed.shards import store

BUDGET_S = 0.02  # for playing the same thing again and again
PATIENCE_S = 0.1  # for playing it at all: what takes longer is played once, and in part
_VALUES = 2**20  # random values that all made-up shards share
_SHRINK = 2.0**-12  # of random values, so that no answer leaves its bound


class Stage(NamedTuple):
    """What a rehearsal needs."""

    job: Job
    data: store.Federation
    algorithm: Algorithm
    stock: Stock

    def block(self, clients: Sequence[int], most: int | None = None) -> Block:
        """Made-up shards in the shapes of those of `clients`, with at most so many rows."""
        counts = self.data.counts if most is None else np.minimum(self.data.counts, most)
        groups = self.columns.groups
        first = [np.arange(self.columns.features)[at][0] for at in self.columns.members]
        shards = tuple(
            _Rows(i, int(counts[i]), int(first[groups[i]]), int(self.data.widths[i]), self.stock) for i in clients
        )
        return Block(shards, self.job.compute.dtype)


    @property
    def columns(self) -> Holdings:
        """Like those of the data, but each group's columns lie side by side."""
        groups, widths = self.data.holds[:, 1], np.zeros(int(self.data.holds[:, 1].max()) + 1, dtype=np.int64)
        widths[groups] = self.data.widths
        stops = np.cumsum(widths) if self.data.split != "rows" else widths
        members = (slice(int(stop - width), int(stop)) for stop, width in zip(stops, widths, strict=True))
        return Holdings(self.data.features, groups, tuple(members))

    def test_block(self) -> Block:
        """Made-up rows with all columns."""
        rows = min(CHUNK, len(self.stock.y))
        shard = _Rows(-1, rows, 0, self.data.features, self.stock)
        return Block((shard,), self.job.compute.dtype)


class Stock(NamedTuple):
    """Random rows and labels."""

    X: Any  # [s, p], dense or CSR
    y: Array  # [s]


def stock_like(data: store.Federation) -> Stock:
    """As wide as the widest shard, stored as its values are, and as dense."""
    rng, width, most = np.random.default_rng(0), data.features, int(data.counts.max())
    y = rng.integers(data.classes, size=most) if data.classes else rng.standard_normal(most) * _SHRINK
    stored = data.nbytes.sum() / (data.counts @ data.widths)  # bytes a value, zeros of sparse rows as well
    if not data.sparse:
        rows = min(most, max(1, _VALUES // width))
        return Stock(rng.integers(256, size=(rows, width), dtype=np.uint8).astype("u1" if stored < 4 else "f4"), y)
    from scipy.sparse import csr_matrix

    filled = min(width, max(1, round(stored * width / 8)))  # a value takes 4 bytes, and its column 4
    rows = min(most, max(1, _VALUES // filled))
    columns = np.sort(rng.integers(width, size=(rows, filled)), axis=1).ravel()
    indptr = np.arange(0, rows * filled + 1, filled)
    return Stock(csr_matrix((np.ones(rows * filled, np.float32), columns, indptr), shape=(rows, width)), y)


class _Rows:
    """A made-up shard, as costly to read as one in memory; see `mpifed.core.block.Shard`."""

    def __init__(self, client: int, samples: int, first: int, features: int, stock: Stock) -> None:
        self.client, self.samples, self.features = client, samples, features
        self.y, self.rows, self.columns = stock.y[:samples], np.arange(samples), np.arange(first, first + features)
        self.sparse = not isinstance(stock.X, np.ndarray)
        self._X = stock.X[:, :features]

    def take(self, at: Array, out: Array) -> None:
        """Random rows for the rows `at` [b], into `out` [b, p]."""
        if self.sparse:
            self.take_sparse(at, out.dtype).toarray(out=out)
        else:
            np.multiply(self._X[at % len(self._X)], out.dtype.type(_SHRINK), out=out, dtype=out.dtype)

    def take_sparse(self, at: Array, dtype: Any) -> Any:
        """Random rows for the rows `at` [b], as CSR [b, p]."""
        return self._X[at % self._X.shape[0]].astype(dtype) * np.dtype(dtype).type(_SHRINK)


class Cost(NamedTuple):
    """What was seen of a rehearsal."""

    seconds: float
    memory: float  # bytes, from an empty federation on
    setup_bytes: tuple[int, int]  # up, down
    bytes: tuple[int, int]
    questions: dict[str, Record]  # by exchange


NOTHING = Cost(0.0, 0.0, (0, 0), (0, 0), {})


class _Rehearsal(Federation):
    """A federation of one rank, which keeps the questions."""

    def __init__(self, stage: Stage, blocks: Sequence[Block]) -> None:
        data = stage.data
        super().__init__(
            Alone(), blocks, data.clients, **stage.job.sum_settings(), columns=stage.columns,
            protection=stage.job.protection(), rehearsed=True,
        )  # fmt: skip
        self.make_ready(all_exchanges(stage.algorithm))
        self.agree_on_keys()
        self.questions: dict[str, Record] = {}

    def tell(self, exchange: Exchange, question: Record | None) -> Record:
        """The question."""
        self.questions[exchange.name] = question
        return super().tell(exchange, question)


def load_libraries(privacy: Privacy | None) -> None:
    """Those that a private round loads when it needs them: that takes longer than the round."""
    if privacy is not None and privacy.noise == "secure":
        secret_rng(0)
    if privacy is not None and privacy.distribution == "discrete":
        import_module("opendp.prelude")


def _rehearse(stage: Stage, blocks: Sequence[Block], act: Callable[[Record, States, _Rehearsal], object]) -> Cost:
    """What `act` costs on a rank that serves and hosts `blocks`, from the states before round 0."""
    tracemalloc.start()
    try:
        federation, everybody = _Rehearsal(stage, blocks), _everybody(stage)
        server = stage.algorithm.start_server(everybody)
        clients = [stage.algorithm.start_clients(block, everybody) for block in blocks]
        with suppress(DataError):  # made-up labels may be all of one class, and the one who counts them on another rank
            server, clients = play(stage.algorithm.setup, server, clients, everybody, federation)
        setup_bytes = federation.up_bytes, federation.down_bytes
        times = [_seconds_of(lambda: act(server, clients, federation))]
        memory = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    sent = federation.up_bytes - setup_bytes[0], federation.down_bytes - setup_bytes[1]
    if times[0] < PATIENCE_S:
        times.clear()  # the first is slow, and tracing slows it further
    while sum(times) < BUDGET_S:
        times.append(_seconds_of(lambda: act(server, clients, federation)))
    return Cost(median(times), memory, setup_bytes, sent, federation.questions)


def _seconds_of(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    with np.errstate(all="ignore"):  # a mean over clients who are all on other ranks
        act()
    return time.perf_counter() - start


def _everybody(stage: Stage) -> Round:
    return Round(SETUP, stage.job.seed, np.ones(stage.data.clients, dtype=bool))


def typical_round(job: Job, data: store.Federation, host: NDArray[np.int64]) -> tuple[Round, int]:
    """Of the first rounds the one whose busiest rank has the median to do, and that rank."""
    rounds = [round_of(job, data.clients, index) for index in range(min(job.rounds, 15))]
    work = 1 + data.counts / data.counts.mean()  # [N] clients cost something whether they are small or large
    loads = [np.bincount(host, now.present * work) for now in rounds]
    middle = np.argsort([load.max() for load in loads])[len(loads) // 2]
    return rounds[middle], int(loads[middle].argmax())


def rehearse_round(stage: Stage, placement: Placement, now: Round, rank: int) -> Cost:
    """What round `now` costs on `rank`; where that takes long, from the costs of a few of its blocks."""
    blocks = [stage.block(block) for block in placement.of(rank) if now.present[block.start : block.stop].any()]

    def of(count: int) -> Cost:
        return _rehearse(
            stage, blocks[:count],
            lambda server, clients, federation: play(stage.algorithm.exchanges, server, clients, now, federation),
        )  # fmt: skip

    few = of(2)  # from the third block on, each adds the same memory
    if len(blocks) <= 2:
        return few
    count = min(len(blocks), max(3, int(2 * PATIENCE_S / few.seconds)))
    some = of(count)
    each = (some.memory - few.memory) / (count - 2)
    return some._replace(seconds=some.seconds * len(blocks) / count, memory=some.memory + (len(blocks) - count) * each)


def rehearse_measuring(stage: Stage, rows: int, certify: bool) -> Cost:
    """What a measurement costs on a rank with so many rows that scores the test data as well."""
    whole = stage.data.split == "columns"  # then all rows are gone through together
    block = stage.block([int(stage.data.widths.argmax())], None if whole else CHUNK)
    test = stage.test_block() if stage.data.test_samples else None
    measures = measures_of(stage.job, stage.algorithm)
    cost = _rehearse(
        stage, [block],
        lambda server, clients, federation: measure(
            measures, stage.algorithm, server, [block], clients, _everybody(stage), federation, test, certify,
        ),
    )  # fmt: skip
    played = int(block.counts[0]) + (int(test.counts[0]) if test else 0)
    return cost._replace(seconds=cost.seconds * (rows + stage.data.test_samples) / played)
