"""Methods that a user derives from mpifed's and changes in part, named in jobs as "own_methods:..."."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from jobs.examples.own_local_steps import LocalSteps
from mpifed import FedAvg
from mpifed.algorithms.horizontal import check_rows
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.record import map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block


@dataclass(frozen=True)
class DoubledFedAvg(FedAvg):
    """FedAvg that goes twice as far."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change * 2

    def prox_step(self, done: Any) -> float:
        return 2 * super().prox_step(done)


@dataclass(frozen=True)
class DoubledSSCA(SSCAHorizontal):
    """SSCA of twice the gradients."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        clients, upload = super().answer(clients, question, block, now)
        return clients, upload._replace(value=map_leaves(lambda leaf: leaf * 2, upload.value))


@dataclass(frozen=True)
class Answering(FedAvg):
    """One that would answer otherwise than its base says of it."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:  # type: ignore[misc]
        return super().answer(clients, question, block, now)


@dataclass(frozen=True)
class Unknown(FedAvg):
    """One whose upload no factor relates to the local steps."""

    gain = None

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change**3


@dataclass(frozen=True)
class Plain(LocalSteps):
    """Local steps written out, whose author has not thought of momentum, or of Nesterov's form."""

    def check(self) -> list[str]:
        return check_rows(self.problem, self.batch_size)


@dataclass(frozen=True)
class Thoughtful(LocalSteps):
    """The same with momentum 0, by its author's word."""

    def check(self) -> list[str]:
        return check_rows(self.problem, self.batch_size)

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        assert self.client_optimizer.momentum > 0
        return super().answer(clients, question, block, now)


class Two(NamedTuple):
    change: Any
    square: Any


@dataclass(frozen=True)
class InTwoParts(FedAvg):
    """One that also uploads how long its change is."""

    def like(self, x: Any) -> Two:
        return Two(x, x[:1])

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Two:
        return Two(change, (change**2).sum(axis=1, keepdims=True))

    def absorb(self, memory: Any, mean: Two, done: Any) -> tuple[Any, Any]:
        return memory, mean.change
