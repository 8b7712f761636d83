"""An algorithm of your own: server momentum over FedSGD (FedAvgM of Hsu, Qi, Brown 2019, with one local step).

mpirun -n 4 mpifed run jobs/examples/own_algorithm.toml
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import add
from typing import Annotated, NamedTuple

from annotated_types import Ge, Lt

from mpifed.methods import (
    Block,
    Count,
    Exchange,
    MeanGradient,
    Parameters,
    Received,
    Round,
    Rows,
    Size,
    Weighted,
    beside,
    check_rows,
    map_leaves,
    mean,
    model_template,
    penalty_gradient,
    start_model,
    weighted_fields,
    zeros,
)  # fmt: skip


class Server(NamedTuple):  # what must survive a round; it is in every checkpoint
    model: Parameters
    velocity: Parameters


@dataclass(frozen=True)
class ServerMomentum(Rows):  # for data split by rows; the fields are the keys of [algorithm] in the job
    """FedSGD with momentum at the server."""  # `mpifed explain` shows this, the keys, and the text below each

    batch_size: Count  # an integer above 0
    """Rows that each client draws in a round."""
    learning_rate: Size  # a number above 0
    """Step of the server along its velocity."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Share of the velocity that stays from one round to the next."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:  # what is run in a round: here the server receives one sum
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (Exchange("gradients", fields, self.ask, self.answer, self.absorb),)

    def check(self) -> list[str]:  # what does not fit, in words
        return check_rows(self.problem, self.batch_size)

    def start_server(self, now: Round) -> Server:
        model = start_model(self.problem, now)
        return Server(model, zeros(model))

    def ask(self, server: Server, now: Round) -> Parameters:
        return server.model

    def answer(self, clients: tuple[()], model: Parameters, block: Block, now: Round) -> tuple[tuple[()], Weighted]:
        batch = block.take(block.draw(now, "minibatch", self.batch_size))
        weight = beside(batch.y, self.problem.weights[block.clients])  # of the block's clients, as leading axis
        slopes = self.problem.objective.gradient(model, batch.X, batch.y, weight[:, None] / self.batch_size)
        return clients, Weighted(slopes, weight)

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        slopes = map_leaves(add, mean(total), penalty_gradient(self.problem.objective, server.model))  # l2 is in here
        velocity = map_leaves(lambda v, g: self.momentum * v + g, server.velocity, slopes)
        model = map_leaves(lambda w, v: w - self.learning_rate * v, server.model, velocity)
        return Server(model, velocity)

    def reveals(self, received: Received) -> Iterator[MeanGradient]:  # for `mpifed audit`: what uploads tell of rows
        if received.answered_by(self.answer):
            weight = received.answer.weight
            slopes = map_leaves(lambda leaf: leaf / weight, received.answer.value)  # of the loss, without penalties
            yield MeanGradient(model=received.question, gradient=slopes)
