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
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.cells import ask_nothing
from mpifed.algorithms.certificate import STEP
from mpifed.algorithms.functions import CHUNK, Statistics, Tally, refused, sampled, slope_of_each, stacked, tally
from mpifed.algorithms.measure import Measure
from mpifed.algorithms.measures import Evaluation, measured_rows, measures_of_functions, tally_fields
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Placed, by_columns
from mpifed.core.record import ABSENT, AnyRecord, Array, Record, in_memory, map_leaves, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.arrays import index, repeated
from mpifed.maths.objectives import Parameters
from mpifed.maths.parameters import Slope
from mpifed.maths.problem import Problem, model_template


@in_memory("rows", "shares", "count")
@by_columns("model.first")
class PassBroadcast(NamedTuple):
    """Broadcast of a pass; each client receives its own columns of the model's `first`."""

    rows: Array  # [b] row indices
    model: Parameters
    shares: Array = ABSENT  # [K] counted samples relative to all, or ABSENT
    # [] how many of the rows count, in an evaluation, else ABSENT; no tuple's `count` is called
    count: np.int64 = ABSENT  # type: ignore[assignment]


class PartialScores(NamedTuple):
    """A client's partial scores."""

    partial: Array  # [n, b, h]


class ScoreSlopes(NamedTuple):
    """The derivatives that the label holder sends to the other clients."""

    slopes: Array  # [n, K, b, h]


class PassUpload(NamedTuple):
    """What the server receives: each number from a single client."""

    statistics: Statistics  # leaves [n, K, ...]; `gradient.first` placed by columns
    tally: Tally  # [n, T], in an evaluation; else ABSENT


class PassClients(NamedTuple):
    """State of the clients within a pass: the same for all who hear the same; leaves [n, ...]."""

    broadcast: PassBroadcast  # without the model's `first`
    slopes: Slope  # by scores [K, b, h] and head; ABSENT where no gradients are wanted
    level: Array  # [K] float64, or ABSENT
    tally: Tally  # [n, T]; ABSENT but in an evaluation


@dataclass(frozen=True)
class Pass:
    """The exchanges of one pass over `size` rows.

    `holder` is the client who alone has the labels, or None; `sender` who sends what belongs to no columns.
    With `measures`, sums over the rows are what is wanted: losses, and with `gradients` their derivatives too.
    """

    problem: Problem
    size: int
    holder: int | None
    sender: int
    name: str = ""
    measures: bool = False
    gradients: bool = True
    heard: list[tuple[PartialScores, PassClients]] = field(default_factory=list)  # the last sum, what follows of it

    def exchanges(
        self,
        ask: Callable[[AnyRecord, Round], PassBroadcast],
        absorb: Callable[[AnyRecord, PassUpload, Round], AnyRecord],
    ) -> tuple[Exchange, ...]:
        """The exchanges of the pass; `ask` and `absorb` are the server's."""
        functions, width = len(sampled(self.problem)), model_template(self.problem).first.shape[1]
        scores = PartialScores(Field((self.size, width), wide=self.measures))
        slopes = ScoreSlopes(Field((functions, self.size, width), sender=self.holder, wide=self.measures))

        hears = None if self.holder is None else lambda now: np.arange(self.problem.clients) == self.holder
        name = f"{self.name}gradients" if self.gradients else f"{self.name}losses"
        first = Exchange(f"{self.name}scores", scores, ask, self.partial_scores, hear=self.hear_scores, hears=hears)
        told = Exchange(f"{self.name}slopes", slopes, ask_nothing, self.tell_slopes, hear=self.hear_slopes)
        last = Exchange(name, self._fields(), ask_nothing, self.gather, absorb)
        return (first, last) if self.holder is None or not self.gradients else (first, told, last)

    def _fields(self) -> PassUpload:
        """The fields of `PassUpload`: each number comes from a single client."""
        scale, bound = (STEP, 2.0**20) if self.measures else (2.0**-40, 2.0**10)
        functions, sender, template = len(sampled(self.problem)), self.sender, model_template(self.problem)
        like = partial(Field, scale=scale, bound=bound, wide=self.measures)
        upload = PassUpload(Statistics(ABSENT, ABSENT), ABSENT)
        if self.measures:
            upload = upload._replace(tally=tally_fields(self.problem, self.size, sender))
        if not self.gradients:
            return upload
        first = like((functions, *template.first.shape), held=self.problem.columns, axis=1)
        head = map_leaves(lambda leaf: like((functions, *leaf.shape), sender=sender), template.head)
        level = like((functions,), sender=sender, degree=2) if self._levels else ABSENT
        return upload._replace(statistics=Statistics(Parameters(first, head), level))

    @property
    def _levels(self) -> bool:
        return bool(self.problem.constraints) and not self.measures

    def partial_scores(
        self, clients: Record, broadcast: PassBroadcast, block: Block, now: Round
    ) -> tuple[PassClients, PartialScores]:
        """Step 4: each client's partial scores of the rows, from its own columns."""
        first, features = broadcast.model.first, block.take_alike(broadcast.rows)
        scores = block.xp.empty((len(features), self.size, first.shape[1]), first.dtype)
        for X, at, out in zip(features, block.columns, scores, strict=True):
            self.problem.linear.scores(first[index(first, at)], X, out[None])
        memory = PassClients(broadcast._replace(model=broadcast.model._replace(first=ABSENT)), ABSENT, ABSENT, ABSENT)
        if self.holder is not None:  # in the place of what others don't hear, what nobody reads
            memory = self.derived(memory.broadcast, scores[0], np.zeros(self.size, block.shards[0].y.dtype))
        return _for_each(memory, len(block.clients)), PartialScores(scores)

    def hear_scores(self, clients: PassClients, total: PartialScores, block: Block, now: Round) -> PassClients:
        """Derivatives of the loss, by the holders of labels; they are the same for all, and computed once a rank."""
        if not self.heard or self.heard[0][0] is not total:
            broadcast, y = map_leaves(lambda leaf: leaf[0], clients.broadcast), block.shards[0].y
            self.heard[:] = [(total, self.derived(broadcast, total.partial, y[index(y, broadcast.rows)]))]
        return _for_each(self.heard[0][1], len(block.clients))

    def derived(self, broadcast: PassBroadcast, scores: Array, y: Array) -> PassClients:
        """The sums over the rows and the derivatives at these scores [b, h], as far as they are asked for."""
        xp, head, functions = namespace(scores), broadcast.model.head, sampled(self.problem)
        weights, slopes, level, sums = xp.full(self.size, 1 / self.size), ABSENT, ABSENT, ABSENT
        if self.measures:
            weights = (xp.arange(self.size) < int(broadcast.count)).astype(np.float64)
            sums = tally(self.problem, head, scores, y, weights)
        if self.gradients:
            shares = broadcast.shares if len(broadcast.shares) else np.ones(len(functions))
            each, level = slope_of_each(self.problem, functions, head, scores, y, weights, shares)
            slopes = stacked(each, y)
        return PassClients(broadcast, slopes, level if self._levels else ABSENT, sums)

    def tell_slopes(
        self, clients: PassClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[PassClients, ScoreSlopes]:
        """The label holder's derivatives."""
        return clients, ScoreSlopes(clients.slopes.scores)

    def hear_slopes(self, clients: PassClients, total: ScoreSlopes, block: Block, now: Round) -> PassClients:
        """Stores the label holder's derivatives at the other clients."""
        scores = _for_each(total.slopes, len(block.clients))
        return clients._replace(slopes=clients.slopes._replace(scores=scores))

    def gather(self, clients: Record, broadcast: tuple[()], block: Block, now: Round) -> tuple[tuple[()], PassUpload]:
        """Steps 5 and 6: each client's gradient in its columns, and the head's from a single client. (16), (17)"""
        assert isinstance(clients, PassClients)
        if not self.gradients:
            return (), PassUpload(Statistics(ABSENT, ABSENT), clients.tally)
        features, (head, slopes) = block.take_alike(clients.broadcast.rows[0]), clients.slopes
        _, functions, size, width = slopes.shape
        # those of all clients, and a single product for all functions: [b, K h] to [p_i, K h]
        wide = slopes[0].swapaxes(0, 1).reshape(1, size, functions * width)
        pull, by_function = self.problem.linear.pull, (-1, functions, width)
        values = [pull(X, wide)[0].reshape(by_function).swapaxes(0, 1) for X in features]
        first = Placed(values, block.columns, self.problem.features, axis=1)
        return (), PassUpload(Statistics(Parameters(first, head), clients.level), clients.tally)


def _for_each(record: AnyRecord, clients: int) -> AnyRecord:
    """`record` broadcast to a leading axis of clients, without copies."""
    return map_leaves(lambda leaf: repeated(leaf, clients), record)


class EvaluationServer(NamedTuple):
    """State of the server during an evaluation."""

    model: Parameters
    turn: np.int64  # []
    tally: Tally  # as of `Evaluation`
    gradient: Parameters


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
        """Training loss, objective and constraints; the certificate. Over all rows, in chunks of `CHUNK`."""
        problem = self.problem
        chosen = measured_rows(problem)
        measured = np.arange(problem.samples) if chosen is None else chosen
        size = min(CHUNK, len(measured))
        turns = -(-len(measured) // size)

        def ask(sums: EvaluationServer, now: Round) -> PassBroadcast:
            start = int(sums.turn) * size
            rows = measured[np.minimum(np.arange(start, start + size), len(measured) - 1)]
            count = np.int64(min(size, len(measured) - start))
            return PassBroadcast(rows, sums.model, count=count)

        def absorb(sums: EvaluationServer, total: PassUpload, now: Round) -> EvaluationServer:
            evaluation = Evaluation(total.tally, total.statistics.gradient)
            if sums.turn:
                evaluation = map_leaves(operator.add, Evaluation(sums.tally, sums.gradient), evaluation)
            return EvaluationServer(sums.model, sums.turn + 1, *evaluation)

        def exchanges(name: str, gradients: bool) -> tuple[Exchange, ...]:
            return Pass(problem, size, self.label_holder, self.sender, name, True, gradients).exchanges(ask, absorb)

        def start(server: Record) -> EvaluationServer:
            return EvaluationServer(self.model(server), np.int64(0), ABSENT, ABSENT)

        losses, certificate = exchanges("all-", False), exchanges("certificate-", True)
        return measures_of_functions(self, losses, certificate, start, turns)


def draw_rows(problem: Problem, now: Round, batch: int) -> Array:
    """[batch] indices of the rows of a round, drawn by the server."""
    rows: Array = now.draw("minibatch", np.array([0]), np.array([problem.samples]), batch)[0]
    return rows


def check_columns(problem: Problem, batch: int, holder: int | None) -> list[str]:
    """Errors of data and settings for vertical algorithms, one message each."""
    return refused(
        (
            problem.split != "columns",
            f"[algorithm] name: needs data split by columns, and the folder is split by {problem.split}; "
            "make another with `mpifed data ... --split columns`",
        ),
        (
            batch > problem.samples,
            f"[algorithm] batch_size = {batch}: there are {problem.samples} samples; lower batch_size",
        ),
        (
            not 0 <= (holder or 0) < problem.clients,
            f"[algorithm] label_holder = {holder}: clients are numbered 0 to {problem.clients - 1}",
        ),
    )
