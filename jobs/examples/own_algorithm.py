"""An algorithm of your own: server momentum over FedSGD (FedAvgM of Hsu, Qi, Brown 2019, with one local step).

mpirun -n 4 mpifed run jobs/examples/own_algorithm.toml
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import (
    Weighted,
    check_rows,
    mean,
    measures_of_rows,
    model_template,
    start_model,
    weighted_fields,
)
from mpifed.core.exchange import Problem, ToServer
from mpifed.core.record import map_leaves, zeros
from mpifed.core.reveals import MeanGradient
from mpifed.maths.objectives import Parameters, gradient


class Server(NamedTuple):  # what must survive a round; it is in every checkpoint
    model: Parameters
    velocity: Parameters


@dataclass(frozen=True)
class ServerMomentum:  # the fields after `problem` are the keys of [algorithm] in the job
    problem: Problem
    batch_size: int
    step: float
    momentum: float = 0.9

    setup = ()

    @property
    def exchanges(self):  # what is played in a round: here the server asks, and hears one sum
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (ToServer("gradients", fields, self.ask, self.answer, self.absorb),)

    @property
    def measures(self):
        return measures_of_rows(self)

    def check(self):
        return check_rows(self.problem, self.batch_size)

    def start_server(self, now):
        model = start_model(self.problem, now)
        return Server(model, zeros(model))

    def start_clients(self, block, now):
        return ()

    def ask(self, server, now):
        return server.model

    def answer(self, clients, model, block, now):  # at the clients of a block; leading axis: clients
        weight = self.problem.weights[block.clients]
        batch = block.take(block.draw(now, "minibatch", self.batch_size))
        slopes = gradient(self.problem.objective, model, batch.X, batch.y, weight[:, None] / self.batch_size)
        return clients, Weighted(slopes, weight)

    def absorb(self, server, total, now):  # at the server
        velocity = map_leaves(lambda v, g: np.float32(self.momentum) * v + g, server.velocity, mean(total))
        model = map_leaves(lambda w, v: w - np.float32(self.step) * v, server.model, velocity)
        return Server(model, velocity)

    def model(self, server):
        return server.model

    def reveals(self, received):  # for `mpifed audit`: what one client's answer, or the sum, tells of private rows
        if received.answered_by(self.answer):
            weight = received.answer.weight
            slopes = map_leaves(lambda leaf: leaf / weight, received.answer.value)  # of the loss, without penalties
            yield MeanGradient(model=received.question, gradient=slopes, batch=self.batch_size)
