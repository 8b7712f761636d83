"""Exchanges: the server asks, the clients answer, the answers are summed, and somebody absorbs the sum.

Every algorithm is a sequence of exchanges, and `play` is the only loop over them. How answers are summed (exactly
or in floats, in the clear or not), where clients live and how many ranks there are is the business of a
`Summation`, which `mpifed.comm.federation` implements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from mpifed.core.block import Block
from mpifed.core.record import Array, Record, map_leaves
from mpifed.core.round import Round

States: TypeAlias = list[Record]  # a client-state record for each block of this rank


class Field:
    """One summed quantity: its shape, and the grid on which it is added exactly.

    A value x is rounded to a multiple of `scale` and must lie within `bound`; both are per client. (A class of
    its own and no NamedTuple, because it stands at the leaf of a record.)
    """

    def __init__(self, shape: tuple[int, ...] = (), scale: float = 2.0**-40, bound: float = 2.0**10) -> None:
        self.shape, self.scale, self.bound = tuple(shape), float(scale), float(bound)

    def __repr__(self) -> str:
        return f"Field({self.shape}, scale={self.scale}, bound={self.bound})"

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))


def fields_like(record: Record, scale: float = 2.0**-40, bound: float = 2.0**10) -> Record:
    """A field in the shape of each leaf of `record`."""
    return map_leaves(lambda leaf: Field(np.shape(leaf), scale, bound), record)


@dataclass(frozen=True)
class ToServer:
    """An exchange whose sum the server hears.

    `fused`, where an algorithm has it, gives the sum of the answers of all the clients of a block at once, from
    fewer and larger products. Float sums use it; exact sums take the answers one by one, so that every client's
    value is rounded to the grid by itself.
    """

    name: str
    fields: Record  # of Field
    ask: Callable[[Any, Round], Record]  # (server, now) -> question; on the server, then broadcast
    answer: Callable[[Any, Record, Block, Round], tuple[Any, Record]]  # -> (clients, answer [n, ...])
    absorb: Callable[[Any, Record, Round], Any]  # (server, total, now) -> server
    fused: Callable[[Record, Block, Round], Record] | None = None  # (question, block, now) -> sum over its clients


@dataclass(frozen=True)
class ToClients:
    """An exchange whose sum the present clients hear, and the server does not use."""

    name: str
    fields: Record  # of Field
    ask: Callable[[Any, Round], Record]
    answer: Callable[[Any, Record, Block, Round], tuple[Any, Record]]
    absorb: Callable[[Any, Record, Block, Round], Any]  # (clients, total, block, now) -> clients


@dataclass(frozen=True)
class Measure:
    """An exchange played off the clock, whose sum becomes columns of the history."""

    name: str
    fields: Record  # of Field
    ask: Callable[[Any, Round], Record]
    answer: Callable[[Any, Record, Block, Round], tuple[Any, Record]]
    report: Callable[[Any, Record], dict[str, float]]  # (server, total) -> columns


Exchange: TypeAlias = ToServer | ToClients | Measure


@dataclass(frozen=True, eq=False)
class Problem:
    """What is public about the task: the objective, and who holds how much."""

    objective: Any  # mpifed.maths.objectives.Objective
    split: str  # "rows", "columns" or "grid"
    counts: Array  # [N] rows of each client
    samples: int  # distinct rows of all clients
    features: int
    outputs: int  # classes, or 1 for a regression
    dtype: str = "float32"

    @property
    def clients(self) -> int:
        """N, the number of all clients."""
        return len(self.counts)

    @cached_property
    def weights(self) -> Array:
        """[N] rows of each client relative to the mean client: 1 everywhere when the shards are equal."""
        return self.counts * (self.clients / self.counts.sum())


class Algorithm(Protocol):
    """A frozen dataclass of hyper-parameters with pure methods; `problem` is its first field."""

    @property
    def problem(self) -> Problem:
        """What is public about the task."""

    @property
    def exchanges(self) -> tuple[ToServer | ToClients, ...]:
        """What is played in one round, in this order."""

    @property
    def setup(self) -> tuple[ToServer | ToClients, ...]:
        """What is played once before round 0."""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What is summed over all rows, off the clock, to be reported."""

    def check(self) -> list[str]:
        """What does not fit between hyper-parameters and problem, one message each."""

    def start_server(self, now: Round) -> Record:
        """The server's state before round 0."""

    def start_clients(self, block: Block, now: Round) -> Record:
        """The clients' states before round 0, leading axis n; () when they keep none."""

    def model(self, server: Record) -> Record:
        """The model as it stands."""


class Summation(Protocol):
    """Tells questions, collects and adds answers. Collective."""

    @property
    def serves(self) -> bool:
        """Whether this rank is the server."""

    @property
    def halted(self) -> bool:
        """Whether the server has said that the run ends here."""

    def tell(self, exchange: Exchange, question: Record | None) -> Record:
        """The server's question, on every rank."""

    def tally(
        self, exchange: Exchange, clients: States, question: Record, now: Round
    ) -> tuple[States, Record]:
        """(client states, sum of the present clients' answers); the sum on those ranks that may hear it."""

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """The states of the present clients after each block has absorbed the sum."""


def play(
    exchanges: Sequence[ToServer | ToClients], server: Record, clients: States, now: Round, summation: Summation
) -> tuple[Record, States]:
    """One round: every exchange in turn.

    Parameters
    ----------
    server : the server's state on rank 0, None elsewhere
    clients : a record for each block that this rank hosts

    Returns
    -------
    The new (server, clients); the old ones when the server halted the run with its first question.
    """
    for exchange in exchanges:
        question = exchange.ask(server, now) if summation.serves else None
        question = summation.tell(exchange, question)
        if summation.halted:
            break
        clients, total = summation.tally(exchange, clients, question, now)
        if isinstance(exchange, ToClients):
            clients = summation.hear(exchange, clients, total, now)
        elif summation.serves:
            server = exchange.absorb(server, total, now)
    return server, clients
