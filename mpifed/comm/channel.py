"""How sums travel: the plain channel, and what every other channel is measured by.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed answers of this rank's clients, reduces them over the ranks, and opens the sum for those who
may hear it: rank 0 of a `ToServer` sum, the ranks that host hearers of a `ToClients` sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accounts import Account
from mpifed.comm.line import Line, one_of
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Record
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

    def secrets(self) -> Iterator[bytes]:
        """The keys of this rank's clients, which no message may hold, and no server's rank; for the audit."""
        yield from ()

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
                self.recorder.upload(line, now, client, self.sent(line, upload, client))
            self.gather(line, upload, client)
            if line.memory is not None:
                line.memory.last[client] = line.pick(integers, client)

    def seal(self, line: Line, integers: NDArray[np.signedinteger], client: int, now: Round) -> Any:
        """What leaves the client: here its integers [m]."""
        return integers.copy()

    def sent(self, line: Line, upload: Any, client: int) -> Any:
        """What of that a deployment sends, as it is counted: the client's own numbers, none in places of others."""
        return line.pick(upload, client)

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
    return np.zeros_like(now.present) if exchange.silent else now.present


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
