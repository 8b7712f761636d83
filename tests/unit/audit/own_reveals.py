"""Algorithms of a user, named in jobs as "own_reveals:..."; some say what answers reveal, and some say it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpifed import FedAvg
from mpifed.algorithms.algorithm import Rows
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.reveals import MeanGradient, Received
from mpifed.core.exchange import Exchange
from mpifed.core.record import map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Problem, Weighted, mean, model_template, start_model, weighted_fields

# --- gradients of minibatches of one ---------------------------------------------------------------------------------


class Server(NamedTuple):
    """Server only."""

    model: Parameters


@dataclass(frozen=True)
class Raw(Rows):
    """Clients send the gradient of a minibatch, under names of its own."""

    problem: Problem
    batch_size: int = 1
    step: float = 0.1

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (Exchange("what-i-saw", fields, self.ask, self.answer, self.absorb),)

    def check(self) -> list[str]:
        return check_rows(self.problem, self.batch_size)

    def start_server(self, now: Round) -> Server:
        return Server(start_model(self.problem, now))

    def ask(self, server: Server, now: Round) -> Parameters:
        return server.model

    def answer(self, clients: Any, model: Any, block: Block, now: Round) -> tuple[Any, Weighted]:
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch_size))
        weights = np.repeat(weight[:, None] / self.batch_size, self.batch_size, axis=1)
        return clients, Weighted(self.problem.objective.gradient(model, batch.X, batch.y, weights), weight)

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        return Server(map_leaves(lambda w, g: w - w.dtype.type(self.step) * g, server.model, mean(total)))


@dataclass(frozen=True)
class Said(Raw):
    """The same, which says so, or says it wrong."""

    says: str = "gradient"

    def reveals(self, received: Received) -> Iterator[Any]:
        if received.answered_by(self.answer):
            found = map_leaves(lambda leaf: leaf / received.answer.weight, received.answer.value)
            if self.says == "an attribute that there is not":
                found = received.answer.values
            if self.says == "another shape":
                found = found._replace(first=found.first.T)
            yield found if self.says == "no kind" else MeanGradient(received.question, found)


class Cubed(FedAvg):
    """FedAvg but for what clients send: of that FedAvg says what it no longer is."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change**3
