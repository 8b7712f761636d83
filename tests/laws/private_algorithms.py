"""A private algorithm as a user may write one, with releases that are easy to count by hand."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.measure import Measure
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.privacy.release import Release


class Server(NamedTuple):
    """Server only."""

    model: Parameters


class Answer(NamedTuple):
    """What each client sends: noise and nothing else."""

    value: Array  # [n, p, 1]


@dataclass(frozen=True)
class Noise(Algorithm):
    """Every client's answer is `mechanisms` mechanisms.

    With `rates_by_participation`, the rate is the chance to take part, which counts for all clients in every round, and
    every number is 1, so that the sum counts who does.
    """

    mechanisms: int = 1
    rate: float = 1.0
    rates_by_participation: bool = False
    killed_in: Annotated[int, Ge(-1)] = -1  # the round in which the process ends itself, if $MPIFED_TEST_KILL says so

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        p = self.problem.features
        return (Exchange("noise", Answer(Field((p, self.problem.outputs))), self.ask, self.answer, self.absorb),)

    @property
    def measures(self) -> tuple[Measure, ...]:
        return (Measure((), lambda server: server, lambda server, found, first: {"train_loss": 1.0, "size": 2.0}),)

    def released(self) -> Release:
        ones, rate = np.ones(self.problem.clients), self.rate
        if self.rates_by_participation:
            rate = self.problem.clients_per_round / self.problem.clients
        z = ones * self.problem.privacy.noise_multiplier
        return Release(self.mechanisms, z, rate * ones, self.rates_by_participation, rate * ones)

    def start_server(self, now: Round) -> Server:
        return Server(Parameters(np.zeros((self.problem.features, self.problem.outputs), self.problem.dtype), ()))

    def ask(self, server: Server, now: Round) -> tuple[()]:
        return ()

    def answer(self, clients: tuple[()], question: tuple[()], block: Block, now: Round) -> tuple[tuple[()], Any]:
        if now.index == self.killed_in and 0 in block.clients and os.environ.get("MPIFED_TEST_KILL"):
            os.kill(os.getpid(), signal.SIGKILL)
        shape = self.problem.features, self.problem.outputs
        noise = now.normals("noise", block.clients, shape, self.problem.dtype)
        return clients, Answer(np.ones_like(noise) if self.rates_by_participation else noise)

    def absorb(self, server: Server, total: Answer, now: Round) -> Server:
        return Server(Parameters(server.model.first + total.value, ()))
