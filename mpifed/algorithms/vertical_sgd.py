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
from mpifed.algorithms.refused_steps import without_momentum
from mpifed.core.exchange import Exchange
from mpifed.core.record import ABSENT, Array
from mpifed.core.refusals import messages
from mpifed.core.round import Round
from mpifed.hyperparameters import Count
from mpifed.maths.objectives import Parameters
from mpifed.maths.optimizers import SGD
from mpifed.maths.problem import start_model


class VerticalSGDServer(NamedTuple):
    """The server's state."""

    model: Parameters
    steps: np.int64  # rounds done
    velocity: Array  # [d]; ABSENT without momentum


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
        wrong, optimizer = check_columns(self.problem, self.batch_size, self.label_holder), self.server_optimizer
        if not optimizer.fused:
            wrong.append(f"[server_optimizer] {optimizer.special}: is for local steps of clients; leave it out")
        return wrong + messages([without_momentum("server_optimizer", optimizer)])

    def start_server(self, now: Round) -> VerticalSGDServer:
        model = start_model(self.problem, now)
        velocity = np.zeros_like(self.problem.layout.flat(model)) if self.server_optimizer.momentum else ABSENT
        return VerticalSGDServer(model, np.int64(0), velocity)

    def ask(self, server: VerticalSGDServer, now: Round) -> PassBroadcast:
        return PassBroadcast(draw_rows(self.problem, now, self.batch_size), server.model)

    def absorb(self, server: VerticalSGDServer, total: PassUpload, now: Round) -> VerticalSGDServer:
        """Takes a step along the gradient of the mean loss and the penalty."""
        layout, optimizer, l2 = self.problem.layout, self.server_optimizer, 2 * self.problem.objective.l2
        w, g, v = layout.flat(server.model), layout.flat(total.statistics.gradient)[0], server.velocity
        step, number, decay = optimizer.at(int(server.steps) + 1), w.dtype.type, np.full(len(w), optimizer.weight_decay)
        decay[layout.penalized] += l2
        if not optimizer.momentum:
            w = w * (1 - step * decay).astype(w.dtype) - g * number(step)
        else:
            g = g + w * decay.astype(w.dtype)
            v = v * number(optimizer.momentum) + g
            w = w - number(step) * (v * number(optimizer.momentum) + g if optimizer.nesterov else v)
        return VerticalSGDServer(layout.record(w, server.model), server.steps + 1, v)
