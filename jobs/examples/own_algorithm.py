"""An algorithm of your own: server momentum over FedSGD (FedAvgM of Hsu, Qi, Brown 2019, with one local step).

mpirun -n 4 mpifed run jobs/examples/own_algorithm.toml
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import Rows, Weighted, check_rows, mean, model_template, start_model, weighted_fields
from mpifed.core.block import Block
from mpifed.core.exchange import ToServer
from mpifed.core.record import map_leaves, zeros
from mpifed.core.reveals import MeanGradient, Received
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters, gradient


class Server(NamedTuple):  # what must survive a round; it is in every checkpoint
    model: Parameters
    velocity: Parameters


@dataclass(frozen=True)
class ServerMomentum(Rows):  # for data split by rows; the fields are the keys of [algorithm] in the job
    batch_size: int
    learning_rate: float
    momentum: float = 0.9

    @property
    def exchanges(self) -> tuple[ToServer, ...]:  # what is played in a round: the server asks, and hears one sum
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (ToServer("gradients", fields, self.ask, self.answer, self.absorb),)

    def check(self) -> list[str]:  # what does not fit, in words
        return check_rows(self.problem, self.batch_size)

    def start_server(self, now: Round) -> Server:
        model = start_model(self.problem, now)
        return Server(model, zeros(model))

    def ask(self, server: Server, now: Round) -> Parameters:
        return server.model

    def answer(self, clients: tuple[()], model: Parameters, block: Block, now: Round) -> tuple[tuple[()], Weighted]:
        weight = self.problem.weights[block.clients]  # of the clients of a block, as leading axis
        batch = block.take(block.draw(now, "minibatch", self.batch_size))
        slopes = gradient(self.problem.objective, model, batch.X, batch.y, weight[:, None] / self.batch_size)
        return clients, Weighted(slopes, weight)

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        velocity = map_leaves(lambda v, g: np.float32(self.momentum) * v + g, server.velocity, mean(total))
        model = map_leaves(lambda w, v: w - np.float32(self.learning_rate) * v, server.model, velocity)
        return Server(model, velocity)

    def reveals(self, received: Received) -> Iterator[MeanGradient]:  # for `mpifed audit`: what answers tell of rows
        if received.answered_by(self.answer):
            weight = received.answer.weight
            slopes = map_leaves(lambda leaf: leaf / weight, received.answer.value)  # of the loss, without penalties
            yield MeanGradient(model=received.question, gradient=slopes, batch=self.batch_size)
