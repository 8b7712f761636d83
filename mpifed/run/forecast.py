"""`mpifed show JOB.toml`: who will hear what, and how many bytes, how much memory and time a run will take.

All of it follows from the job and `federation.h5`; MPI is not started, and no shard is opened. Time and memory are
those of a rehearsal: the rank with the most to do plays a round in this process, on random rows in the shapes of its
shards.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from mpifed.algorithms.horizontal import CHUNK
from mpifed.comm.federation import Federation
from mpifed.comm.placement import Placement, place
from mpifed.comm.transport import Alone
from mpifed.core.block import Block
from mpifed.core.exchange import Algorithm, Exchange, Field, Measure, States, ToClients, play
from mpifed.core.record import Array, Record, leaves, nbytes
from mpifed.core.round import SETUP, Round
from mpifed.maths.fixedpoint import grid
from mpifed.run.config import Job, read_table
from mpifed.run.environment import peak_rss_bytes
from mpifed.run.measure import measure
from mpifed.run.memory import keep_freed_memory
from mpifed.run.setup import problem_of, round_of
from mpifed.run.show import human_bytes
from mpifed.run.sweep import points
from mpifed.shards import store

BUDGET_S = 0.02  # for playing the same thing again and again
PATIENCE_S = 0.1  # for playing it at all: what takes longer is played once, and in part
_STOCK = 2**20  # random values that all made-up shards share
_SHRINK = 2.0**-12  # of random values, so that no answer leaves its bound


def forecast(job_path: Path, changes: tuple[str, ...], ranks: int) -> dict[str, Any]:
    """What a job will send, to whom, and what it will take on so many ranks; of a sweep, its first point.

    Raises
    ------
    UsageError, DataError
        as `mpifed run` would before its first round.
    """
    found = points(read_table(job_path, changes), str(job_path))
    job, process_bytes = found[0].job, peak_rss_bytes()
    data = store.open_federation(job.data.path)
    stage = _Stage(job, data, job.make_algorithm(problem_of(job, data)), _stock(data))
    placement = place(data.counts, job.data.block, ranks, job.server.dedicated)
    host = np.repeat(placement.ranks, [len(block) for block in placement.blocks])  # [N] each client's rank
    now, busiest = _typical(job, data, host)
    keep_freed_memory()
    with threadpool_limits(1):
        a_round = _round(stage, placement, now, busiest)
        measuring = _measuring(stage, np.bincount(host, data.counts).max()) if job.record.every else _NOTHING
    questions = a_round.questions | measuring.questions
    measures = stage.algorithm.measures if job.record.every else ()
    measurements = len({*range(0, job.rounds, job.record.every), job.rounds}) if job.record.every else 0
    training_s = min(job.rounds * a_round.seconds, job.stop.seconds or np.inf)
    setup_bytes, round_bytes = np.array(a_round.setup_bytes), np.array(a_round.bytes)
    memory = {
        "process": process_bytes,
        "data": _data_bytes(job, data, host),
        "work": max(a_round.memory, measuring.memory),
    }
    return {
        "job": job.name,
        "points": len(found),
        "rounds": job.rounds,
        "clients": data.clients,
        "clients_per_round": int(now.present.sum()),
        "channel": job.sum.channel,
        "numbers": job.sum.numbers,
        "setup": [_exchange(job, data, one, questions) for one in stage.algorithm.setup],
        "exchanges": [_exchange(job, data, one, questions) for one in stage.algorithm.exchanges],
        "measures": [_exchange(job, data, one, questions) for one in measures],
        "up_bytes_per_round": int(round_bytes[0]),
        "down_bytes_per_round": int(round_bytes[1]),
        "up_bytes": int(setup_bytes[0] + job.rounds * round_bytes[0]),
        "down_bytes": int(setup_bytes[1] + job.rounds * round_bytes[1]),
        "who_learns": _who_learns(ranks, bool(measures)),
        "ranks": ranks,
        "placement": [
            {"rank": rank, "clients": int((host == rank).sum()), "rows": int(data.counts[host == rank].sum())}
            for rank in range(ranks)
        ],
        "memory_bytes": {**memory, "largest_rank": sum(memory.values())},
        "seconds": {
            "round": a_round.seconds,
            "measurement": measuring.seconds,
            "measurements": measurements,
            "elapsed": training_s,
            "run": training_s + measurements * measuring.seconds,
        },
    }


class _Stage(NamedTuple):
    """What a rehearsal needs."""

    job: Job
    data: store.Federation
    algorithm: Algorithm
    stock: _Stock

    def block(self, clients: Sequence[int], most: int | None = None) -> Block:
        """Made-up shards in the shapes of those of `clients`, with at most so many rows."""
        counts = self.data.counts if most is None else np.minimum(self.data.counts, most)
        shards = tuple(_Rows(i, int(counts[i]), int(self.data.widths[i]), self.stock) for i in clients)
        return Block(shards, self.job.compute.dtype)


class _Stock(NamedTuple):
    """Random rows and labels."""

    X: Any  # [s, p], dense or CSR
    y: Array  # [s]


def _stock(data: store.Federation) -> _Stock:
    """As wide as the widest shard, stored as its values are, and as dense."""
    rng, width, most = np.random.default_rng(0), int(data.widths.max()), int(data.counts.max())
    y = rng.integers(data.classes, size=most) if data.classes else rng.standard_normal(most) * _SHRINK
    stored = data.nbytes.sum() / (data.counts @ data.widths)  # bytes a value, zeros of sparse rows as well
    if not data.sparse:
        rows = min(most, max(1, _STOCK // width))
        return _Stock(rng.integers(256, size=(rows, width), dtype=np.uint8).astype("u1" if stored < 4 else "f4"), y)
    from scipy.sparse import csr_matrix

    filled = min(width, max(1, round(stored * width / 8)))  # a value takes 4 bytes, and its column 4
    rows = min(most, max(1, _STOCK // filled))
    columns = np.sort(rng.integers(width, size=(rows, filled)), axis=1).ravel()
    indptr = np.arange(0, rows * filled + 1, filled)
    return _Stock(csr_matrix((np.ones(rows * filled, np.float32), columns, indptr), shape=(rows, width)), y)


class _Rows:
    """A made-up shard, as costly to read as one in memory; see `mpifed.core.block.Shard`."""

    def __init__(self, client: int, samples: int, features: int, stock: _Stock) -> None:
        self.client, self.samples, self.features = client, samples, features
        self.y, self.rows, self.columns = stock.y[:samples], np.arange(samples), np.arange(features)
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


class _Cost(NamedTuple):
    """What was seen of a rehearsal."""

    seconds: float
    memory: float  # bytes, from an empty federation on
    setup_bytes: tuple[int, int]  # up, down
    bytes: tuple[int, int]
    questions: dict[str, Record]  # by exchange


_NOTHING = _Cost(0.0, 0.0, (0, 0), (0, 0), {})


class _Rehearsal(Federation):
    """A federation of one rank, which keeps the questions."""

    def __init__(self, stage: _Stage, blocks: Sequence[Block]) -> None:
        job = stage.job
        super().__init__(
            Alone(),
            blocks,
            stage.data.clients,
            exact=job.sum.numbers == "exact",
            dtype=job.compute.dtype,
            bounds=job.sum.bounds,
            scales=job.sum.scales,
        )
        algorithm = stage.algorithm
        self.check_names([*algorithm.setup, *algorithm.exchanges, *algorithm.measures])
        self.questions: dict[str, Record] = {}

    def tell(self, exchange: Exchange, question: Record | None) -> Record:
        """The question."""
        self.questions[exchange.name] = question
        return super().tell(exchange, question)


def _rehearse(stage: _Stage, blocks: Sequence[Block], act: Callable[[Record, States, _Rehearsal], object]) -> _Cost:
    """What `act` costs on a rank that serves and hosts `blocks`, from the states before round 0."""
    tracemalloc.start()
    try:
        federation, everybody = _Rehearsal(stage, blocks), _everybody(stage)
        server = stage.algorithm.start_server(everybody)
        clients = [stage.algorithm.start_clients(block, everybody) for block in blocks]
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
    return _Cost(median(times), memory, setup_bytes, sent, federation.questions)


def _seconds_of(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _everybody(stage: _Stage) -> Round:
    return Round(SETUP, stage.job.seed, np.ones(stage.data.clients, dtype=bool))


def _typical(job: Job, data: store.Federation, host: NDArray[np.int64]) -> tuple[Round, int]:
    """Of the first rounds the one whose busiest rank has the median to do, and that rank."""
    rounds = [round_of(job, data.clients, index) for index in range(min(job.rounds, 15))]
    work = 1 + data.counts / data.counts.mean()  # [N] clients cost something whether they are small or large
    loads = [np.bincount(host, now.present * work) for now in rounds]
    middle = np.argsort([load.max() for load in loads])[len(loads) // 2]
    return rounds[middle], int(loads[middle].argmax())


def _round(stage: _Stage, placement: Placement, now: Round, rank: int) -> _Cost:
    """What round `now` costs on `rank`; where that takes long, from the costs of a few of its blocks."""
    blocks = [stage.block(block) for block in placement.of(rank) if now.present[block.start : block.stop].any()]

    def of(count: int) -> _Cost:
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


def _measuring(stage: _Stage, rows: int) -> _Cost:
    """What a measurement costs on a rank with so many rows that scores the test data as well."""
    block = stage.block([int(stage.data.counts.argmax())], CHUNK)
    test = block if stage.data.test_samples else None
    cost = _rehearse(
        stage, [block],
        lambda server, clients, federation: measure(
            stage.algorithm.measures, stage.algorithm, server, clients, _everybody(stage), federation, test
        ),
    )  # fmt: skip
    played = int(block.counts[0]) * (1 + (test is not None))
    return cost._replace(seconds=cost.seconds * (rows + stage.data.test_samples) / played)


def _data_bytes(job: Job, data: store.Federation, host: NDArray[np.int64]) -> int:
    """Bytes on the rank that holds most: values in memory, labels, numbers of rows and columns; test data."""
    values = np.minimum(np.bincount(host, data.nbytes), job.data.memory_gib * 2**30)
    values += np.bincount(host, 8 * (2 * data.counts + data.widths))
    if job.record.every:
        values[0] += data.test_samples * (data.nbytes.sum() / data.counts.sum() + 16)
    return int(values.max())


def _exchange(job: Job, data: store.Federation, exchange: Exchange, questions: dict[str, Record]) -> dict[str, Any]:
    """One exchange: what is asked, what is answered, who hears."""
    question = questions[exchange.name]
    answer = [_answered(job, data.clients, exchange, name, field) for name, field in leaves(exchange.fields)]
    return {
        "name": exchange.name,
        "hears": "clients" if isinstance(exchange, ToClients) else "server",
        "channel": job.sum.channel,
        "numbers": job.sum.numbers,
        "question": [
            {"field": name, "shape": list(np.shape(leaf)), "dtype": str(np.asarray(leaf).dtype), "bytes": nbytes(leaf)}
            for name, leaf in leaves(question)
        ],
        "answer": answer,
        "question_bytes": nbytes(question),
        "answer_bytes": sum(one["bytes"] for one in answer),
    }


def _answered(job: Job, clients: int, exchange: Exchange, name: str, field: Field) -> dict[str, Any]:
    """One summed field as it travels."""
    key = f"{exchange.name}.{name}".rstrip(".")
    bound, scale = job.sum.bounds.get(key, field.bound), job.sum.scales.get(key, field.scale)
    what = {"field": name, "shape": list(field.shape)}
    if job.sum.numbers == "exact":
        limbs = grid(scale, bound, clients).limbs
        exact = {"scale": scale, "bound": bound, "limbs": limbs}
        return {**what, "dtype": "int64", "bytes": 8 * limbs * field.size, **exact}
    dtype = "float64" if isinstance(exchange, Measure) else job.compute.dtype
    return {**what, "dtype": dtype, "bytes": np.dtype(dtype).itemsize * field.size}


def _who_learns(ranks: int, measured: bool) -> list[str]:
    """What the plain channel shows to whom."""
    lines = ["every client present learns the question"]
    lines += ["plain hides nothing: in a deployment the server would see every client's own answer"]
    lines += ["here each rank's process sees the data and answers of the clients it hosts"]
    if ranks > 1:
        lines += ["rank 0 sees every rank's partial sum, which is an answer where one client is present"]
    if measured:
        lines += ["measuring reveals to rank 0 every rank's sum of losses, over all rows it hosts"]
    return lines


def forecast_text(found: dict[str, Any]) -> str:
    """The same for a person."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    if found["points"] > 1:
        yield f"A sweep of {found['points']} points; this is the first.\n"
    present = f"{found['clients_per_round']} of {found['clients']} clients"
    yield f"{found['job']}: {present} in each of {found['rounds']} rounds"
    for title, part in (("Once, before round 0", "setup"), ("Every round", "exchanges"), ("When measured", "measures")):
        for exchange in found[part]:
            who = "the clients present hear" if exchange["hears"] == "clients" else "the server hears"
            yield f'\n{title}: "{exchange["name"]}", {who} the sum ({exchange["channel"]}, {exchange["numbers"]})'
            for what in ("question", "answer"):
                yield from (_field_line(what, field) for field in exchange[what])
    yield f"\n{'Sent':12}{_both(found, '_per_round')} a round"
    yield f"{'':12}{_both(found, '')} in the whole run; measuring is not counted"
    yield f"{'Who learns':12}" + f"\n{'':12}".join(found["who_learns"])
    yield f"{'Placement':12}{_placement(found['placement'])}"
    memory, seconds = found["memory_bytes"], found["seconds"]
    parts = ", ".join(f"{human_bytes(memory[part])} {part}" for part in ("process", "data", "work"))
    yield f"{'Memory':12}{human_bytes(memory['largest_rank'])} on the largest rank: {parts}"
    measuring = f"; {seconds['measurements']} measurements of {_seconds(seconds['measurement'])}"
    yield (
        f"{'Time':12}{_seconds(seconds['elapsed'])} for the rounds, {_seconds(seconds['round'])} each"
        f"{measuring if seconds['measurements'] else ''}"
    )
    yield f"{'':12}rehearsed here, on random rows: messages, files and MPI's own memory are left out"


def _field_line(what: str, field: dict[str, Any]) -> str:
    shape = " x ".join(map(str, field["shape"])) or "1"
    line = f"  {what:10}{field['field']:22}{shape:>14}  {field['dtype']:8}{human_bytes(field['bytes']):>10}"
    if "limbs" in field:
        wide = f", {field['limbs']} limbs" if field["limbs"] > 1 else ""
        line += f"  2^{int(np.log2(field['scale']))}, within {field['bound']:.4g}{wide}"
    return line


def _both(found: dict[str, Any], when: str) -> str:
    return f"{human_bytes(found[f'up_bytes{when}'])} up and {human_bytes(found[f'down_bytes{when}'])} down"


def _placement(ranks: list[dict[str, int]]) -> str:
    hosting = sorted(Counter(one["clients"] for one in ranks).items(), reverse=True)
    parts = [f"{count} rank{'s' * (count > 1)} with {clients or 'none'}" for clients, count in hosting]
    return f"clients: {', '.join(parts)}; rank 0, the server, with {ranks[0]['clients'] or 'none'}"


def _seconds(seconds: float) -> str:
    """0.0021 -> '2.1 ms'."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
