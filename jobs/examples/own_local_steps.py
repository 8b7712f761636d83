"""FedAvg written out: local steps with the learning rates of [client_optimizer], and the prox of a [regularizer].

mpirun -n 4 mpifed run jobs/examples/own_local_steps.toml
"""

from dataclasses import dataclass
from operator import add
from typing import ClassVar, NamedTuple

from mpifed.methods import (
    SGD,
    Block,
    Count,
    Exchange,
    Parameters,
    Repeats,
    Round,
    Rows,
    Weighted,
    beside,
    check_rows,
    column,
    map_leaves,
    mean,
    model_template,
    penalty_gradient,
    start_model,
    weighted_fields,
)  # fmt: skip


class Server(NamedTuple):
    model: Parameters


@dataclass(frozen=True)
class LocalSteps(Rows):
    """FedAvg whose clients take `local_steps` steps of SGD without momentum."""

    regularized: ClassVar[bool] = True  # takes [regularizer], and the model's nonconvex_penalty
    batch_size: Count
    """Rows in a minibatch."""
    client_optimizer: SGD  # a field of this name and type reads the table [client_optimizer]
    local_steps: Repeats = 5
    """Steps of a client in a round."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        fields = weighted_fields(self.problem, model_template(self.problem))
        return (Exchange("changes", fields, self.ask, self.answer, self.absorb),)

    def check(self) -> list[str]:
        wrong = check_rows(self.problem, self.batch_size)
        if special := self.client_optimizer.special:  # momentum and all else but plain steps
            wrong.append(f"[client_optimizer] {special}: the clients of this method take plain steps; leave it out")
        return wrong

    def start_server(self, now: Round) -> Server:
        return Server(start_model(self.problem, now))

    def ask(self, server: Server, now: Round) -> Parameters:
        return server.model

    def answer(self, clients: tuple[()], model: Parameters, block: Block, now: Round) -> tuple[tuple[()], Weighted]:
        n, size, xp = len(block.clients), self.batch_size, block.xp  # xp is numpy, or cupy on a GPU
        rate, decay = self.client_optimizer.at(now.index + 1), self.client_optimizer.weight_decay  # t from 1
        rows = block.take(block.draw(now, "minibatch", size * self.local_steps))  # all of a round in one draw
        each = xp.full((n, size), 1 / size, block.dtype)  # [n, s] the weight of each row in its minibatch
        models = map_leaves(lambda w: xp.broadcast_to(w, (n, *w.shape)), model)  # leaves [n, ...], one for each client
        for start in range(0, size * self.local_steps, size):
            batch = rows.rows(start, start + size)
            loss = self.problem.objective.gradient(models, batch.X, batch.y, each)
            slopes = map_leaves(add, loss, penalty_gradient(self.problem.objective, models))
            models = map_leaves(lambda w, g: w - rate * (g + decay * w), models, slopes)
        weight = beside(rows.y, self.problem.weights[block.clients])
        changes = map_leaves(lambda after, before: (after - before) * column(weight, after), models, model)
        return clients, Weighted(changes, weight)

    def absorb(self, server: Server, total: Weighted, now: Round) -> Server:
        model = map_leaves(add, server.model, mean(total))
        if self.problem.regularizer is not None:
            model = self.problem.regularizer.prox(model, self.client_optimizer.at(now.index + 1) * self.local_steps)
        return Server(model)
