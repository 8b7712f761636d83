"""How uploads are aggregated over ranks: the plain channel, which is the base class of the secure ones.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed (masked or encrypted) answers of this rank's clients, reduces them over the ranks, and opens the
sum for those who may receive it: rank 0 for `ToServer`, the ranks that host receiving clients for `ToClients`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.cost_accounts import CostAccount, Spent
from mpifed.comm.exchange_plan import ExchangePlan, answer_of
from mpifed.comm.rank_parts import rank_parts
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Record, leaves, nbytes
from mpifed.core.round import Round


class Protection(NamedTuple):
    """Security of aggregation, as the job sets it."""

    channel: str = "plain"
    min_clients: int = 2  # fewest whose sum may be opened
    allow: tuple[str, ...] = ()  # exchanges or fields where single clients' values may be opened nevertheless
    max_dropouts: int = 0  # how many clients may leave within a round


class ChannelSetting(NamedTuple):
    """What a channel knows about ranks and clients; of this rank."""

    transport: Transport
    hosted: NDArray[np.int64]  # clients of this rank
    clients: int  # N
    cells: Cells
    protection: Protection = Protection()


class Recorder(Protocol):
    """Records every message with its sender and receiver; of this rank."""

    def question(self, plan: ExchangePlan, now: Round, question: Record) -> None:
        """The server's broadcast."""

    def upload(self, plan: ExchangePlan, now: Round, client: int, upload: np.ndarray) -> None:
        """The upload of a client of this rank, as it is sent."""

    def passed_on(self, plan: ExchangePlan, now: Round, message: np.ndarray) -> None:
        """The partial sum of this rank's clients, as it enters the reduction."""

    def opened(self, plan: ExchangePlan, now: Round, total: Record) -> None:
        """The sum, on a rank that receives it."""

    def note(
        self, plan: ExchangePlan | None, now: Round | None, sender: str, receiver: str, what: str, payload: bytes
    ) -> None:
        """Any other message: keys, shares."""


class Channel:
    """Plain: the server, and every rank on the way, can read each upload."""

    name = "plain"

    def __init__(self, setting: ChannelSetting) -> None:
        self.setting, self.transport = setting, setting.transport
        self.recorder: Recorder | None = None
        self.keys = CostAccount()  # of the key agreement

    def prepare(self, plans: list[ExchangePlan]) -> None:
        """Agree on keys and test them on messages of the sizes to come. Collective; once, before the first exchange."""

    def begin(self, plan: ExchangePlan, now: Round) -> None:
        """Prepare for the answers of one exchange. Called on all ranks alike."""
        participating = answering(plan.exchange, now)
        plan.sum.begin(self.recorder is None and bool(participating[self.setting.hosted].any()))
        if plan.stale is not None:
            plan.stale.answered |= participating

    def add(self, plan: ExchangePlan, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers [n, ...] of `clients` [n] of this rank."""
        if plan.stale is None:
            plan.sum.add(answer, clients)
            return
        for i, client in enumerate(clients.tolist()):
            plan.stale.last[client] = plan.sum.numbers(answer_of(answer, i), client)

    def add_one_by_one(self, plan: ExchangePlan, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """As `add`, but forming each client's upload on its own, so that it can be recorded or encrypted."""
        for i, client in enumerate(clients.tolist()):
            integers = plan.integers(answer, i, client)
            upload = self.seal(plan, integers, client, now)
            if self.recorder is not None:
                self.recorder.upload(plan, now, client, self.sent(plan, upload, client))
            self.gather(plan, upload, client)
            if plan.stale is not None:
                plan.stale.last[client] = plan.pick(integers, client)

    def seal(self, plan: ExchangePlan, integers: NDArray[np.signedinteger], client: int, now: Round) -> np.ndarray:
        """The client's upload: in the plain channel its integers [m]."""
        upload: np.ndarray = integers.copy()
        return upload

    def sent(self, plan: ExchangePlan, upload: np.ndarray, client: int) -> np.ndarray:
        """The part of an upload that a deployment sends and that is counted: values of fields that the client fills."""
        return plan.pick(upload, client)

    def gather(self, plan: ExchangePlan, upload: np.ndarray, client: int) -> None:
        """Add a client's upload to the partial sum of this rank."""
        if plan.stale is None:
            plan.sum.message[:-1] += upload

    def resend(self, plan: ExchangePlan, now: Round) -> None:
        """Have all clients upload their last answers again, after a restart has lost the server's copy. Collective."""

    def collect(self, plan: ExchangePlan, now: Round) -> bool:
        """Sum over all ranks into `plan.reduced`; whether this rank may use it. Collective.

        The last number is the system's own (see `mpifed.comm.message_layout`), and always valid on rank 0.
        """
        if plan.stale is not None:
            plan.add_last()
        plan.sum.check()
        if self.recorder is not None:
            self.recorder.passed_on(plan, now, plan.sum.message[:-1])
        everywhere = isinstance(plan.exchange, ToClients)
        if plan.sum.by_rank is None and not everywhere and self.transport.size > 1:
            setting, itemsize = self.setting, plan.sum.message.itemsize
            plan.sum.by_rank = rank_parts(plan.sum.places, itemsize, setting.cells, setting.hosted, self.transport)
        reduced = plan.sum.reduce(self.transport, everywhere)
        if reduced is None:
            return False
        plan.reduced = reduced
        return True

    def traffic(self, plan: ExchangePlan, now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes that each client uploads and receives, without the broadcast, as in a deployment."""
        return plan.sent * answering(plan.exchange, now), plan.received * hearing(plan.exchange, now)

    def spent(self, plan: ExchangePlan, question: Record, now: Round) -> Spent:
        """Cost of running the exchange of a plan once, as in a deployment."""
        exchange, columns = plan.exchange, plan.cells.columns
        up, down = self.traffic(plan, now)
        by_columns = sum(nbytes(leaf) for name, leaf in leaves(question) if name in exchange.told_by_columns)
        clear = np.where(now.asked, nbytes(question) - by_columns, 0)
        clear += by_columns // columns.length * np.where(now.asked, columns.widths, 0)
        down, to_clients = down + clear, isinstance(exchange, ToClients)
        opened = (plan.values_received * hearing(exchange, now)).max() if to_clients else plan.values
        return Spent(
            up_bytes=int(up.sum()),
            down_bytes=int(down.sum()),
            up_most=int(up.max()),
            down_most=int(down.max()),
            sealed_most=int((plan.values_sent * answering(exchange, now)).max()) if exchange.private else 0,
            opened_most=int(opened) if exchange.private else 0,
            up_clear=plan.sum.nbytes if exchange.private and not to_clients else 0,
            down_clear=int(clear.max()),
            added=int(plan.values_sent @ answering(exchange, now)),
        )


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
