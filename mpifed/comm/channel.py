"""How sums travel: the plain channel, and what every other channel is measured by.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed answers of this rank's clients, reduces them over the ranks, and opens the sum for those who
may hear it: rank 0 of a `ToServer` sum, the ranks that host hearers of a `ToClients` sum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.places import Place
from mpifed.comm.sums import ExactSum
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, Placed, ToClients
from mpifed.core.holdings import Cells, size
from mpifed.core.record import Layout, Record, map_leaves
from mpifed.core.round import Round


class Protection(NamedTuple):
    """How the job wants its sums to travel."""

    channel: str = "plain"
    min_clients: int = 2  # fewest whose sum may be opened
    allow: tuple[str, ...] = ()  # names of exchanges or fields whose single clients' values may be opened all the same
    max_dropouts: int = 0  # how many clients may leave within a round
    neighbours: int | None = None  # masked: clients with whom each shares masks; enough of them when absent
    scheme: str = "bfv"  # encrypted
    key_bits: int = 2048  # encrypted, of Paillier's modulus


class Setting(NamedTuple):
    """What a channel knows of the federation; of this rank."""

    transport: Transport
    hosted: NDArray[np.int64]  # clients of this rank
    clients: int  # N
    cells: Cells
    protection: Protection = Protection()
    rehearsed: bool = False  # other clients are not there at all: what it costs is all that counts


class Spent(NamedTuple):
    """What one play of an exchange costs, or all so far, as a deployment would have it; on rank 0."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_most: int = 0  # bytes of the client who sends most, each time
    down_most: int = 0  # of the client who is told most
    sealed_most: int = 0  # values that the client who sends most sends, where they are to be sealed
    opened_most: int = 0  # values that who opens most opens
    added: int = 0  # values that the server adds up


class Account:
    """What an exchange has cost so far."""

    up_bytes: int
    down_bytes: int

    def __init__(self) -> None:
        self.played = 0
        vars(self).update(Spent()._asdict())
        self.crypto_s = 0.0  # of this rank
        self.answer_s = 0.0  # of this rank: the slowest client's arithmetic, each time
        self.server_s = 0.0  # on rank 0: asking and absorbing
        self.work_s = 0.0  # of this rank: all that its clients do, and adding it up; gathered, the most of a rank
        self.idle_s = 0.0  # gathered: what the mean rank did less than that
        self.tell_s = 0.0  # of this rank: until it has the question; gathered, the least: that of who comes last
        self.sum_s = 0.0  # of this rank: until the sum over the ranks is there; gathered, the least
        self.wait_s = 0.0  # gathered: what the mean rank took longer, waiting for the last

    def add(self, spent: Spent) -> None:
        """One play more."""
        mine = vars(self)
        for name, value in zip(Spent._fields, spent, strict=True):
            mine[name] += value

    def numbers(self) -> dict[str, float]:
        """By name."""
        return dict(vars(self))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds within as cryptography."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.crypto_s += time.perf_counter() - start


class Memory:
    """What clients last answered, where that goes on counting; of this rank. A channel may keep more of its own."""

    def __init__(self, clients: int) -> None:
        self.last: dict[int, NDArray[Any]] = {}  # by client of this rank: its numbers, those of its own places alone
        self.answered = np.zeros(clients, dtype=bool)  # [N] who ever has; alike on all ranks
        self.sealed: Any = None  # what the server carries, as the channel keeps it


class Line:
    """What one exchange needs again every time it is played: its sums, and the buffers of its question."""

    def __init__(self, exchange: Exchange, make: Any, cells: Cells, memory: Memory | None = None) -> None:
        """`make` gives a new sum of the exchange's fields; `memory` is that of an exchange with stale answers."""
        self.exchange, self._make, self.cells, self.memory = exchange, make, cells, memory
        self.sum: Any = make()  # ExactSum or FloatSum
        self.reduced = np.empty_like(self.sum.message)  # the sum as it was opened, where this rank may use it
        self.layout: Layout | None = None
        self.buffer: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.sent = self.sum.nbytes_of(partial(Place.sizes, cells=cells))  # [N] bytes of each client's integers
        self.told = self.sum.nbytes_of(partial(Place.told, cells=cells))  # [N] of what each is told of the sum
        self.values = sum(place.field.size for place in self.sum.places)
        self.values_sent = sum(place.sizes(cells) for place in self.sum.places)  # [N] of each client
        self.values_told = sum(place.told(cells) for place in self.sum.places)  # [N]
        self.account, self.spent = Account(), Spent()
        self.counted_for: bytes | None = None  # of whom `spent` is
        self._alone: ExactSum | None = None
        self._positions: dict[tuple[str, int], slice | NDArray[np.int64]] = {}

    @property
    def alone(self) -> Any:
        """A sum for the answer of one client at a time."""
        if self._alone is None:
            self._alone = self._make()
        return self._alone

    def integers(self, answer: Record, i: int, client: int) -> NDArray[np.signedinteger]:
        """[m] what the answer of the `i`-th of several clients is on the grids; overwritten by the next one.

        Raises
        ------
        NumericalError
            when a value is not a number or outside its field's bound.
        """
        self.alone.begin(1)
        self.alone.add(one_of(answer, i), np.array([client]))
        found: NDArray[np.signedinteger] = self.alone.message[:-1]
        return found

    def positions(self, place: Place, client: int) -> slice | NDArray[np.int64] | None:
        """Where in the message the client's values of a field lie; None where another client sends them."""
        field = place.field
        if field.sender is not None and field.sender != client:
            return None
        held = self.cells.along(field)
        if held is None:
            return slice(place.start, place.stop)
        group = int(held.groups[client])
        found = self._positions.get((place.name, group))
        if found is None:
            found = self._positions[place.name, group] = places(place, held.members[group])
        return found

    def own(self, client: int) -> list[slice | NDArray[np.int64]]:
        """Where the client's values lie, field by field."""
        found = [self.positions(place, client) for place in self.sum.places]
        return [at for at in found if at is not None]

    def pick(self, message: NDArray[Any], client: int) -> NDArray[Any]:
        """A client's numbers, from a message [m]."""
        return np.concatenate([message[at] for at in self.own(client)])

    def put(self, message: NDArray[Any], client: int, numbers: NDArray[Any]) -> None:
        """Add a client's numbers to a message [m]."""
        start = 0
        for at in self.own(client):
            stop = start + size(at, len(message))
            message[at] += numbers[start:stop]
            start = stop

    def add_last(self) -> None:
        """Begin the message with what all clients of this rank have last answered."""
        assert self.memory is not None
        self.sum.message[:-1] = 0
        for client in sorted(self.memory.last):
            self.put(self.sum.message, client, self.memory.last[client])


def places(place: Place, at: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Where in a message the places `at` along a field's axis lie, in all its limbs."""
    whole = np.arange(place.start, place.stop).reshape(place.form.limbs, *place.field.shape)
    found: NDArray[np.int64] = whole[(slice(None),) * (int(place.field.axis or 0) + 1) + (at,)].ravel()
    if len(found) and found[-1] - found[0] == len(found) - 1 and (np.diff(found) == 1).all():
        return slice(int(found[0]), int(found[-1]) + 1)
    return found


def one_of(answer: Record, i: int) -> Record:
    """The answers [1, ...] of the `i`-th client."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Placed):
            return Placed(leaf.values[i : i + 1], leaf.at[i : i + 1], leaf.size, leaf.axis)
        return leaf[i : i + 1]

    return map_leaves(one, answer)


class Recorder(Protocol):
    """Takes down who sent what to whom; of this rank."""

    def question(self, line: Line, now: Round, question: Record) -> None:
        """What the server asks all who are asked."""

    def upload(self, line: Line, now: Round, client: int, upload: Any) -> None:
        """What leaves a client of this rank, as it travels."""

    def passed_on(self, line: Line, now: Round, message: Any) -> None:
        """What this rank hands to the others for its clients, added up."""

    def opened(self, line: Line, now: Round, total: Record) -> None:
        """The sum, on a rank that hears it."""

    def note(self, line: Line | None, now: Round | None, sender: str, receiver: str, what: str, payload: bytes) -> None:
        """Any other message: keys, shares."""


class Channel:
    """Plain: whoever carries an answer can read it."""

    name = "plain"

    def __init__(self, setting: Setting) -> None:
        self.setting, self.transport = setting, setting.transport
        self.recorder: Recorder | None = None
        self.keys = Account()  # of agreeing on keys

    def prepare(self, lines: list[Line]) -> None:
        """Agree on keys, and try them on what will be sent. Collective; once, before the first exchange."""

    def begin(self, line: Line, now: Round) -> None:
        """Make ready for the answers of one exchange. Called alike on all ranks."""
        there = answering(line.exchange, now)
        line.sum.begin(0 if self.recorder else int(there[self.setting.hosted].sum()))
        if line.memory is not None:
            line.memory.answered |= there

    def add(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers [n, ...] of `clients` [n] of this rank, as they leave the clients."""
        if line.memory is None:
            line.sum.add(answer, clients)
            return
        for i, client in enumerate(clients.tolist()):
            line.memory.last[client] = line.sum.numbers(one_of(answer, i), client)

    def add_one_by_one(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """The same, so that every client's message is there for a moment by itself."""
        for i, client in enumerate(clients.tolist()):
            integers = line.integers(answer, i, client)
            upload = self.seal(line, integers, client, now)
            if self.recorder is not None:
                self.recorder.upload(line, now, client, upload)
            self.gather(line, upload, client)
            if line.memory is not None:
                line.memory.last[client] = line.pick(integers, client)

    def seal(self, line: Line, integers: NDArray[np.signedinteger], client: int, now: Round) -> Any:
        """What leaves the client: here its integers [m]."""
        return integers.copy()

    def gather(self, line: Line, upload: Any, client: int) -> None:
        """Add what left a client to what this rank hands on."""
        if line.memory is None:
            line.sum.message[:-1] += upload

    def resend(self, line: Line, now: Round) -> None:
        """Have all clients send again what they last sent, for a memory that is this rank's no more. Collective."""

    def collect(self, line: Line, now: Round) -> bool:
        """Whether this rank may use `line.reduced`, where the sum over all ranks now is. Collective.

        The last number is the system's own, and always there on rank 0.
        """
        if line.memory is not None:
            line.add_last()
        line.sum.check(self.setting.hosted[answering(line.exchange, now)[self.setting.hosted]])
        if self.recorder is not None:
            self.recorder.passed_on(line, now, line.sum.message[:-1])
        reduced = line.sum.reduce(self.transport, isinstance(line.exchange, ToClients))
        if reduced is None:
            return False
        line.reduced = reduced
        return True

    def traffic(self, line: Line, now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes that each client sends, and is told, but for the question; as a deployment would send it."""
        return line.sent * answering(line.exchange, now), line.told * hearing(line.exchange, now)


def answering(exchange: Exchange, now: Round) -> NDArray[np.bool_]:
    """[N] who answers."""
    return np.zeros_like(now.present) if getattr(exchange, "silent", False) else now.present


def hearing(exchange: Exchange, now: Round) -> NDArray[np.bool_]:
    """[N] which clients are told the sum."""
    if not isinstance(exchange, ToClients) or now.void:
        return np.zeros_like(now.present)
    if exchange.hearer is None:
        return now.staying
    alone: NDArray[np.bool_] = np.arange(len(now.present)) == exchange.hearer
    return now.staying & alone


def make_channel(setting: Setting) -> Channel:
    """The channel that the setting names; its libraries are loaded now."""
    if setting.protection.channel == "masked":
        from mpifed.comm.masking.masked import Masked

        return Masked(setting)
    if setting.protection.channel == "encrypted":
        from mpifed.comm.encryption.encrypted import Encrypted

        return Encrypted(setting)
    return Channel(setting)

