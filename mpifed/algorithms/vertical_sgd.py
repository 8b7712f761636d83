"""Stochastic gradient descent for vertically split data, for any number of clients: the baseline of SSCA's Algorithm 3.

As the long SSCA paper describes its baseline for more than two clients (its reference [18]): clients and messages are
those of Algorithm 3, and the server takes a gradient step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from mpifed.algorithms.columns import Columns, Pass, PassBroadcast, PassUpload, check_columns, draw_rows
from mpifed.algorithms.initial import start_model
from mpifed.core.exchange import Exchange
from mpifed.core.record import ABSENT, map_leaves, zeros
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.optimizers import SGD
from mpifed.maths.ranges import Count


class VerticalSGDServer(NamedTuple):
    """The server's state."""

    model: Parameters
    steps: np.int64  # rounds done
    velocity: Parameters  # ABSENT without momentum


@dataclass(frozen=True)
class VerticalSGD(Columns):
    """Every round the server draws `batch_size` rows, receives their gradient by columns, and takes a step.

    `label_holder` as in `SSCAVertical`.
    """

    batch_size: Count
    """Rows in a minibatch, drawn by the server for all clients."""
    server_optimizer: SGD
    label_holder: Annotated[int, Ge(0)] | None = None
    """The client who holds the labels; every client holds them where absent."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The clients receive the sum of the scores, the server the gradients."""
        return Pass(self.problem, self.batch_size, self.label_holder, self.sender).exchanges(self.ask, self.absorb)

    def check(self) -> list[str]:
        """Split, batch size and optimizer must fit the data."""
        wrong = check_columns(self.problem, self.batch_size, self.label_holder)
        return wrong + self.server_optimizer.wrong("server_optimizer")

    def start_server(self, now: Round) -> VerticalSGDServer:
        model = start_model(self.problem, now)
        return VerticalSGDServer(model, np.int64(0), zeros(model) if self.server_optimizer.momentum else ABSENT)

    def ask(self, server: VerticalSGDServer, now: Round) -> PassBroadcast:
        return PassBroadcast(draw_rows(self.problem, now, self.batch_size), server.model)

    def absorb(self, server: VerticalSGDServer, total: PassUpload, now: Round) -> VerticalSGDServer:
        """Takes a step along the gradient of the mean loss and the penalty."""
        optimizer, model, gradient = self.server_optimizer, server.model, total.statistics.gradient
        step, momentum, l2 = optimizer.at(int(server.steps) + 1), optimizer.momentum, 2 * self.problem.objective.l2
        decays = map_leaves(
            lambda counts: (l2 if counts else 0.0) + optimizer.weight_decay, self.problem.objective.penalized(model)
        )
        if not momentum:
            model = map_leaves(
                lambda w, g, decay: w * w.dtype.type(1 - step * decay) - g[0] * w.dtype.type(step),
                model,
                gradient,
                decays,
            )
            return VerticalSGDServer(model, server.steps + 1, ABSENT)
        slope = map_leaves(lambda g, w, decay: g[0] + w * w.dtype.type(decay), gradient, model, decays)
        velocity = map_leaves(lambda v, g: v * v.dtype.type(momentum) + g, server.velocity, slope)
        along = velocity
        if optimizer.nesterov:
            along = map_leaves(lambda v, g: v * v.dtype.type(momentum) + g, velocity, slope)
        model = map_leaves(lambda w, d: w - d * w.dtype.type(step), model, along)
        return VerticalSGDServer(model, server.steps + 1, velocity)
