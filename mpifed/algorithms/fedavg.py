"""Federated averaging, the SGD baseline.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017, arXiv:1602.05629). With one local step it is FedSGD on minibatches; with
several and a decaying step size, parallel restarted SGD (H. Yu, S. Yang, S. Zhu, AAAI 2019, arXiv:1807.06629).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import (
    Weighted,
    check_rows,
    mean,
    model_template,
    start_model,
    train_loss,
    weighted_fields,
)
from mpifed.core.block import Block
from mpifed.core.exchange import Measure, Problem, ToServer
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters, gradient
from mpifed.maths.schedules import StepSize


class Server(NamedTuple):
    """Server only."""

    model: Parameters
    steps: Array  # [] int64, rounds done


class Question(NamedTuple):
    """What the server sends."""

    model: Parameters
    step: Array  # [] float64, this round's step size


@dataclass(frozen=True)
class FedAvg:
    """Every round the clients present take local SGD steps on their own rows, and their changes are averaged.

    Either `local_steps` minibatches of `batch` rows, drawn without replacement as far as the shard goes, or
    `local_epochs` passes over the shard in minibatches of `batch`, the last one of a pass possibly smaller.
    `step` decays with the round, and is one size within it.
    """

    problem: Problem
    batch: Annotated[int, Gt(0)]
    step: StepSize
    local_steps: Annotated[int, Gt(0)] | None = None
    local_epochs: Annotated[int, Gt(0)] | None = None

    @property
    def exchanges(self) -> tuple[ToServer, ...]:
        """The server hears the weighted sum of the clients' changes."""
        fields = weighted_fields(self.problem, model_template(self.problem))
        fused = self.fused if self.one_step else None
        return (ToServer("changes", fields, self.ask, self.answer, self.absorb, fused=fused),)

    @property
    def setup(self) -> tuple[ToServer, ...]:
        """Nothing."""
        return ()

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss."""
        return (train_loss(self),)

    @property
    def one_step(self) -> bool:
        """Whether this is FedSGD: then the sum of all changes is one product."""
        return self.local_epochs is None and self.local_steps in (None, 1)

    def check(self) -> list[str]:
        """The split and the batch must fit the data, and local work is counted one way."""
        wrong = check_rows(self.problem, 1 if self.local_epochs else self.batch)
        if self.local_steps and self.local_epochs:
            wrong.append("[algorithm] local_steps and local_epochs: give one of the two")
        return wrong

    def start_server(self, now: Round) -> Server:
        """The initial model."""
        return Server(start_model(self.problem, now), np.int64(0))

    def start_clients(self, block: Block, now: Round) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def ask(self, server: Server, now: Round) -> Question:
        """The model and the step size."""
        return Question(server.model, np.float64(self.step.at(int(server.steps) + 1)))

    def answer(
        self, clients: tuple[()], question: Question, block: Block, now: Round
    ) -> tuple[tuple[()], Weighted]:
        """Each client's change of the model after its local steps, weighted by its rows."""
        weight = self.problem.weights(block.clients)
        if self.local_epochs is None:
            return clients, Weighted(self._train(question, block, now, weight), weight)
        parts = [(who, self._train(question, part, now, weight[who])) for who, part in block.equal_parts()]
        order = np.argsort(np.concatenate([who for who, _ in parts]))
        change = map_leaves(lambda *leaves: np.concatenate(leaves)[order], *[change for _, change in parts])
        return clients, Weighted(change, weight)

    def fused(self, question: Question, block: Block, now: Round) -> Weighted:
        """The sum of the clients' answers when each takes one step: one product over all their minibatches."""
        weight = self.problem.weights(block.clients)
        batch = block.take(block.draw(now, "minibatch", self.batch)).together()
        each = np.repeat(weight * (-float(question.step) / self.batch), self.batch)[None]
        slopes = gradient(self.problem.objective, question.model, batch.X, batch.y, each)
        shrink = -2 * self.problem.objective.penalty * float(question.step) * weight.sum()
        change = map_leaves(lambda leaf, w: leaf[0] + w.dtype.type(shrink) * w, slopes, question.model)
        return Weighted(change, weight.sum())

    def _minibatches(self, block: Block, now: Round) -> Iterator[NDArray[np.int64]]:
        """The rows [n, b] of each local step."""
        if self.local_epochs is None:
            rows = block.draw(now, "minibatch", (self.local_steps or 1) * self.batch)
            yield from np.split(rows, self.local_steps or 1, axis=1)
            return
        size = int(block.counts[0])
        rows = block.draw(now, "minibatch", self.local_epochs * size)
        for first in range(0, self.local_epochs * size, size):
            for start in range(first, first + size, self.batch):
                yield rows[:, start : min(start + self.batch, first + size)]

    def _train(self, question: Question, block: Block, now: Round, weight: Array) -> Parameters:
        """[n, ...] weighted changes of clients with equally many steps."""
        step, objective = float(question.step), self.problem.objective
        change = None
        for rows in self._minibatches(block, now):
            batch = block.take(rows)
            local = question.model if change is None else map_leaves(np.add, question.model, change)
            down = gradient(objective, local, batch.X, batch.y, np.full(rows.shape, -step / rows.shape[1]))
            if objective.penalty:
                down = map_leaves(lambda g, w: g - w.dtype.type(2 * step * objective.penalty) * w, down, local)
            change = down if change is None else map_leaves(np.add, change, down)
        if np.any(weight != 1):
            change = map_leaves(lambda leaf: leaf * _column(weight, leaf), change)
        return change

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        """The model plus the mean change."""
        return Server(map_leaves(np.add, server.model, mean(total)), server.steps + 1)

    def model(self, server: Server) -> Parameters:
        """The averaged model."""
        return server.model


def _column(weight: Array, like: Array) -> Array:
    """[n, 1, ...] in the dtype and number of axes of `like`."""
    return weight.astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))
