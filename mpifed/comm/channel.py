"""How uploads are aggregated over ranks: the plain channel, which is the base class of the secure ones.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed (masked or encrypted) answers of this rank's clients, reduces them over the ranks, and opens the
sum for those who may receive it: rank 0 for `ToServer`, the ranks that host receiving clients for `ToClients`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accounts import Account
from mpifed.comm.line import Line, answer_of
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Record
from mpifed.core.round import Round


class Protection(NamedTuple):
    """Security of aggregation, as the job sets it."""

    channel: str = "plain"
    min_clients: int = 2  # fewest whose sum may be opened
    allow: tuple[str, ...] = ()  # exchanges or fields where single clients' values may be opened nevertheless
    max_dropouts: int = 0  # how many clients may leave within a round
    neighbours: int | None = None  # masked: clients with whom each shares masks; as many as are secure when None
    scheme: str = "bfv"  # encrypted
    key_bits: int = 2048  # encrypted, of Paillier's modulus


class Setting(NamedTuple):
    """What a channel knows about ranks and clients; of this rank."""

    transport: Transport
    hosted: NDArray[np.int64]  # clients of this rank
    clients: int  # N
    cells: Cells
    protection: Protection = Protection()
    rehearsed: bool = False  # clients of other ranks are not simulated: only costs are of interest


class Recorder(Protocol):
    """Records every message with its sender and receiver; of this rank."""

    def question(self, line: Line, now: Round, question: Record) -> None:
        """The server's broadcast."""

    def upload(self, line: Line, now: Round, client: int, upload: Any) -> None:
        """The upload of a client of this rank, as it is sent."""

    def passed_on(self, line: Line, now: Round, message: Any) -> None:
        """The partial sum of this rank's clients, as it enters the reduction."""

    def opened(self, line: Line, now: Round, total: Record) -> None:
        """The sum, on a rank that receives it."""

    def note(self, line: Line | None, now: Round | None, sender: str, receiver: str, what: str, payload: bytes) -> None:
        """Any other message: keys, shares."""


class Channel:
    """Plain: the server, and every rank on the way, can read each upload."""

    name = "plain"

    def __init__(self, setting: Setting) -> None:
        self.setting, self.transport = setting, setting.transport
        self.recorder: Recorder | None = None
        self.keys = Account()  # of the key agreement

    def prepare(self, lines: list[Line]) -> None:
        """Agree on keys and test them on messages of the sizes to come. Collective; once, before the first exchange."""

    def secrets(self) -> Iterator[bytes]:
        """Secret keys of this rank's clients, which no message and no rank of the server may hold; for the audit."""
        yield from ()

    def begin(self, line: Line, now: Round) -> None:
        """Prepare for the answers of one exchange. Called on all ranks alike."""
        participating = answering(line.exchange, now)
        line.sum.begin(0 if self.recorder else int(participating[self.setting.hosted].sum()))
        if line.memory is not None:
            line.memory.answered |= participating

    def add(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers [n, ...] of `clients` [n] of this rank."""
        if line.memory is None:
            line.sum.add(answer, clients)
            return
        for i, client in enumerate(clients.tolist()):
            line.memory.last[client] = line.sum.numbers(answer_of(answer, i), client)

    def add_one_by_one(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """As `add`, but forming each client's upload on its own, so that it can be recorded or encrypted."""
        for i, client in enumerate(clients.tolist()):
            integers = line.integers(answer, i, client)
            upload = self.seal(line, integers, client, now)
            if self.recorder is not None:
                self.recorder.upload(line, now, client, self.sent(line, upload, client))
            self.gather(line, upload, client)
            if line.memory is not None:
                line.memory.last[client] = line.pick(integers, client)

    def seal(self, line: Line, integers: NDArray[np.signedinteger], client: int, now: Round) -> Any:
        """The client's upload: in the plain channel its integers [m]."""
        return integers.copy()

    def sent(self, line: Line, upload: Any, client: int) -> Any:
        """The part of an upload that a deployment sends and that is counted: values of fields that the client fills."""
        return line.pick(upload, client)

    def gather(self, line: Line, upload: Any, client: int) -> None:
        """Add a client's upload to the partial sum of this rank."""
        if line.memory is None:
            line.sum.message[:-1] += upload

    def resend(self, line: Line, now: Round) -> None:
        """Have all clients upload their last answers again, after a restart has lost the server's copy. Collective."""

    def collect(self, line: Line, now: Round) -> bool:
        """Sum over all ranks into `line.reduced`; whether this rank may use it. Collective.

        The last number is the system's own (see `mpifed.comm.places`), and always valid on rank 0.
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
        """[N] bytes that each client uploads and receives, without the broadcast, as in a deployment."""
        return line.sent * answering(line.exchange, now), line.received * hearing(line.exchange, now)


def answering(exchange: Exchange, now: Round) -> NDArray[np.bool_]:
    """[N] whether each client answers."""
    return np.zeros_like(now.present) if exchange.silent else now.present


def hearing(exchange: Exchange, now: Round) -> NDArray[np.bool_]:
    """[N] whether each client receives the sum."""
    if not isinstance(exchange, ToClients) or now.void:
        return np.zeros_like(now.present)
    if exchange.hearer is None:
        return now.staying
    is_receiver: NDArray[np.bool_] = np.arange(len(now.present)) == exchange.hearer
    return now.staying & is_receiver


def make_channel(setting: Setting) -> Channel:
    """The channel that the setting names; its libraries are imported here."""
    if setting.protection.channel == "masked":
        from mpifed.comm.masking.masked import Masked

        return Masked(setting)
    if setting.protection.channel == "encrypted":
        from mpifed.comm.encryption.encrypted import Encrypted

        return Encrypted(setting)
    return Channel(setting)
