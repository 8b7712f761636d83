"""Algorithms of a user, named in jobs as "own_reveals:..."; some say what answers reveal, and some say it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mpifed import FedAvg
from mpifed.algorithms.algorithm import Measure
from mpifed.algorithms.initial import model_template, start_model
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.reveals import DualSum, MeanGradient, Received
from mpifed.algorithms.rows import Rows
from mpifed.algorithms.ssca import SSCAHorizontal, SSCAVertical
from mpifed.core.exchange import Exchange
from mpifed.core.record import map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Problem, Weighted, mean, weighted_fields
from mpifed.testing import ALGORITHMS


class Renamed:
    """An algorithm all of whose exchanges have other names."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(replace(one, name=f"a {one.name}"[::-1]) for one in super().exchanges)  # type: ignore[misc]

    @property
    def setup(self) -> tuple[Exchange, ...]:
        return tuple(replace(one, name=f"b {one.name}"[::-1]) for one in super().setup)  # type: ignore[misc]

    @property
    def measures(self) -> tuple[Measure, ...]:
        def renamed(measure: Measure) -> Measure:
            played = tuple(replace(one, name=f"c {one.name}"[::-1]) for one in measure.exchanges)
            return replace(measure, exchanges=played)

        return tuple(renamed(one) for one in super().measures)  # type: ignore[misc]

    def released(self) -> Any:  # the same, says who changes no more than names
        return super().released()  # type: ignore[misc]


def renamed(name: str) -> str:
    """Under what name in jobs an algorithm of mpifed plays exchanges of other names."""
    of_split = {"ssca-horizontal": SSCAHorizontal, "ssca-vertical": SSCAVertical}
    base = of_split[name] if name in of_split else ALGORITHMS[name]
    kind = f"Renamed{base.__name__}"
    globals().setdefault(kind, type(kind, (Renamed, base), {"__module__": __name__}))
    return f"own_reveals:{kind}"


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


class Said(Raw):
    """The same, which says so."""

    def reveals(self, received: Received) -> Iterator[MeanGradient]:
        if received.answered_by(self.answer):
            weight = received.answer.weight
            found = map_leaves(lambda leaf: leaf / weight, received.answer.value)
            yield MeanGradient(received.question, found)


class Cubed(FedAvg):
    """FedAvg but for what clients send: of that FedAvg says what it no longer is."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change**3


# --- what is said wrong -------------------------------------------------------------------------------------


def _gradient(received: Received, value: Any, question: Any = None) -> list[MeanGradient]:
    return [MeanGradient(received.question if question is None else question, value)]


def _overwrites(self: Any, received: Received) -> tuple[()]:
    received.answer.value.first[...] = 0
    return ()


def _telling(base: type, what: dict[str, Any]) -> None:
    """Classes of these names, which say this instead."""
    for name, reveals in what.items():
        globals()[name] = type(name, (base,), {"__module__": __name__, "reveals": reveals})


_telling(Raw, {
    "Overwrites": _overwrites,
    "Raises": lambda self, received: _gradient(received, received.answer.value, received.question.modell),
    "WrongShape": lambda self, received: _gradient(
        received, received.answer.value._replace(first=received.answer.value.first.T)
    ),
    "WrongSum": lambda self, received: [DualSum(received.answer.value.first, change=True)],
    "NoKind": lambda self, received: [received.answer.value],
})  # fmt: skip
