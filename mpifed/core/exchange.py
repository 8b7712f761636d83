"""Exchanges: the server asks, the clients answer, the answers are summed, and the server or the clients absorb the sum.

Every algorithm is a sequence of exchanges, and `mpifed.comm.rounds.play` is the only loop over them. How answers are
summed, in the clear or not, where clients live and how many ranks there are is its business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeAlias, cast

import numpy as np
from typing_extensions import TypeVar

from mpifed.core.holdings import Holdings
from mpifed.core.record import Array, InPlaceOfArray, Integers, Record, leaves
from mpifed.core.round import Round

Block: TypeAlias = Any  # mpifed.data.block.Block, which stands above
Method: TypeAlias = Any  # an algorithm, or what its clients can do in a round: `mpifed.algorithms`, which stand above

# The classes of an exchange's records, which mypy takes from its functions: what `ask` gives, `answer` must take, and
# so on. They are covariant, so that one of any records is an `Exchange`, as methods that give exchanges say. Who plays
# it calls its functions with what others of them gave.
Server = TypeVar("Server", bound=Record, default=Record, covariant=True)
Clients = TypeVar("Clients", bound=Record, default=Record, covariant=True)
Broadcast = TypeVar("Broadcast", bound=Record, default=Record, covariant=True)
Upload = TypeVar("Upload", bound=Record, default=Record, covariant=True)


# a client-state record for each block of this rank: `mpifed.comm.states.ClientStates`, which stands above
States: TypeAlias = Any
ServerRecord: TypeAlias = Any  # a record, or None on ranks that do not have it, which they know


@dataclass(eq=False)
class Field(InPlaceOfArray):
    """One summed quantity: its shape, and the grid on which it is added exactly.

    A value that one client alone fills is that client's own, however sums are protected. (A class of its own and no
    NamedTuple, because it stands at the leaf of a record.)

    Parameters
    ----------
    shape : of the sum; answers are [n, *shape]
    scale : the grid: a client's value is rounded to a multiple of it
    bound : the largest absolute value of one client's; beyond it the run ends with a numerical error
    held : which client fills which places along `axis`, where not all fill all: only these are sent
    axis : along which
    to_holders : whether clients are sent the places alone that they hold
    sender : the one client whose answer counts
    whole : whether answers are whole multiples of `scale`, of which no digit may be lost: the sum is in float64, and
        neither scale nor bound is the job's to choose, nor do targets change them
    degree : in the targets of a regression: 1 of parameters, gradients and scores, 2 of losses, 4 of their squares, 0
        of counts and weights; scale and bound are multiplied by that power of `Problem.target_scale`
    coded : bytes of what a client sends of it in the plain channel, in place of its integers; None: these
    wide : whether the sum is in float64, whatever the job's dtype, as of what is measured
    """

    shape: tuple[int, ...] = ()  # type: ignore[override]
    scale: float = 2.0**-40
    bound: float = 2.0**10
    _: KW_ONLY
    held: Holdings | None = None
    axis: int = 0
    to_holders: bool = False
    sender: int | None = None
    whole: bool = False
    degree: int = 1
    coded: int | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        self.shape = tuple(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    def holdings(self, clients: int) -> Holdings | None:
        """Which of all clients fills which places along the axis; None where each fills all."""
        if self.sender is None:
            return self.held
        return Holdings.of_one(clients, self.sender, self.shape[0] if self.shape else 1)


OwnRecord: TypeAlias = Any  # [n, ...], a record of a method's own class


def fields_of(exchange: Exchange) -> dict[str, Field]:
    """By dotted name, the fields of an exchange."""
    return {name: cast("Field", field) for name, field in leaves(exchange.fields)}  # no array, though its class says so


@dataclass(frozen=True)
class Exchange(Generic[Server, Clients, Broadcast, Upload]):
    """The server asks, clients answer, answers are summed; the server absorbs the sum, or clients hear it.

    With `keeps`, the name of a memory, whoever does not answer counts with its last answer, and what is received is the
    sum over all clients; exchanges with one name share the memory, and have the same fields.
    """

    name: str  # what accounts of bytes and `[aggregation]` bounds and allow call it
    fields: Upload  # a record of `Field`, in the form of one client's upload; see `fields_like`, `weighted_fields`
    # (server, now) -> what is broadcast, a record of arrays; on the server
    ask: Callable[[Server, Round], Broadcast]
    # (clients, broadcast, block, now) -> (clients, upload), arrays [n, ...] in the form of `fields`, or `Lazy`; where a
    # block is. None: nobody answers, and what is kept is received
    answer: Callable[[Clients, Broadcast, Block, Round], tuple[Clients, Any]] | None
    # (server, total, now) -> server; `total` is the sum in the form of `fields`; on the server
    absorb: Callable[[Server, Upload, Round], Server] | None = None
    # instead of `absorb`, (clients, total, block, now) -> clients; where a block is
    hear: Callable[[Clients, Upload, Block, Round], Clients] | None = None
    who: Callable[[Round], Array] | None = None  # (now) -> [N] who takes part; all who are present
    hears: Callable[[Round], Array] | None = None  # (now) -> [N] who of these is sent the sum; all of them
    keeps: str = ""  # the name of a memory of last answers
    clear: bool = False  # in the clear in every channel, where a paper has it so

    @property
    def withholds(self) -> bool:
        """Whether what too few clients fill in a round stays as it was in the sum, since the server keeps two sums."""
        return bool(self.keeps) and self.hear is None and not self.clear

    def at(self, now: Round, number: int) -> Round:
        """The round as this exchange, the one of that number, has it."""
        here = now.at(number)
        return here if self.who is None else here.only(self.who(here))


def answering(exchange: Exchange, now: Round) -> Integers:
    """[n] the clients who answer, ascending."""
    return now.ids if exchange.answer is not None else np.zeros(0, np.int64)


def hearing(exchange: Exchange, now: Round) -> Integers:
    """[n] the clients who receive the sum, ascending."""
    if exchange.hear is None or now.void:
        return np.zeros(0, np.int64)
    staying = now.ids if now.leaving is None else np.flatnonzero(now.staying)
    return staying if exchange.hears is None else staying[exchange.hears(now)[staying]]
