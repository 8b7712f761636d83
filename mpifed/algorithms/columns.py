"""A pass over a minibatch of vertically split data: its gradient when no client holds whole rows.

Scores are linear in the features, so the sum of the clients' partial scores is all that they need of each other. A
pass over a minibatch is, as in Algorithms 3 and 4 of Cui, Li and Ye (arXiv:2104.06011):

1. `scores`: the server broadcasts row indices, and sends each client its columns of the model; the clients receive the
   sum of all partial scores. # differs from the paper: there each client sends its products weight x feature one by
   one, or its partial scores to all others; only the sum is used.
2. `slopes`, only where a single client holds the labels: it alone receives the scores, and sends the loss's derivatives
   by the scores to the others. (A sample's derivatives often reveal its label.)
3. `gradients`: the server receives each client's gradient in its own columns, and the head's gradient and the
   constraints' values from a single client, which may be any.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from mpifed.algorithms.certificate import STEP, certificate_columns
from mpifed.algorithms.functions import CHUNK, Statistics, Tally, sampled, slope_of_each, stacked, tally
from mpifed.algorithms.horizontal import (
    Evaluation,
    measured_rows,
    model_template,
    numbers_of_first,
    reported_certificate,
    reported_levels,
    tally_fields,
)
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Columns as History
from mpifed.core.exchange import Exchange, Field, FirstNumbers, Measure, Placed, Problem, fields_like
from mpifed.core.protocols import Features
from mpifed.core.record import ABSENT, AnyRecord, Array, Record, by_columns, in_memory, index, map_leaves, repeated
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters


@in_memory("rows", "shares", "keep", "count")
@by_columns("model.first", "previous.first")
class PassBroadcast(NamedTuple):
    """Broadcast of a pass; each client receives its own columns of the models' `first`."""

    rows: Array  # [b] row indices
    model: Parameters
    previous: Parameters  # the model before, where gradients are variance-reduced; else ABSENT
    shares: Array  # [K] counted samples relative to all, or ABSENT
    keep: np.float64  # [], how much of the gradients at `previous` is taken off; or ABSENT
    # [] how many of the rows count, in an evaluation, else ABSENT; no tuple's `count` is called
    count: np.int64  # type: ignore[assignment]


class PartialScores(NamedTuple):
    """A client's partial scores."""

    partial: Array  # [n, V, b, h] at the V models


class Slopes(NamedTuple):
    """Derivatives by the scores and the head: `Statistics` before backpropagation to the features."""

    scores: Array  # [K, b, h]
    head: Record  # leaves [K, ...]
    level: Array  # [K] float64, or ABSENT


class ScoreSlopes(NamedTuple):
    """The derivatives that the label holder sends to the other clients."""

    slopes: Array  # [n, K, b, h]


class PassUpload(NamedTuple):
    """What the server receives: each number from a single client."""

    statistics: Statistics  # leaves [n, K, ...]; `gradient.first` placed by columns
    tally: Tally  # [n, T], in an evaluation; else ABSENT


@in_memory("shares", "keep", "count")
class HeadBroadcast(NamedTuple):
    """What derivatives by the scores are computed from beside them: the broadcast without rows and columns."""

    head: Record  # of the model
    previous: Record  # of the model before, or ABSENT
    shares: Array
    keep: np.float64
    count: np.int64  # type: ignore[assignment]


@in_memory("rows")
class PassClients(NamedTuple):
    """State of the clients within a pass; the same for all, but for the labels."""

    rows: Array  # [n, b]
    broadcast: HeadBroadcast  # leaves [n, ...]; ABSENT once all clients have the derivatives
    slopes: Array  # [n, K, b, h]
    head: Record  # leaves [n, K, ...]
    level: Array  # [n, K]; ABSENT without constraints
    tally: Tally  # [n, T]; ABSENT but in an evaluation


@dataclass(frozen=True)
class Pass:
    """The exchanges of one pass over `size` rows.

    `holder` is the client who alone has the labels, or None; `sender` who sends what belongs to no columns.
    `points` is V, 2 where gradients are variance-reduced. With `measures`, sums over the rows are what is wanted:
    losses, and with `gradients` their derivatives too.
    """

    problem: Problem
    size: int
    holder: int | None
    sender: int
    points: int = 1
    name: str = ""
    measures: bool = False
    gradients: bool = True

    def exchanges(
        self,
        ask: Callable[[AnyRecord, Round], PassBroadcast],
        absorb: Callable[[AnyRecord, PassUpload, Round], AnyRecord],
    ) -> tuple[Exchange, ...]:
        """The exchanges of the pass; `ask` and `absorb` are the server's."""
        problem, functions = self.problem, sampled(self.problem)
        template = model_template(problem)
        scores = template.first.shape[1]
        partial_field = Field((self.points, self.size, scores), wide=self.measures)
        first = Exchange(
            f"{self.name}scores", PartialScores(partial_field), ask, self.partial_scores, hear=self.hear_scores,
            hears=None if self.holder is None else self._holds_labels,
        )  # fmt: skip
        name = f"{self.name}gradients" if self.gradients else f"{self.name}losses"
        last = Exchange(name, self._fields(template), self.ask_nothing, self.gather, absorb)
        if self.holder is None or not self.gradients:
            return (first, last)
        derivatives = ScoreSlopes(Field((len(functions), self.size, scores), sender=self.holder, wide=self.measures))
        slopes_told = Exchange(
            f"{self.name}slopes", derivatives, self.ask_nothing, self.tell_slopes, hear=self.hear_slopes
        )
        return (first, slopes_told, last)

    def _fields(self, template: Parameters) -> PassUpload:
        """The fields of `PassUpload`: each number comes from a single client."""
        scale, bound = (STEP, 2.0**20) if self.measures else (2.0**-40, 2.0**10)
        functions, sender = len(sampled(self.problem)), self.sender
        gradient: Parameters = ABSENT
        if self.gradients:
            head = map_leaves(lambda leaf: np.empty((functions, *leaf.shape)), template.head)
            held = self.problem.columns
            first = Field((functions, *template.first.shape), scale, bound, held=held, axis=1, wide=self.measures)
            gradient = Parameters(first, fields_like(head, scale, bound, sender=sender, wide=self.measures))
        level = Field((functions,), scale, bound, sender=sender, degree=2) if self._levels else ABSENT
        return PassUpload(
            Statistics(gradient, level), tally_fields(self.problem, self.size, sender) if self.measures else ABSENT
        )

    @property
    def _levels(self) -> bool:
        return bool(self.problem.constraints) and not self.measures

    def _holds_labels(self, now: Round) -> Array:
        holds: Array = np.arange(self.problem.clients) == self.holder
        return holds

    def ask_nothing(self, server: Record, now: Round) -> tuple[()]:
        return ()

    def partial_scores(
        self, clients: Record, broadcast: PassBroadcast, block: Block, now: Round
    ) -> tuple[PassClients, PartialScores]:
        """Step 4: each client's partial scores of the rows, from its own columns."""
        models = [broadcast.model, broadcast.previous][: self.points]
        xp, width = block.xp, models[0].first.shape[1]
        features = block.take_alike(broadcast.rows)
        scores_of_each = xp.empty((len(features), self.points, self.size, width), models[0].first.dtype)
        linear = self.problem.linear
        for X, at, out in zip(features, block.columns, scores_of_each, strict=True):
            weights = [model.first[index(model.first, at)] for model in models]
            if self.points == 1:
                linear.put_scores(weights[0], X, out)
                continue
            scores = linear.scores(xp.concatenate(weights, axis=1), X)[0]
            out[:] = scores.reshape(self.size, self.points, width).swapaxes(0, 1)
        return self._memory(broadcast, block), PartialScores(scores_of_each)

    def _memory(self, broadcast: PassBroadcast, block: Block) -> PassClients:
        """The state at the beginning of a pass: the broadcast, and room for what a single client fills, the holder."""
        model, previous, clients = broadcast.model, broadcast.previous, len(block.clients)
        before = previous.head if len(previous) else ABSENT
        bare = HeadBroadcast(model.head, before, broadcast.shares, broadcast.keep, broadcast.count)
        begun = PassClients(broadcast.rows, bare, ABSENT, ABSENT, ABSENT, ABSENT)
        if self.holder is None:
            return _for_each(begun, clients)
        xp, functions, dtype, width = block.xp, len(sampled(self.problem)), model.first.dtype, model.first.shape[1]
        if self.gradients:
            head = map_leaves(lambda leaf: xp.zeros((functions, *leaf.shape), dtype), model.head)
            begun = begun._replace(slopes=xp.zeros((functions, self.size, width), dtype), head=head)
        if self._levels:
            begun = begun._replace(level=xp.zeros(functions))
        if self.measures:
            fields = tally_fields(self.problem, 1)
            begun = begun._replace(tally=map_leaves(lambda field: xp.zeros(field.shape), fields))
        return _for_each(begun, clients)

    def hear_scores(self, clients: PassClients, total: PartialScores, block: Block, now: Round) -> PassClients:
        """Derivatives of the loss, by the holders of labels; they are the same for all, and computed once a rank."""
        n = len(block.clients)
        sums, down = _derived(self, _Heard(total, clients, block))
        memory = clients if self.holder is not None else clients._replace(broadcast=ABSENT)
        if self.measures:
            memory = memory._replace(tally=_for_each(sums, n))
        if not self.gradients:
            return memory
        down = _for_each(down, n)
        return memory._replace(slopes=down.scores, head=down.head, level=down.level)

    def derived(self, total: PartialScores, clients: PassClients, block: Block) -> tuple[Tally, Slopes]:
        """(sums over the rows, derivatives) at these scores, as far as they are asked for."""
        broadcast = map_leaves(lambda leaf: leaf[0], clients.broadcast)
        xp, y = block.xp, block.shards[0].y
        y = y[index(y, clients.rows[0])]
        weights, sums, down = xp.full(self.size, 1 / self.size), cast("Tally", ABSENT), cast("Slopes", ABSENT)
        if self.measures:
            weights = (xp.arange(self.size) < int(broadcast.count)).astype(np.float64)
            sums = tally(self.problem, broadcast.head, total.partial[0], y, weights)
        if self.gradients:
            down = self._slopes(broadcast.head, total.partial[0], y, weights, broadcast.shares)
        if self.gradients and self.points == 2 and broadcast.keep:
            weights *= -float(broadcast.keep)
            before = self._slopes(broadcast.previous, total.partial[1], y, weights, broadcast.shares)
            down = map_leaves(operator.add, down, before)
        return sums, down

    def _slopes(self, head: Record, scores: Array, y: Array, weights: Array, shares: Array) -> Slopes:
        functions = sampled(self.problem)
        each, level = slope_of_each(
            self.problem, functions, head, scores, y, weights, shares if len(shares) else np.ones(len(functions))
        )
        down = stacked([slope._replace(loss=ABSENT) for slope in each], y)
        return Slopes(down.scores, down.head, level if self._levels else ABSENT)

    def tell_slopes(
        self, clients: PassClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[PassClients, ScoreSlopes]:
        """The label holder's derivatives."""
        return clients, ScoreSlopes(clients.slopes)

    def hear_slopes(self, clients: PassClients, total: ScoreSlopes, block: Block, now: Round) -> PassClients:
        """Stores the label holder's derivatives at the other clients."""
        return clients._replace(slopes=_for_each(total.slopes, len(block.clients)))

    def gather(self, clients: Record, broadcast: tuple[()], block: Block, now: Round) -> tuple[tuple[()], PassUpload]:
        """Steps 5 and 6: each client's gradient in its columns, and the head's from a single client. (16), (17)"""
        assert isinstance(clients, PassClients)
        gradient: Parameters = ABSENT
        if self.gradients:
            features = block.take_alike(clients.rows[0])
            values = [self._pull(clients.slopes[i], X) for i, X in enumerate(features)]
            gradient = Parameters(Placed(values, block.columns, self.problem.features, axis=1), clients.head)
        return (), PassUpload(Statistics(gradient, clients.level), clients.tally)

    def _pull(self, derivatives: Array, X: Features) -> Array:
        """Backpropagates derivatives [K, b, h] to [K, p_i, h], in a single product."""
        functions, size, width = derivatives.shape
        if functions == 1:
            return self.problem.linear.pull(X, derivatives)
        beside = derivatives.swapaxes(0, 1).reshape(1, size, functions * width)
        pulled = self.problem.linear.pull(X, beside)[0]
        by_function: Array = pulled.reshape(-1, functions, width).swapaxes(0, 1)
        return by_function


class _Heard:
    """A sum of scores, and one of those who heard it; equal where the sum is the same."""

    def __init__(self, total: PartialScores, clients: PassClients, block: Block) -> None:
        self.total, self.clients, self.block = total, clients, block

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Heard) and self.total is other.total

    def __hash__(self) -> int:
        return id(self.total)


@lru_cache(maxsize=1)  # all who have heard it compute the same
def _derived(rows_pass: Pass, heard: _Heard) -> tuple[Tally, Slopes]:
    return rows_pass.derived(heard.total, heard.clients, heard.block)


def _for_each(record: AnyRecord, clients: int) -> AnyRecord:
    """`record` broadcast to a leading axis of clients, without copies."""
    if clients == 1:
        return map_leaves(lambda leaf: leaf[None], record)
    return map_leaves(lambda leaf: repeated(leaf, clients), record)


class EvaluationServer(NamedTuple):
    """State of the server during an evaluation."""

    model: Parameters
    turn: np.int64  # []
    evaluation: Evaluation


def measures_of_columns(algorithm: Algorithm, holder: int | None, sender: int) -> tuple[Measure, ...]:
    """Losses and constraints, and the certificate; over all rows, in chunks of `CHUNK`."""
    problem = algorithm.problem
    chosen = measured_rows(problem)
    measured = np.arange(problem.samples) if chosen is None else chosen
    size = min(CHUNK, len(measured))
    turns = -(-len(measured) // size)

    def ask(sums: EvaluationServer, now: Round) -> PassBroadcast:
        start = int(sums.turn) * size
        rows = measured[np.minimum(np.arange(start, start + size), len(measured) - 1)]
        count = np.int64(min(size, len(measured) - start))
        return PassBroadcast(rows, sums.model, ABSENT, ABSENT, ABSENT, count)

    def absorb(sums: EvaluationServer, total: PassUpload, now: Round) -> EvaluationServer:
        evaluation = Evaluation(total.tally, total.statistics.gradient)
        if sums.turn:
            evaluation = map_leaves(operator.add, sums.evaluation, evaluation)
        return EvaluationServer(sums.model, sums.turn + 1, evaluation)

    def measure(
        gradients: bool,
        reported: Callable[[Algorithm, Record, Evaluation, FirstNumbers], History],
        columns: tuple[str, ...] = (),
        first: Callable[[Record, EvaluationServer], FirstNumbers] | None = None,
    ) -> Measure:
        rows_pass = Pass(problem, size, holder, sender, 1, "certificate-" if gradients else "all-", True, gradients)
        exchanges, nothing = rows_pass.exchanges(ask, absorb), Evaluation(ABSENT, ABSENT)
        return Measure(
            exchanges, lambda server: EvaluationServer(algorithm.model(server), np.int64(0), nothing),
            lambda server, sums, known: reported(algorithm, server, sums.evaluation, known), turns=turns,
            certificate=columns, first=first,
        )  # fmt: skip

    def first(server: Record, sums: EvaluationServer) -> FirstNumbers:
        return numbers_of_first(algorithm, server, sums.evaluation)

    certificate = measure(True, reported_certificate, certificate_columns(problem), first)
    return measure(False, reported_levels), certificate


class Columns(Algorithm):
    """The base of algorithms for data split by columns; its subclasses have the field `label_holder`.

    All clients must participate: if any is absent, scores are incomplete.
    """

    label_holder: int | None  # the client who alone has the labels; None: all have

    needs_everybody = True

    @property
    def sender(self) -> int:
        """The client who sends what belongs to no columns, as intercepts: the label holder, or 0."""
        return self.label_holder or 0

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        return measures_of_columns(self, self.label_holder, self.sender)


def draw_rows(problem: Problem, now: Round, batch: int) -> Array:
    """[batch] indices of the rows of a round, drawn by the server."""
    rows: Array = now.draw("minibatch", np.array([0]), np.array([problem.samples]), batch)[0]
    return rows


def check_columns(problem: Problem, batch: int, holder: int | None) -> list[str]:
    """Errors of data and settings for vertical algorithms, one message each."""
    wrong: list[str] = []
    if problem.split != "columns":
        wrong.append(
            f"[algorithm] name: needs data split by columns, and the folder is split by {problem.split}; "
            "make another with `mpifed data ... --split columns`"
        )
    if batch > problem.samples:
        wrong.append(f"[algorithm] batch_size = {batch}: there are {problem.samples} samples; lower batch_size")
    if holder is not None and not 0 <= holder < problem.clients:
        wrong.append(f"[algorithm] label_holder = {holder}: clients are numbered 0 to {problem.clients - 1}")
    return wrong
