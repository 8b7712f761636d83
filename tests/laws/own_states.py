"""Algorithms as a user may write them, whose states are what a checkpoint can hold, or are not."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.algorithm import Rows
from mpifed.algorithms.refused_steps import check_rows
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.arrays import zeros
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Weighted, mean, model_template, start_model, weighted_fields


class Server(NamedTuple):
    model: Parameters
    mean: Parameters
    square: Parameters
    steps: Any


class Client(NamedTuple):
    count: Array  # [n]


@dataclass(frozen=True)
class Adam(Rows):
    """FedSGD with Adam at the server: the number of steps is a NumPy scalar, that of the start an array."""

    batch_size: int
    learning_rate: float = 0.05

    first_step: ClassVar[Any] = np.zeros((), np.int64)
    next_step: ClassVar[Any] = staticmethod(lambda steps: steps + 1)
    clients_start: ClassVar[Any] = staticmethod(lambda n: Client(np.zeros(n, np.int64)))
    clients_next: ClassVar[Any] = staticmethod(lambda clients: Client(clients.count + 1))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (Exchange("gradients", fields, self.ask, self.answer, self.absorb),)

    def check(self) -> list[str]:
        return check_rows(self.problem, self.batch_size)

    def start_server(self, now: Round) -> Server:
        model = start_model(self.problem, now)
        return Server(model, zeros(model), zeros(model), self.first_step)

    def start_clients(self, block: Block, now: Round) -> Any:
        return self.clients_start(len(block.clients))

    def ask(self, server: Server, now: Round) -> Parameters:
        return server.model

    def answer(self, clients: Any, model: Parameters, block: Block, now: Round) -> tuple[Any, Weighted]:
        if now.index == 5 and os.environ.get("MPIFED_TEST_TROUBLE"):
            os.kill(os.getpid(), signal.SIGUSR1)
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch_size))
        slopes = self.problem.objective.gradient(model, batch.X, batch.y, weight[:, None] / self.batch_size)
        return self.clients_next(clients), Weighted(slopes, weight)

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        steps, slopes = self.next_step(server.steps), mean(total)
        m = map_leaves(lambda m, g: np.float32(0.9) * m + np.float32(0.1) * g, server.mean, slopes)
        v = map_leaves(lambda v, g: np.float32(0.99) * v + np.float32(0.01) * g * g, server.square, slopes)
        rate = np.float32(self.learning_rate * np.sqrt(1 - 0.99**steps) / (1 - 0.9**steps))
        model = map_leaves(lambda w, m, v: w - rate * m / (np.sqrt(v) + np.float32(1e-8)), server.model, m, v)
        return Server(model, m, v, steps)


class PythonInteger(Adam):
    first_step = 0


class BecomesPython(Adam):
    next_step = staticmethod(lambda steps: int(steps) + 1)


class BecomesFloat(Adam):
    next_step = staticmethod(lambda steps: steps + 1.0)


class Dictionary(Adam):
    first_step: ClassVar[Any] = {"count": np.zeros(())}


class ClientsList(Adam):
    clients_start = staticmethod(lambda n: Client([0] * n))


class ClientsScalar(Adam):
    clients_start = staticmethod(lambda n: Client(np.zeros((), np.int64)))


class Transposed(Adam):
    first_step: ClassVar[Any] = np.zeros((2, 3)).T


class ClientsBecomeWide(Adam):
    clients_next = staticmethod(lambda clients: Client(clients.count + 0.5))


WRONG = {  # and what is said of each
    "PythonInteger": "start_server(): steps is of type int; ",
    "BecomesPython": "the server's state after a round: steps is of type int; ",
    "BecomesFloat": "the server's state after a round: steps is float64 (), and was int64 () before round 0; ",
    "Dictionary": "start_server(): steps is of type dict; ",
    "ClientsList": "start_clients(): count is of type list; ",
    "ClientsScalar": "start_clients(): count has shape (); ",
    "Transposed": "start_server(): steps is not in C order",
    "ClientsBecomeWide": "a client's state after a round: count is float64 (1,), and was int64 (1,) before round 0; ",
}
