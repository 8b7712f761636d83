"""Algorithms as a user may write them, named in jobs as "own_algorithms:..."; some of them go wrong on purpose."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Gt

from mpifed import FedAvg
from mpifed.core.algorithm import Algorithm
from mpifed.core.block import Block
from mpifed.core.exchange import Field, ToClients, ToServer
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.terms import Loss


@dataclass(frozen=True)
class Troubled(FedAvg):
    """FedAvg on whose client `at_client` something happens in round `at_round`, if $MPIFED_TEST_TROUBLE says what."""

    at_client: int = 6
    at_round: int = 5

    def start_clients(self, block: Block, now: Round) -> tuple[()]:
        self._happens("start", block, at_round=now.index)
        return super().start_clients(block, now)

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        clients, answer = super().answer(clients, question, block, now)
        if now.index == self.at_round and self.at_client in block.clients:
            trouble = os.environ.get("MPIFED_TEST_TROUBLE", "")
            self._happens(trouble, block, at_round=now.index)
            if trouble in ("nan", "inf", "large"):
                value = {"nan": np.nan, "inf": np.inf, "large": 1e9}[trouble]
                answer.value.first[np.flatnonzero(block.clients == self.at_client), 0, 0] = value
        return clients, answer

    def _happens(self, trouble: str, block: Block, at_round: int) -> None:
        if self.at_client not in block.clients or os.environ.get("MPIFED_TEST_TROUBLE") != trouble:
            return
        if trouble == "start":
            raise RuntimeError("trouble at the start")
        if trouble == "raise":
            raise RuntimeError("trouble in a round")
        if trouble in ("SIGKILL", "SIGUSR1", "SIGTERM"):
            os.kill(os.getpid(), getattr(signal, trouble))
        if trouble.startswith("sys.exit"):
            sys.exit(int(trouble[-1]))
        if trouble.startswith("os._exit"):
            os._exit(int(trouble[-1]))
        if trouble == "abort":
            os.abort()
        if trouble == "interrupt":
            raise KeyboardInterrupt
        if trouble == "file":
            Path("/no/such/file").read_text()
        if trouble == "memory":
            np.empty(2**60, dtype=np.uint8)
        if trouble == "thread":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
            threading.Event().wait()  # for what the thread was to bring
        if trouble == "forked":  # a process of its own may end as it likes
            child = os.fork()
            if child == 0:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


class TroubledSum(Troubled):
    """The same, where the clients' answers are summed block by block."""

    def fused(self, question: Any, block: Block, now: Round) -> Any:
        if now.index == self.at_round:
            self._happens(os.environ.get("MPIFED_TEST_TROUBLE", ""), block, at_round=now.index)
        return super().fused(question, block, now)


class Server(NamedTuple):
    """Server only."""

    model: Parameters


class Question(NamedTuple):
    """What the server asks for: nothing but the rows, which are drawn by key."""

    step: Array  # [] float64


class State(NamedTuple):
    """Of each client; on the rank that hosts it."""

    w: Array  # [n, p] its own columns' weights, zero elsewhere
    residual: Array  # [n, b] of the rows of this round, as heard


class Scores(NamedTuple):
    """What the clients hear the sum of."""

    partial: Array  # [n, b]


class Gradients(NamedTuple):
    """What the server hears the sum of."""

    placed: Array  # [n, p]


@dataclass(frozen=True)
class VerticalLeastSquares(Algorithm):
    """Least squares on data split by columns, by stochastic gradients: two exchanges, and clients with a memory.

    1. clients hear the sum of everybody's partial scores of `batch` rows; 2. the server hears their gradients,
    each in its own columns. A client steps by itself and never hears the others' weights.
    """

    batch_size: Annotated[int, Gt(0)]
    step: Annotated[float, Gt(0)] = 0.1

    @property
    def exchanges(self) -> tuple[ToClients | ToServer, ...]:
        p, b = self.problem.features, self.batch_size
        return (
            ToClients("scores", Scores(Field((b,))), self.ask, self.scores, self.hear),
            ToServer("gradients", Gradients(Field((p,))), self.ask, self.gradients, self.absorb),
        )

    @property
    def measures(self) -> tuple[()]:
        return ()

    def check(self) -> list[str]:
        return [] if self.problem.split == "columns" else ["[algorithm] name: needs data split by columns"]

    def start_server(self, now: Round) -> Server:
        return Server(Parameters(np.zeros((self.problem.features, 1), dtype=self.problem.dtype), ()))

    def start_clients(self, block: Block, now: Round) -> State:
        n, dtype = len(block.clients), self.problem.dtype
        return State(np.zeros((n, self.problem.features), dtype=dtype), np.zeros((n, self.batch_size), dtype=dtype))

    def ask(self, server: Server, now: Round) -> Question:
        return Question(np.float64(self.step))

    def rows(self, now: Round) -> Array:
        """[b] the same rows at every client."""
        return now.draw("rows", np.array([0]), np.array([self.problem.samples]), self.batch_size)[0]

    def scores(self, clients: State, question: Question, block: Block, now: Round) -> tuple[State, Scores]:
        parts = [self._of(shard, now) @ w[shard.columns] for shard, w in zip(block.shards, clients.w, strict=True)]
        return clients, Scores(np.stack(parts))

    def hear(self, clients: State, total: Scores, block: Block, now: Round) -> State:
        labels = np.stack([shard.y[self.rows(now)] for shard in block.shards])
        return clients._replace(residual=(total.partial - labels).astype(self.problem.dtype))

    def gradients(self, clients: State, question: Question, block: Block, now: Round) -> tuple[State, Gradients]:
        placed = np.zeros_like(clients.w)
        for shard, residual, into in zip(block.shards, clients.residual, placed, strict=True):
            into[shard.columns] = residual @ self._of(shard, now) / self.batch_size
        return clients._replace(w=clients.w - placed.dtype.type(question.step) * placed), Gradients(placed)

    def absorb(self, server: Server, total: Gradients, now: Round) -> Server:
        w = server.model.first
        return Server(Parameters(w - w.dtype.type(self.step) * total.placed[:, None], ()))

    def _of(self, shard: Any, now: Round) -> Array:
        """[b, p_i] this round's rows of one client."""
        rows = np.empty((self.batch_size, shard.features), dtype=self.problem.dtype)
        shard.take(self.rows(now), rows)
        return rows


@dataclass(frozen=True)
class Everywhere(Troubled):
    """Raises at every client."""

    def answer(self, clients: Any, question: Any, block: Block, now: Round) -> tuple[Any, Any]:
        raise RuntimeError("trouble everywhere")


@dataclass(frozen=True)
class OfNobody(Loss):
    """A term that counts no sample."""

    def counted(self, y: Array) -> Array:
        return np.zeros(y.shape, dtype=bool)
