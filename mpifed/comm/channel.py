"""How sums travel: the plain channel, and what every other channel is measured by.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed answers of this rank's clients, reduces them over the ranks, and opens the sum for those who
may hear it: rank 0 of a `ToServer` sum, the ranks that host hearers of a `ToClients` sum.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.sums import ExactSum, Place
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, Placed, ToClients
from mpifed.core.record import Layout, Record, map_leaves
from mpifed.core.round import Round


class Holdings(NamedTuple):
    """Who holds which columns; public."""

    features: int
    groups: NDArray[np.int64]  # [N] each client's group of columns
    members: tuple[slice | NDArray[np.int64], ...]  # the columns of each group

    @property
    def widths(self) -> NDArray[np.int64]:
        """[N] columns of each client."""
        return np.array([size(at, self.features) for at in self.members], dtype=np.int64)[self.groups]

    @classmethod
    def all(cls, clients: int, features: int) -> Holdings:
        """Everybody holds every column."""
        return cls(features, np.zeros(clients, dtype=np.int64), (slice(0, features),))


def size(at: slice | NDArray[np.int64], length: int) -> int:
    """How many of `length` places."""
    return len(range(*at.indices(length))) if isinstance(at, slice) else len(at)


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
    columns: Holdings
    protection: Protection = Protection()
    rehearsed: bool = False  # other clients are not there at all: what it costs is all that counts


class Account:
    """What an exchange has cost so far."""

    def __init__(self) -> None:
        self.played = 0
        self.up_bytes = 0  # on rank 0: what a deployment would send
        self.down_bytes = 0
        self.crypto_s = 0.0  # of this rank

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


class Line:
    """What one exchange needs again every time it is played: its sums, and the buffers of its question."""

    def __init__(self, exchange: Exchange, make: Any, columns: Holdings) -> None:
        """`make` gives a new sum of the exchange's fields."""
        self.exchange, self._make, self._columns = exchange, make, columns
        self.sum: Any = make()  # ExactSum or FloatSum
        self.reduced = np.empty_like(self.sum.message)  # the sum as it was opened, where this rank may use it
        self.layout: Layout | None = None
        self.buffer: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.sent = self.sum.sent(columns.widths, columns.features)  # [N] bytes of each client's integers
        self.account = Account()
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
        self.alone.add(_one_of(answer, i), np.array([client]))
        found: NDArray[np.signedinteger] = self.alone.message[:-1]
        return found

    def positions(self, place: Place, client: int) -> slice | NDArray[np.int64] | None:
        """Where in the message the client's values of a field lie; None where another client sends them."""
        field = place.field
        if field.sender is not None and field.sender != client:
            return None
        if field.columns is None:
            return slice(place.start, place.stop)
        group = int(self._columns.groups[client])
        found = self._positions.get((place.name, group))
        if found is None:
            shape = (place.form.limbs, *field.shape)
            whole = np.arange(place.start, place.stop).reshape(shape)
            found = whole[(slice(None),) * (field.columns + 1) + (self._columns.members[group],)].ravel()
            if len(found) and found[-1] - found[0] == len(found) - 1:
                found = slice(int(found[0]), int(found[-1]) + 1)
            self._positions[place.name, group] = found
        return found


def _one_of(answer: Record, i: int) -> Record:
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
        line.sum.begin(0 if self.recorder else int(now.present[self.setting.hosted].sum()))

    def add(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers [n, ...] of `clients` [n] of this rank, as they leave the clients."""
        line.sum.add(answer, clients)

    def add_one_by_one(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """The same, so that every client's message is there for a moment by itself."""
        for i, client in enumerate(clients.tolist()):
            upload = self.seal(line, line.integers(answer, i, client), client, now)
            if self.recorder is not None:
                self.recorder.upload(line, now, client, upload)
            self.gather(line, upload)

    def seal(self, line: Line, integers: NDArray[np.signedinteger], client: int, now: Round) -> Any:
        """What leaves the client: here its integers [m]."""
        return integers.copy()

    def gather(self, line: Line, upload: Any) -> None:
        """Add what left a client to what this rank hands on."""
        line.sum.message[:-1] += upload

    def collect(self, line: Line, now: Round) -> bool:
        """Whether this rank may use `line.reduced`, where the sum over all ranks now is. Collective.

        The last number is the system's own, and always there on rank 0.
        """
        message, reduced = line.sum.message, line.reduced
        if self.recorder is not None:
            self.recorder.passed_on(line, now, message[:-1])
        if isinstance(line.exchange, ToClients):
            self.transport.reduce_all(message, reduced)
            return True
        serves = self.transport.rank == 0
        self.transport.reduce(message, reduced if serves else None)
        return serves

    def traffic(self, line: Line, now: Round) -> tuple[int, int]:
        """(up, down) bytes of all that is sent for a sum but the question, as a deployment would send it."""
        return int(line.sent[now.present].sum()), hearers(line, now) * line.sum.nbytes


def hearing(exchange: Exchange, now: Round) -> NDArray[np.bool_]:
    """[N] which clients are told the sum."""
    if not isinstance(exchange, ToClients) or now.void:
        return np.zeros_like(now.present)
    if exchange.hearer is None:
        return now.staying
    alone: NDArray[np.bool_] = np.arange(len(now.present)) == exchange.hearer
    return now.staying & alone


def hearers(line: Line, now: Round) -> int:
    """How many clients are told the sum."""
    return int(hearing(line.exchange, now).sum())


def make_channel(setting: Setting) -> Channel:
    """The channel that the setting names; its libraries are loaded now."""
    if setting.protection.channel == "masked":
        from mpifed.comm.masking.masked import Masked

        return Masked(setting)
    if setting.protection.channel == "encrypted":
        from mpifed.comm.encryption.encrypted import Encrypted

        return Encrypted(setting)
    return Channel(setting)

