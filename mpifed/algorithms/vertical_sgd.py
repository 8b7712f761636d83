"""Stochastic gradient descent for vertically split data, for any number of clients: the baseline of SSCA's Algorithm 3.

As the long SSCA paper describes its baseline for more than two clients (its reference [18]): clients and messages are
those of Algorithm 3, and the server takes a gradient step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from mpifed.algorithms.horizontal import start_model
from mpifed.algorithms.vertical import Columns, Gathered, Pass, Question, check_columns, draw_rows
from mpifed.core.exchange import Exchange, Problem
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Count
from mpifed.maths.schedules import StepSize


class Server(NamedTuple):
    """Server only."""

    model: Parameters
    steps: Array  # [] int64, rounds done


@dataclass(frozen=True)
class VerticalSGD(Columns):
    """Every round the server draws `batch` rows, hears their gradient in the clients' columns, and takes a step.

    `label_holder` and `head_client` as in `SSCAVertical`.
    """

    problem: Problem
    batch: Count
    step: StepSize
    label_holder: Annotated[int, Ge(0)] | None = None
    head_client: Annotated[int, Ge(0)] | None = None

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The clients hear the sum of the scores; the server hears gradients."""
        return Pass(self.problem, self.batch, self.label_holder, self.sender).exchanges(self.ask, self.absorb)

    @property
    def setup(self) -> tuple[()]:
        """Nothing."""
        return ()

    def check(self) -> list[str]:
        """The split and the batch must fit the data."""
        return check_columns(self.problem, self.batch, self.label_holder, self.head_client)

    def start_server(self, now: Round) -> Server:
        """The initial model."""
        return Server(start_model(self.problem, now), np.int64(0))

    def ask(self, server: Server, now: Round) -> Question:
        """The rows and the model."""
        return Question(draw_rows(self.problem, now, self.batch), server.model, (), (), (), ())

    def absorb(self, server: Server, total: Gathered, now: Round) -> Server:
        """A step along the gradient of the mean loss and the penalty."""
        step = self.step.at(int(server.steps) + 1)
        shrink = 1 - 2 * step * self.problem.objective.penalty

        def moved(w: Array, slope: Array) -> Array:
            return w * w.dtype.type(shrink) - slope[0] * w.dtype.type(step)

        return Server(map_leaves(moved, server.model, total.statistics.gradient), server.steps + 1)

    def model(self, server: Server) -> Parameters:
        """The model as it stands."""
        return server.model
