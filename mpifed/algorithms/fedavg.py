"""Federated averaging, the SGD baseline, with or without momentum at the server.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017, arXiv:1602.05629). With one local step it is FedSGD on minibatches; with
several, parallel restarted SGD (H. Yu, S. Yang, S. Zhu, AAAI 2019, arXiv:1807.06629). Momentum is that of FedAvgM:
T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (2019, arXiv:1909.06335).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt

from mpifed.algorithms.horizontal import (
    Weighted,
    check_rows,
    mean,
    measures_of_rows,
    model_template,
    start_model,
    weighted_fields,
)
from mpifed.core.block import Batch, Block
from mpifed.core.exchange import Measure, Problem, ToServer
from mpifed.core.record import Array, Record, map_leaves, zeros
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters, gradient
from mpifed.maths.schedules import StepSize

ROWS = 2048  # rows of one client in memory at once, as far as a minibatch is no larger


class Server(NamedTuple):
    """Server only."""

    model: Parameters
    steps: Array  # [] int64, rounds done
    velocity: Record  # of the model's shapes: v; () without momentum


class Question(NamedTuple):
    """What the server sends."""

    model: Parameters
    step: Array  # [] float64, this round's step size


@dataclass(frozen=True)
class FedAvg:
    """Every round the clients present take local SGD steps on their own rows, and their changes are averaged.

    Either `local_steps` minibatches of `batch` rows, drawn without replacement as far as the shard goes, or
    `local_epochs` passes over the shard in minibatches of `batch`, the last one of a pass possibly smaller.
    Parallel restarted SGD with E steps between averages is `local_steps = E`. `step` = [a, alpha] decays with the
    round: all local steps of round t use a / t^alpha.

    `momentum` is the server's: v = momentum v + mean change, w += v. The change holds the step size, and so v keeps
    every gradient with the size of its own round. With one local step that is Polyak's heavy ball,
    w_{t+1} = w_t - step_t g_t + momentum (w_t - w_{t-1}), for any step sizes. With a constant one it is momentum SGD,
    u = momentum u + g, w -= step u, as parallel restarted SGD with momentum has it when it averages after every step
    (H. Yu, R. Jin, S. Yang, ICML 2019, arXiv:1905.03817, E = 1). With a decaying one, momentum SGD would take all of u
    by the new step: the same as here with momentum step_t / step_{t-1} in place of momentum, which tends to it. With
    more local steps theirs has momentum at the clients, and this has not.
    """

    problem: Problem
    batch: Annotated[int, Gt(0)]
    step: StepSize
    local_steps: Annotated[int, Gt(0)] | None = None
    local_epochs: Annotated[int, Gt(0)] | None = None
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0

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
        """Training loss and gradient norm."""
        return measures_of_rows(self)

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
        """The initial model, at rest."""
        model = start_model(self.problem, now)
        return Server(model, np.int64(0), zeros(model) if self.momentum else ())

    def start_clients(self, block: Block, now: Round) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def ask(self, server: Server, now: Round) -> Question:
        """The model and the step size."""
        return Question(server.model, np.float64(self.step.at(int(server.steps) + 1)))

    def answer(self, clients: tuple[()], question: Question, block: Block, now: Round) -> tuple[tuple[()], Weighted]:
        """Each client's change of the model after its local steps, weighted by its rows."""
        weight = self.problem.weights[block.clients]
        if self.one_step:
            batch = block.take(block.draw(now, "minibatch", self.batch))
            return clients, Weighted(self._step(question, batch, weight[:, None], weight), weight)
        if self.local_epochs is None:
            return clients, Weighted(self._train(question, block, now, weight), weight)
        parts = [(who, self._train(question, part, now, weight[who])) for who, part in block.equal_parts()]
        order = np.argsort(np.concatenate([who for who, _ in parts]))
        change = map_leaves(lambda *leaves: np.concatenate(leaves)[order], *[change for _, change in parts])
        return clients, Weighted(change, weight)

    def fused(self, question: Question, block: Block, now: Round) -> Weighted:
        """The sum of the clients' answers when each takes one step: one product over all their minibatches."""
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch)).together()
        change = self._step(question, batch, np.repeat(weight, self.batch)[None], weight.sum(keepdims=True))
        return Weighted(map_leaves(lambda leaf: leaf[0], change), weight.sum())

    def _step(self, question: Question, batch: Batch, each: Array, weight: Array) -> Parameters:
        """[n, ...] weighted changes after one step; `each` are the weights of the rows, `weight` [n] of the clients."""
        step, objective = float(question.step), self.problem.objective
        change = gradient(objective, question.model, batch.X, batch.y, each * (-step / self.batch))
        if objective.penalty:
            shrink = -2 * step * objective.penalty * weight
            change = map_leaves(lambda leaf, w: leaf + _column(shrink, leaf) * w, change, question.model)
        return change

    def _steps(self, size: int) -> list[slice]:
        """Where each local step's minibatch lies among the rows drawn from a shard of `size` rows."""
        if self.local_epochs is None:
            return [slice(i * self.batch, (i + 1) * self.batch) for i in range(self.local_steps or 1)]
        return [
            slice(start, min(start + self.batch, first + size))
            for first in range(0, self.local_epochs * size, size)
            for start in range(first, first + size, self.batch)
        ]

    def _train(self, question: Question, block: Block, now: Round, weight: Array) -> Parameters:
        """[n, ...] weighted changes of clients with equally many steps."""
        step, objective = float(question.step), self.problem.objective
        shrink = 1 - 2 * step * objective.penalty

        def descend(w: Array, change: Array) -> None:
            if objective.penalty:
                w *= w.dtype.type(shrink)
            w += change

        local = map_leaves(lambda w: np.repeat(w[None], len(weight), axis=0), question.model)
        steps = self._steps(int(block.counts[0]))
        rows = block.draw(now, "minibatch", steps[-1].stop)
        together = max(1, ROWS // self.batch)  # steps whose rows are read at once
        for some in (steps[i : i + together] for i in range(0, len(steps), together)):
            first = some[0].start
            batch = block.take(rows[:, first : some[-1].stop])
            for at in some:
                X, y = batch.rows(at.start - first, at.stop - first)
                down = gradient(objective, local, X, y, np.full(y.shape, -step / y.shape[1]))
                map_leaves(descend, local, down)
        scale = None if np.all(weight == 1) else weight

        def change(w: Array, start: Array) -> Array:
            w -= start
            return w if scale is None else w * _column(scale, w)

        trained: Parameters = map_leaves(change, local, question.model)
        return trained

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        """The model plus the mean change, or plus the velocity that it has changed."""
        change, velocity = mean(total), server.velocity
        if self.momentum:
            change = velocity = map_leaves(lambda v, d: v * v.dtype.type(self.momentum) + d, velocity, change)
        return Server(map_leaves(np.add, server.model, change), server.steps + 1, velocity)

    def model(self, server: Server) -> Parameters:
        """The averaged model."""
        return server.model


def _column(weight: Array, like: Array) -> Array:
    """[n, 1, ...] in the dtype and number of axes of `like`."""
    return weight.astype(like.dtype).reshape(-1, *[1] * (like.ndim - 1))
