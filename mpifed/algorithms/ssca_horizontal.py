"""Mini-batch SSCA for horizontally split data.

C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch SSCA" (ICC 2021, arXiv:2103.09506), and
Y. Cui, Y. Li, C. Ye: "Sample-based and Feature-based Federated Learning for Unconstrained and Constrained
Nonconvex Optimization via Mini-batch SSCA" (arXiv:2104.06011). Equation numbers are those of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Gt

from mpifed.algorithms.horizontal import (
    Weighted,
    check_rows,
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
from mpifed.maths.surrogate import Start, Surrogate, move, start_surrogate, track


class Server(NamedTuple):
    """Server only."""

    model: Parameters  # w_t
    surrogate: Surrogate  # of round t - 1
    steps: Array  # [] int64, t - 1


@dataclass(frozen=True)
class SSCAHorizontal:
    """Algorithm 1: every round each client draws `batch` rows and sends the sum of their gradients.

    In the paper B = `batch`; `rho` and `gamma` are its step sizes a1/t^alpha and a2/t^(alpha + 0.05). With all
    clients present the weights are the paper's N_i/(B N); otherwise they are normalized over those present.
    """

    problem: Problem
    batch: Annotated[int, Gt(0)]
    rho: StepSize
    gamma: StepSize
    tau: Annotated[float, Gt(0)] = 0.1
    start: Start = "exact"

    @property
    def exchanges(self) -> tuple[ToServer, ...]:
        """The server hears the weighted sum of the minibatch gradients."""
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (ToServer("gradients", fields, self.ask, self.answer, self.absorb, fused=self.fused),)

    @property
    def setup(self) -> tuple[ToServer, ...]:
        """Nothing."""
        return ()

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss."""
        return (train_loss(self),)

    def check(self) -> list[str]:
        """The split and the batch must fit the data."""
        return check_rows(self.problem, self.batch)

    def start_server(self, now: Round) -> Server:
        """Step 1: any w_1, and the surrogate of nothing."""
        model = start_model(self.problem, now)
        return Server(model, start_surrogate(model, self.tau, self.start), np.int64(0))

    def start_clients(self, block: Block, now: Round) -> tuple[()]:
        """Clients keep nothing."""
        return ()

    def ask(self, server: Server, now: Round) -> Parameters:
        """Step 3: w_t."""
        return server.model

    def answer(
        self, clients: tuple[()], model: Parameters, block: Block, now: Round
    ) -> tuple[tuple[()], Weighted]:
        """Step 4: the mean gradient over each client's minibatch, weighted by its rows."""
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch))
        slopes = gradient(self.problem.objective, model, batch.X, batch.y, weight[:, None] / self.batch)
        return clients, Weighted(slopes, weight)

    def fused(self, model: Parameters, block: Block, now: Round) -> Weighted:
        """The sum of the clients' answers, from one product over all their minibatches."""
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch)).together()
        each = np.repeat(weight / self.batch, self.batch)[None]
        slopes = gradient(self.problem.objective, model, batch.X, batch.y, each)
        return Weighted(map_leaves(lambda leaf: leaf[0], slopes), weight.sum())

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        """Step 5: track the surrogate (2), and move towards its minimizer (4)."""
        t = int(server.steps) + 1
        rho, penalty = self.rho.at(t), self.problem.objective.penalty
        surrogate = track(
            server.surrogate, rho, total.value, server.model, self.tau, penalty, weight=float(total.weight)
        )
        return Server(move(surrogate, self.gamma.at(t), server.model), surrogate, np.int64(t))

    def model(self, server: Server) -> Parameters:
        """w_t."""
        return server.model
