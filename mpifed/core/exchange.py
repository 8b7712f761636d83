"""Exchanges: the server asks, the clients answer, the answers are summed, and the server or the clients absorb the sum.

Every algorithm is a sequence of exchanges, and `play` is the only loop over them. How answers are summed (exactly
or in floats, in the clear or not), where clients live and how many ranks there are is the business of a
`Summation`, which `mpifed.comm.aggregator` implements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import TypeVar

from mpifed.core.block import Block
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.privacy import Privacy
from mpifed.core.protocols import Dual, Limited, LinearModel, MeanTerm, Model, Proximal
from mpifed.core.record import AnyRecord, Array, Record, leaves, map_leaves
from mpifed.core.round import Round

Columns: TypeAlias = dict[str, float | None]  # of one row of the history
FirstNumbers: TypeAlias = dict[str, Any]  # numbers of the first iterate, in terms of JSON: any that JSON knows

# The classes of an exchange's records, which mypy takes from its functions: what `ask` gives, `answer` must take, and
# so on. They are covariant, so that an exchange of any records is a `ToServer`, as methods that give exchanges say. Who
# plays it calls its functions with what others of them gave.
Server = TypeVar("Server", bound=Record, default=Record, covariant=True)
Clients = TypeVar("Clients", bound=Record, default=Record, covariant=True)
Broadcast = TypeVar("Broadcast", bound=Record, default=Record, covariant=True)
Upload = TypeVar("Upload", bound=Record, default=Record, covariant=True)
Outcome = TypeVar("Outcome", bound=Record, default=Record, covariant=True)


# a client-state record for each block of this rank: a list, or a class of `mpifed.core.states`, of which each caller of
# `play` gets back what it gave
States: TypeAlias = Any
ServerRecord: TypeAlias = Any  # a record, or None on ranks that do not have it, which they know


if TYPE_CHECKING:  # stands in place of an array in a record, whose class says arrays
    _InPlaceOfArray = Array
else:
    _InPlaceOfArray = object


class Field(_InPlaceOfArray):
    """One summed quantity: its shape, and the grid on which it is added exactly.

    Where clients have parts of it only, the field says so, and only these are sent. A value that one client alone
    fills is that client's own, however sums are protected. (A class of its own and no NamedTuple, because it stands at
    the leaf of a record.)

    Parameters
    ----------
    shape : of the sum; answers are [n, *shape]
    scale : the grid: a client's value is rounded to a multiple of it
    bound : the largest absolute value of one client's; beyond it the run ends with a numerical error
    columns : the axis along which each client fills the places of its own columns, with an answer that is `Placed`;
        who else holds them adds to them
    rows : the same by its own rows; clients are sent their own rows only of such a sum
    sender : the one client whose answer counts
    whole : whether answers are whole multiples of `scale`, of which no digit may be lost: the sum is in float64, and
        neither scale nor bound is the job's to choose
    degree : in the targets of a regression: 1 of parameters, gradients and scores, 2 of losses, 4 of their squares, 0
        of counts and weights; scale and bound are multiplied by that power of `Problem.target_scale`
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (),
        scale: float = 2.0**-40,
        bound: float = 2.0**10,
        *,
        columns: int | None = None,
        rows: int | None = None,
        sender: int | None = None,
        whole: bool = False,
        degree: int = 1,
    ) -> None:
        self.shape, self.scale, self.bound = tuple(shape), float(scale), float(bound)
        self.whole, self.degree = whole, 0 if whole else degree
        self.columns, self.rows, self.sender = columns, rows, sender

    def __repr__(self) -> str:
        return f"Field({self.shape}, scale={self.scale}, bound={self.bound})"

    @property
    def axis(self) -> int | None:
        """The axis along which clients fill only their own positions; None where each fills all."""
        return self.rows if self.columns is None else self.columns

    @property
    def in_parts(self) -> bool:
        """Whether no client fills all of it, or only one does."""
        return self.axis is not None or self.sender is not None

    @property
    def size(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape, dtype=np.int64))


def fields_like(
    record: AnyRecord, scale: float = 2.0**-40, bound: float = 2.0**10, sender: int | None = None
) -> AnyRecord:
    """A field in the shape of each leaf of `record`."""
    return map_leaves(lambda leaf: Field(np.shape(leaf), scale, bound, sender=sender), record)


def fields_of(exchange: Exchange) -> dict[str, Field]:
    """By dotted name, the fields of an exchange."""
    return {name: cast("Field", field) for name, field in leaves(exchange.fields)}  # no array, though its class says so


class Placed(_InPlaceOfArray):
    """The answers of n clients to a field with `columns` or `rows`: each fills its own places along that axis.

    (A class of its own and no NamedTuple, because it stands at the leaf of a record.)

    Parameters
    ----------
    values : n arrays, of each client's own places
    at : n positions along the axis, in arrays or slices
    size : of the whole axis
    axis : its number, counted without that of the clients
    """

    def __init__(self, values: Sequence[Array], at: Sequence[Array | slice], size: int, axis: int = 0) -> None:
        self.values = values  # n arrays [..., p_i, ...]
        self.at = at
        self._size, self.axis = size, axis

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size(self) -> int:
        """The length of the whole axis."""
        return self._size

    def moved(self, move: Callable[[Array], Array]) -> Placed:
        """The same with `move` applied to each client's values."""
        return Placed([move(values) for values in self.values], self.at, self.size, self.axis)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:  # type: ignore[override]
        """[n, ...] with zeros in all other places."""
        shape = list(self.values[0].shape)
        shape[self.axis] = self.size
        whole: Array = np.zeros((len(self), *shape), dtype or self.values[0].dtype)
        for out, values, at in zip(whole, self.values, self.at, strict=True):
            out[(slice(None),) * self.axis + (at,)] = values
        return whole


class SomeAnswers(NamedTuple):
    """Answers of some clients of a block, to be added before the next ones take their place."""

    who: Array  # positions in the block
    answer: Any  # a record of the exchange's fields, leaves [n, ...]
    # of each leaf: an array of the field's shape, and the factor by which it is added to every answer; None: nothing
    public: Sequence[tuple[Array, float] | None] = ()


@dataclass(frozen=True)
class ToServer(Generic[Server, Clients, Broadcast, Upload]):
    """An exchange whose sum the server receives.

    `fused`, where an algorithm has it, gives the sum of the answers of all the clients of a block at once, from
    fewer and larger products. Sums by blocks use it; others take the answers one by one, so that every client's
    value is rounded to the grid by itself.

    With `stale`, the name of a memory, whoever does not answer counts with its last answer, and what is received is the
    sum over all clients; exchanges with one name share the memory, and have the same fields.
    """

    name: str  # what accounts of bytes and `[aggregation]` bounds and allow call it
    fields: Upload  # a record of `Field`, in the form of one client's upload; see `fields_like`, `weighted_fields`
    # (server, now) -> what is broadcast, a record of arrays; on the server
    ask: Callable[[Server, Round], Broadcast]
    # (clients, broadcast, block, now) -> (clients, upload), arrays [n, ...] in the form of `fields`; where a block is
    answer: Callable[[Clients, Broadcast, Block, Round], tuple[Clients, Upload]]
    # (server, total, now) -> server; `total` is the sum in the form of `fields`; on the server
    absorb: Callable[[Server, Upload, Round], Server]
    fused: Callable[[Broadcast, Block, Round], Upload] | None = None  # (broadcast, block, now) -> sum over its clients
    # (broadcast, block, now) -> the answers of all its clients, a few at a time, where they keep nothing: large ones
    # are then rounded and added while they are in the cache
    in_turn: Callable[[Broadcast, Block, Round], Iterator[SomeAnswers]] | None = None
    unread: tuple[str, ...] = ()  # fields of the clients' states that `answer` does not read, and which it may lack
    told_by_columns: tuple[str, ...] = ()  # leaves of the broadcast of which a client is sent its own columns, axis 0
    off_clock: bool = False  # run to measure: in float64, and in no account of bytes
    one_by_one: bool = False  # `answer` is called with one client after the other, since uploads are large
    private: bool = True  # protected as `[aggregation] security` says; if not, in the clear
    stale: str = ""  # the name of a memory of last answers
    returning: bool = False  # only who is back after a round without it takes part
    hearer: ClassVar[None] = None  # as in `ToClients`, for who looks at any exchange
    silent: ClassVar[bool] = False  # as in `ToClients`


@dataclass(frozen=True)
class ToClients(Generic[Server, Clients, Broadcast, Upload]):
    """An exchange whose sum the participating clients receive, and the server does not use.

    `stale` as in `ToServer`; the server keeps that sum in the form in which it travels. If `silent`, nobody answers,
    and what is kept is received.
    """

    name: str  # as in `ToServer`
    fields: Upload  # as in `ToServer`
    ask: Callable[[Server, Round], Broadcast]  # as in `ToServer`
    answer: Callable[[Clients, Broadcast, Block, Round], tuple[Clients, Upload]]  # as in `ToServer`
    # (clients, total, block, now) -> clients; `total` is the sum in the form of `fields`; where a block is
    absorb: Callable[[Clients, Upload, Block, Round], Clients]
    told_by_columns: tuple[str, ...] = ()  # as in `ToServer`
    off_clock: bool = False  # as in `ToServer`
    one_by_one: bool = False  # as in `ToServer`
    hearer: int | None = None  # the one client who is sent the sum; None: all who participate
    alike: bool = False  # all who receive it reach the same state: it is computed once on each rank
    private: bool = True  # as in `ToServer`
    stale: str = ""  # as in `ToServer`
    returning: bool = False  # as in `ToServer`
    silent: bool = False  # nobody answers: the sum is that of the memory
    fused: ClassVar[None] = None  # as in `ToServer`
    in_turn: ClassVar[None] = None  # as in `ToServer`
    unread: ClassVar[tuple[str, ...]] = ()  # as in `ToServer`


Exchange: TypeAlias = ToServer | ToClients


def _nothing(block: Block, clients: object) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Measure(Generic[Server, Outcome]):
    """Exchanges outside the measured time, run `turns` times, whose outcome becomes columns of the history.

    They have client states of their own, which may begin with what the algorithm's clients keep, and change nothing
    of it.
    """

    exchanges: tuple[Exchange, ...]
    start: Callable[[Server], Record]  # (server) -> what the exchanges take as the server's state
    # (server, that state at the end, what `first` has given of the first iterate) -> columns
    report: Callable[[Server, Outcome, FirstNumbers], Columns]
    start_clients: Callable[[Block, Record], Record] = _nothing  # (block, the algorithm's states) -> the measure's
    turns: int = 1
    certificate: tuple[str, ...] = ()  # the columns of a certificate, which is made when the job asks for one
    # (server, state at the end) -> numbers of the first iterate: every checkpoint holds them
    first: Callable[[Server, Outcome], FirstNumbers] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """The public facts of the task: the objective, and the size of each client's data."""

    objective: Model  # mpifed.maths.objectives.Objective
    split: str  # "rows", "columns" or "grid"
    counts: Array  # [N] rows of each client
    samples: int  # distinct rows of all clients
    features: int  # p, of all clients
    outputs: int  # classes, or 1 for a regression
    dtype: str = "float32"  # of models and of local arithmetic
    minimize: MeanTerm | None = None  # mpifed.maths.terms.Term whose mean is minimized, beside the objective's penalty
    constraints: tuple[Limited, ...] = ()  # mpifed.algorithms.functions.Constraint: terms and their limits
    measured_rows: int | None = None  # how many rows are drawn to be measured; all when absent
    regularizer: Proximal | None = None  # mpifed.maths.regularizers.Regularizer, added to what is minimized
    clients_per_round: int | None = None  # on average, where each comes by chance; all when absent
    privacy: Privacy | None = None  # its noise multiplier settled
    rows: Holdings | None = None  # who holds which; of every run
    columns: Holdings | None = None  # who holds which; of every run
    target_scale: float = 1.0  # a power of two near the size of real targets, by which grids are coarser and wider

    @property
    def clients(self) -> int:
        """N, the number of all clients."""
        return len(self.counts)

    @property
    def dual(self) -> Dual:
        """The dual of the loss, for algorithms that check that there is one."""
        assert self.objective.dual is not None  # `Algorithm.check` says so
        return self.objective.dual

    @property
    def linear(self) -> LinearModel:
        """The objective, for algorithms that need scores that are linear in the features."""
        return cast("LinearModel", self.objective)  # data split by columns or cells are refused with others

    @property
    def cells(self) -> Cells:
        """Which client holds which rows and which columns."""
        assert self.rows is not None and self.columns is not None  # set in every run
        return Cells(self.rows, self.columns)

    @cached_property
    def offsets(self) -> Array:
        """[N + 1] number of rows of all clients before each."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def weights(self) -> Array:
        """[N] number of rows of each client relative to the mean: 1 everywhere when shards are equal."""
        weights: Array = self.counts * (self.clients / self.counts.sum())
        return weights


class Summation(Protocol):
    """Broadcasts questions, collects and sums answers. Collective."""

    @property
    def serves(self) -> bool:
        """Whether this rank is the server."""

    @property
    def halted(self) -> bool:
        """Whether the server has said that the run ends here."""

    def serve(self, exchange: Exchange, work: Callable[..., Record], *given: object) -> ServerRecord:
        """The result of the server's part of an exchange; None where this rank is not the server."""

    def tell(self, exchange: Exchange, question: ServerRecord) -> ServerRecord:
        """The server's question, broadcast to every rank."""

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, ServerRecord]:
        """(client states, sum of the participating clients' answers); the sum only on ranks that may receive it."""

    def hear(self, exchange: ToClients, clients: States, total: ServerRecord, now: Round) -> States:
        """The states of the participating clients after each block has absorbed the sum."""


def play(
    exchanges: Sequence[Exchange], server: ServerRecord, clients: States, now: Round, summation: Summation
) -> tuple[ServerRecord, States]:
    """One round: every exchange in turn.

    Parameters
    ----------
    server : the server's state on rank 0, None elsewhere
    clients : a record for each block that this rank hosts

    Returns
    -------
    The new (server, clients); the old ones when the server halted the run with its first question, or when so many
    clients left that the round is void.
    """
    before = server, clients
    for number, exchange in enumerate(exchanges):
        here = now.at(number)
        if exchange.returning:
            here = here.back
            if not here.present.any():
                continue
        question = summation.tell(exchange, summation.serve(exchange, exchange.ask, server, here))
        if summation.halted and not exchange.off_clock:
            break
        clients, total = summation.tally(exchange, clients, question, here)
        if here.void:
            return before
        if isinstance(exchange, ToClients):
            clients = summation.hear(exchange, clients, total, here)
        else:
            server = summation.serve(exchange, exchange.absorb, server, total, here)
    return server, clients
