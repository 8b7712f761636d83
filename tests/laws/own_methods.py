"""Methods that a user derives from mpifed's and changes in part, named in jobs as "own_methods:..."."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from mpifed import FedAvg
from mpifed.algorithms.horizontal import mean
from mpifed.algorithms.private import weighted, weights
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.core.record import map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block


class Doubling:
    """Uploads of twice what clients would send."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        clients, upload = super().answer(clients, question, block, now)  # type: ignore[misc]
        return clients, upload._replace(value=map_leaves(lambda leaf: leaf * 2, upload.value))


@dataclass(frozen=True)
class DoubledFedAvg(Doubling, FedAvg):
    """FedAvg that goes twice as far."""


@dataclass(frozen=True)
class DoubledSSCA(Doubling, SSCAHorizontal):
    """SSCA of twice the gradients."""


@dataclass(frozen=True)
class OneStep(FedAvg):
    """One step along the gradient, written out: without momentum, weight decay, noise or the seeds of dropout."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        rows = block.take(block.draw(now, "minibatch", self.batch_size))
        each = block.xp.full(rows.y.shape, -float(question.step) / self.batch_size, block.dtype)
        change = self.problem.objective.gradient(question.model, rows.X, rows.y, each)
        return clients, weighted(self.problem, change, weights(self.problem, block))


@dataclass(frozen=True)
class Copied(OneStep):
    """The same by a copy of the method."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        return OneStep.answer(deepcopy(self), clients, question, block, now)


@dataclass(frozen=True)
class Decaying(OneStep):
    """The same with weight decay, which it reads in the answer alone."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        clients, upload = super().answer(clients, question, block, now)
        keep = -float(question.step) * self.client_optimizer.weight_decay
        weight = weights(self.problem, block)
        decay = map_leaves(
            lambda leaf, w: leaf + keep * weight.reshape(-1, *[1] * w.ndim) * w, upload.value, question.model
        )
        return clients, upload._replace(value=decay)


@dataclass(frozen=True)
class MeanAlone(FedAvg):
    """A server that adds the mean change: no prox, no noise, no step of its own."""

    def absorb(self, server: Any, total: Any, now: Round) -> Any:
        change = mean(total)
        return server._replace(model=map_leaves(lambda w, d: w + d, server.model, change), steps=server.steps + 1)


@dataclass(frozen=True)
class Vouched(MeanAlone):
    """One whose author says that it has a prox, and what it releases."""

    regularized: ClassVar[bool] = True

    def released(self, index: int) -> Any:
        return super().released(index)
