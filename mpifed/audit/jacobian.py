"""Number of independent equations of a party: the rank of the derivative of what it receives by private numbers.

The round is replayed in float64, without fixed-point rounding, noise or channels, twice for each private number, with
steps in both directions. What is differentiated is what the party receives in an exchange; it may depend on private
numbers through all earlier exchanges of the round. States that clients keep from earlier rounds count as known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.audit.replay import Replay, RoundStart, ShardInstead, dense_rows
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block, ClientData
from mpifed.core.exchange import Exchange, Field, ServerRecord, States, ToClients, play
from mpifed.core.record import Array, Record, bare_leaves, leaves, map_leaves, take
from mpifed.core.round import Round
from mpifed.job.job import Job
from mpifed.job.validation import with_noise
from mpifed.run.setup import problem_of
from mpifed.shards import store

Floats = NDArray[np.float64]
MOST = 1000  # most private numbers of a derivative; beyond, equations are only counted
_STEP = 1e-4  # of the central difference, relative to the largest number
_TOLERANCE = 1e-7  # singular values below this fraction of the largest count as rounding errors


class PerturbedShard(ShardInstead):
    """A shard in float64 with rows that can be perturbed; see `mpifed.core.block.ClientData`."""

    sparse = False

    def __init__(self, shard: ClientData, rows: NDArray[np.int64]) -> None:
        super().__init__(shard)
        self.values = dense_rows(shard, rows)  # [b, p]
        self.y = np.array(shard.y)
        self._position = {int(row): i for i, row in enumerate(rows)}

    def take(self, at: Array, out: Array) -> None:
        """Copy rows, perturbed or not, into `out`."""
        for row, target in zip(np.asarray(at).tolist(), out, strict=True):
            i = self._position.get(row)
            target[...] = dense_rows(self._shard, np.array([row]))[0] if i is None else self.values[i]

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Array]]:
        X = np.empty((self._shard.samples, self._shard.features))
        self.take(np.arange(len(X)), X)
        yield slice(0, len(X)), X.astype(dtype)


class _UploadRecorder:
    """A `Summation` of single-client blocks that records every client's upload."""

    serves, halted = True, False

    def __init__(self, blocks: Sequence[Block], moved: Callable[[Record], Record] | None) -> None:
        self.blocks = blocks
        self.answers: dict[str, dict[int, Floats]] = {}  # [m], by exchange and client
        self._ask = moved

    def serve(self, exchange: Exchange, method: Callable[..., Record], *arguments: object) -> ServerRecord:
        return method(*arguments)

    def tell(self, exchange: Exchange, question: ServerRecord) -> ServerRecord:
        """The broadcast, perturbed if it is private."""
        return question if self._ask is None else self._ask(question)

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, ServerRecord]:
        """The sum of uploads in floats."""
        clients, answers, total = list(clients), dict[int, Floats](), None
        for i, block in enumerate(self.blocks):
            client = int(block.clients[0])
            if not now.present[client]:
                continue
            clients[i], answer = exchange.answer(clients[i], question, block, now)
            answer = map_leaves(lambda field, leaf, c=client: _sent(field, leaf, c), exchange.fields, answer)
            answers[client] = _flat(answer)
            total = answer if total is None else map_leaves(np.add, total, answer)
        self.answers[exchange.name] = answers
        return clients, total

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """States after clients have absorbed the sum."""
        receiving = [now.staying[b.clients[0]] and exchange.hearer in (None, int(b.clients[0])) for b in self.blocks]
        return [
            exchange.absorb(state, total, block, now) if hears else state
            for state, block, hears in zip(clients, self.blocks, receiving, strict=True)
        ]


def _sent(field: Field, leaf: Array, client: int) -> Array:
    """Contribution of a client, of `leaf` [1, ...], to a field."""
    values = np.asarray(leaf)[0]
    sent: Array = values * 0 if field.sender not in (None, client) else values
    return sent


def _flat(record: Record) -> Floats:
    return np.concatenate([np.asarray(leaf, dtype=np.float64).reshape(-1) for leaf in bare_leaves(record)])


class PrivateNumbers(NamedTuple):
    """A client's private numbers that entered an exchange, by which `PerturbedRound` differentiates."""

    client: int
    rows: NDArray[np.int64]  # [b]
    unknowns: int
    model: int = 0  # numbers of its part of the model, if others do not receive them


class PerturbedRound:
    """A round of a recorded run that can be replayed with perturbed private numbers."""

    def __init__(self, replay: Replay, round_start: RoundStart) -> None:
        self._algorithm = _in_doubles(replay.job)
        self._exchanges = self._algorithm.exchanges
        blocks = [(block, i) for block in replay.blocks for i in range(len(block.clients))]
        self._shards = {int(block.clients[i]): block.shards[i] for block, i in blocks}
        self._order = [int(block.clients[i]) for block, i in blocks]
        self._states = [
            _double(take(state, np.array([i])))
            for block, state in zip(replay.blocks, round_start.clients, strict=True)
            for i in range(len(block.clients))
        ]
        self._server, self._now = _double(round_start.server), round_start.now._replace(secure=False)

    def answers(
        self,
        exchange: str,
        perturbed: dict[int, PerturbedShard],
        only: int | None,
        moved: Callable[[Record], Record] | None,
    ) -> dict[int, Floats]:
        """[m] upload of each participating client; with `only`, of the client whose upload can have changed."""
        at = [i for i, client in enumerate(self._order) if only in (None, client)]
        shards = [perturbed.get(self._order[i], self._shards[self._order[i]]) for i in at]
        recorder = _UploadRecorder([Block((shard,), "float64") for shard in shards], moved)
        names = [other.name for other in self._exchanges]
        played = self._exchanges[: names.index(exchange) + 1]
        if len(played) == 1:  # the sum is not needed: nothing is absorbed
            here = self._now.at(0)
            question = recorder.tell(played[0], played[0].ask(self._server, here))
            recorder.tally(played[0], [self._states[i] for i in at], question, here)
        else:
            play(played, self._server, [self._states[i] for i in at], self._now, recorder)
        return recorder.answers[exchange]

    def rank(self, exchange: str, owners: Sequence[PrivateNumbers]) -> int:
        """Rank of the derivative of the sum of these clients' uploads by their private numbers.

        The columns of the derivative are computed singly, and reduced to random combinations of its rows that are
        enough to preserve the rank.
        """
        shards = {owner.client: PerturbedShard(self._shards[owner.client], owner.rows) for owner in owners}
        first = [other.name for other in self._exchanges].index(exchange) == 0
        columns: list[Floats] = []
        sketch: _Sketch | None = None
        size = sum(arrays.size for _, arrays, _ in self._numbers(owners, shards))
        for client, arrays, question in self._numbers(owners, shards):
            step = _STEP * (float(np.abs(arrays).max()) or 1.0)
            for i in range(arrays.size):
                before, ends = arrays.flat[i], []
                for sign in (1.0, -1.0):
                    arrays.flat[i] = before + sign * step
                    answers = self.answers(exchange, shards, client if first else None, question)
                    ends.append(np.sum([answers[owner.client] for owner in owners if owner.client in answers], axis=0))
                arrays.flat[i] = before
                sketch = sketch or _Sketch(len(ends[0]), size)
                columns.append(sketch((ends[0] - ends[1]) / (2 * step)))
            if question is not None:
                question(())  # restores the labels
        return _rank(np.stack(columns, axis=1))

    def _numbers(
        self, owners: Sequence[PrivateNumbers], shards: dict[int, PerturbedShard]
    ) -> Iterator[tuple[int, Floats, Callable[[Record], Record] | None]]:
        """(client, writable array of private numbers, function that applies them to the broadcast) for each array."""
        for owner in owners:
            shard = shards[owner.client]
            yield owner.client, shard.values, None
            if shard.y.dtype.kind == "f":
                labels = _Labels(shard.y, owner.rows)
                yield owner.client, labels.values, labels
            if owner.model:
                first = self._exchanges[0]
                question = first.ask(self._server, self._now.at(0))
                for name, leaf in leaves(question):
                    if name in first.told_by_columns:
                        part = _Columns(name, np.array(leaf), shard.columns)
                        yield owner.client, part.values, part


class _Labels:
    """Real-valued labels of rows, written to the shard before each broadcast of a replay."""

    def __init__(self, y: Array, rows: NDArray[np.int64]) -> None:
        self._y, self._rows, self.values = y, rows, y[rows].astype(np.float64)

    def __call__(self, question: Record) -> Record:
        self._y[self._rows] = self.values
        return question


class _Columns:
    """A client's part of a leaf that is broadcast by columns."""

    def __init__(self, name: str, leaf: Floats, columns: NDArray[np.int64]) -> None:
        self._name, self._leaf, self._columns = name, leaf, columns
        self.values = leaf[columns].copy()

    def __call__(self, question: Record) -> Record:
        leaf = self._leaf.copy()
        leaf[self._columns] = self.values
        names = iter([name for name, _ in leaves(question)])
        return map_leaves(lambda unchanged: leaf if next(names) == self._name else unchanged, question)


class _Sketch:
    """Shortens columns, preserving ranks up to `size`: randomly weighted sums over random parts."""

    def __init__(self, length: int, size: int) -> None:
        self._most, rng = 2 * size + 16, np.random.default_rng(0)
        self._whole = length <= self._most
        self._part = rng.integers(self._most, size=length)
        self._weights = rng.standard_normal(length)

    def __call__(self, column: Floats) -> Floats:
        """[at most 2 size + 16] the column, shortened."""
        if self._whole:
            return column
        return np.bincount(self._part, self._weights * column, self._most).astype(np.float64)


def _rank(jacobian: Floats) -> int:
    values = np.linalg.svd(jacobian, compute_uv=False)
    return int((values > _TOLERANCE * values[0]).sum()) if values[0] > 0 else 0


def _in_doubles(job: Job) -> Algorithm:
    """The job's algorithm in float64, without noise."""
    double = job.model_copy(update={"compute": job.compute.model_copy(update={"dtype": "float64"})})
    algorithm = double.make_algorithm(problem_of(double, store.open_federation(job.data.path)))
    return algorithm if job.privacy is None else with_noise(algorithm, 0.0)


def _double(record: Record) -> Record:
    def in_double(leaf: Array) -> Array:
        return leaf.astype(np.float64) if getattr(leaf, "dtype", np.dtype("i8")).kind == "f" else leaf

    return map_leaves(in_double, record)
