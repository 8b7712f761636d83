"""Methods that a user derives from mpifed's and changes in part, named in jobs as "own_methods:..."."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jobs.examples.own_local_steps import LocalSteps
from mpifed import FedAvg, FedPDM
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.record import map_leaves
from mpifed.core.refusals import Refusal
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
class SettingUp(FedAvg):
    """One whose clients would send something before the rounds that are counted."""

    @property
    def setup(self) -> Any:
        return self.exchanges


@dataclass(frozen=True)
class ByLoss(FedAvg):
    """One whose model would follow from the training loss, as measured without noise."""

    def measured(self, server: Any, columns: Any) -> Any:
        return server._replace(model=server.model + 1) if "train_loss" in columns else server


@dataclass(frozen=True)
class Counted(FedAvg):
    """One that would say itself how many local steps an epsilon counts."""

    @property
    def most_steps(self) -> int:  # type: ignore[override, misc]
        return 1


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


@dataclass(frozen=True)
class InPlace(FedAvg):
    """One that writes to what it was given, as to any array."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        assert len(change) == len(local.weight) == len(change[:, :1])
        change *= 4
        change[:] = change / 2
        return change


@dataclass(frozen=True)
class Keeping(FedAvg):
    """One that keeps its upload, and its change, as they are."""

    def start_client(self, x: Any) -> Any:
        return Two(x, x)

    def retain(self, own: Any, sent: Any, change: Any, upload: Any, local: Any) -> Any:
        return own._replace(change=change)

    def renew(self, own: Any, sent: Any, upload: Any, local: Any) -> Any:
        return own._replace(square=upload)


@dataclass(frozen=True)
class Spoiling(FedAvg):
    """One that writes to the model that other clients are sent, too."""

    def push(self, own: Any, sent: Any, local: Any) -> Any:
        sent.model[:] /= 2


@dataclass(frozen=True)
class Accumulating(FedAvg):
    """One that writes to what it keeps."""

    def start_client(self, x: Any) -> Any:
        return x * 0

    def push(self, own: Any, sent: Any, local: Any) -> Any:
        own += 0.001
        return own


def raw(sent: Any, local: Any) -> Any:
    """[n, p] the first row of each client."""
    return local.block.take(local.block.draw(local.now, "minibatch", 1)).X[:, 0]


@dataclass(frozen=True)
class Pushing(FedAvg):
    """One that adds what no noise is for."""

    gain = 1.0

    def push(self, own: Any, sent: Any, local: Any) -> Any:
        return raw(sent, local).sum() * sent.model


@dataclass(frozen=True)
class Beginning(FedAvg):
    """One that would begin elsewhere, and takes for granted what its base says of its own beginning."""

    def begin(self, own: Any, sent: Any, local: Any) -> Any:
        return sent.model - raw(sent, local).sum()


@dataclass(frozen=True)
class Again(FedAvg):
    """One that takes its local steps twice."""

    gain = 1.0

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change + local.change(sent.model)


@dataclass(frozen=True)
class Unchecked(Unknown):
    """One whose check has left out its base's."""

    def check(self) -> list[str]:
        return []


@dataclass(frozen=True)
class Unlisted(FedAvg):
    """One of two gradients a step, whose refusals are not its base's."""

    gain = 1.0

    def descend(self, move: Any, at: Any, model: Any, kept: Any) -> Any:  # type: ignore[override]
        return move(at) - move(model), None

    def conflicts(self) -> Iterator[Refusal]:
        yield from ()


@dataclass(frozen=True)
class Telling(FedPDM):
    """One that makes public what its base keeps to itself, and says nothing of that."""

    def hear(self, own: Any, memory: Any, local: Any) -> Any:  # type: ignore[override]
        return own._replace(dual=own.model)


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


@dataclass(frozen=True)
class SameTwice(InTwoParts):
    """One whose parts are in the same memory."""

    def like(self, x: Any) -> Two:
        return Two(x, x[-5:])

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Two:
        return Two(change, change[:, -5:])


@dataclass(frozen=True)
class Counting(InTwoParts):
    """One that also uploads a whole number."""

    def like(self, x: Any) -> Two:
        return Two(x, x[0])

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Two:
        return Two(change, np.full(len(local.weight), 3))

    def absorb(self, memory: Any, mean: Two, done: Any) -> tuple[Any, Any]:
        assert abs(mean.square - 3) < 1e-6
        return memory, mean.change
