"""How uploads are aggregated over ranks: the plain channel, which is the base class of the secure ones.

All channels add the same integers, so a run has the same bits in each of them; they differ in who can see what. A
channel adds the sealed (masked or encrypted) answers of this rank's clients, reduces them over the ranks, and opens the
sum for those who may receive it: rank 0, or the ranks that host clients who hear it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from mpifed.comm.costs import Account, Spent
from mpifed.comm.mpi import Comm
from mpifed.comm.sums import INTEGER_BYTES, Message, Place, Sum, names_field
from mpifed.core.errors import MpifedError, TooFewClients
from mpifed.core.exchange import answering, hearing
from mpifed.core.holdings import Holdings, of_columns
from mpifed.core.record import Array, Flags, Integers, Record, leaves, map_leaves, nbytes
from mpifed.core.round import SETUP, Arrivals, Round


class Protection(NamedTuple):
    """Security of aggregation, as the job sets it."""

    channel: str = "plain"
    min_clients: int = 2  # fewest whose sum may be opened
    allow: tuple[str, ...] = ()  # exchanges or fields where single clients' values may be opened nevertheless
    max_dropouts: int = 0  # how many clients may leave within a round

    def allows(self, place: Place) -> bool:
        """Whether single clients' values of a field may be opened."""
        return any(names_field(name, place.name) for name in self.allow)


class ChannelSetting(NamedTuple):
    """What a channel knows about ranks and clients; of this rank."""

    comm: Comm
    hosted: Integers  # clients of this rank, ascending
    clients: int  # N
    protection: Protection = Protection()


Payload: TypeAlias = "bytes | np.ndarray"
Tap: TypeAlias = Callable[[int, str, Payload], None]  # of a client, what it sends, and its bytes: keys, shares


class Kept:
    """A memory in which absent clients go on counting: what each has sent, and the sum that the server keeps of it."""

    def __init__(self, clients: int) -> None:
        self.sent: dict[int, Array] = {}  # by client of this rank: the integers at its own positions
        self.answered = np.zeros(clients, dtype=bool)  # [N] whether each client ever has; alike on all ranks
        self.total: Any = 0  # on rank 0: of what all have sent, in the form in which it travels
        self.moved: dict[int, int] = {}  # masked, for clients: the turn of the stream under which each unit stands


class Plan:
    """What an exchange reuses whenever it is played, on this rank."""

    def __init__(self, message: Message, channel: Channel, kept: Kept | None = None) -> None:
        """`kept` is given for an exchange with `keeps`."""
        self.exchange, self.message, self.channel, self.kept = message.exchange, message, channel, kept
        self.sum = Sum(message)
        self.withheld = np.zeros(0, np.int64)  # positions at which the last answers stand in this round
        self.reduced = np.empty_like(self.sum.numbers)  # the opened sum, where this rank may use it
        self.account = Account()
        self.noted = False  # whether every field has had values of many steps of its grid
        self.spent: Spent
        self.counted_for: bytes | None = None  # the participation for which `spent` holds

    @cached_property
    def _alone(self) -> Sum:
        return Sum(self.message)

    def integers(self, answer: Record, i: int, client: int) -> Integers:
        """[m] the `i`-th client's answer on the grids, until the next call; NumericalError if it is out of bounds."""
        self._alone.begin(True)
        self._alone.add(map_leaves(lambda leaf: leaf[i : i + 1], answer), np.array([client]))
        return self._alone.numbers[:-1]

    def change(self, integers: Integers, client: int) -> Integers:
        """[m] what a client of this rank adds to the sum: its integers, or how they differ from what it sent before.

        Called once for each answer, which is from then on what the client has sent. Differences may wrap around, and do
        so back in the sum.
        """
        if self.kept is None:
            return integers
        own, change = self.message.own(client), np.zeros_like(integers)
        before = self.kept.sent.get(client, 0)
        change[own] = integers[own] - before
        change[self.withheld] = 0
        self.kept.sent[client] = before + change[own]
        return change


class Channel:
    """Plain: the server, and every rank on the way, can read each upload."""

    name = "plain"

    def __init__(self, setting: ChannelSetting) -> None:
        self.setting = setting
        self.comm, self.hosted, self.clients, self.protection = setting
        self.tap: Tap = lambda client, what, payload: None  # told what clients send beside uploads
        self.keys = Account()  # of the key agreement

    def prepare(self, plans: list[Plan]) -> None:
        """Agree on keys and test them on messages of the sizes to come. Collective; once, before the first exchange."""

    def begin(self, plan: Plan, now: Round) -> None:
        """Prepare for the answers of one exchange. Called on all ranks alike."""
        plan.sum.begin(plan.kept is None)
        if plan.kept is not None:
            plan.kept.answered[answering(plan.exchange, now)] = True
            plan.withheld = withheld(plan.message, self.protection, now.present)

    # of `Sum.add`
    def add(self, plan: Plan, answer: Record, clients: Integers, now: Round, *more: Any) -> None:
        """Add the answers [n, ...] of `clients` [n] of this rank; in this channel with `more` of `Sum.add`."""
        plan.sum.add(answer, clients, *more)

    def add_one_by_one(self, plan: Plan, answer: Record, clients: Integers, now: Round) -> None:
        """As `add`, but each upload on its own: where it is recorded or encrypted, or goes on counting."""
        for i, client in enumerate(clients.tolist()):
            integers = plan.integers(answer, i, client)
            upload = self.seal(plan, integers, client, now)
            self.gather(plan, upload, client)

    def seal(self, plan: Plan, integers: Integers, client: int, now: Round) -> Array:
        """The client's upload: in the plain channel its integers [m], elsewhere their `Plan.change`."""
        upload: Array = integers.copy()
        return upload

    def sent(self, plan: Plan, upload: Array, client: int) -> Array:
        """The part of an upload that a deployment sends and that is counted: values of fields that the client fills."""
        return upload[plan.message.own(client)]

    def gather(self, plan: Plan, upload: Array, client: int) -> None:
        """Add a client's upload to the partial sum of this rank."""
        plan.sum.numbers[:-1] += plan.change(upload, client)

    def restore(self, plan: Plan) -> None:
        """Have all clients upload again what they have sent, after a restart has lost the server's sum. Collective."""
        kept = plan.kept
        if kept is None or kept.answered.any() or plan.exchange.answer is None:
            return
        for clients in self.comm.allgather(list(kept.sent)):
            kept.answered[clients] = True
        if not kept.answered.any():
            return
        now, before = Round(SETUP, 0, kept.answered.copy()), kept.sent
        kept.sent = {}
        self.begin(plan, now)
        for client, numbers in sorted(before.items()):
            integers = np.zeros(plan.message.size, np.int64)
            integers[plan.message.own(client)] = numbers
            self.gather(plan, self.seal(plan, integers, client, now), client)
        self.collect(plan, now)

    def collect(self, plan: Plan, now: Round) -> bool:
        """Sum over all ranks into `plan.reduced`; whether this rank may use it. Collective.

        The last number is the system's own, and always valid on rank 0.
        """
        received = self._reduce(plan, plan.exchange.hear is not None)
        self._keep(plan)
        return received

    def _reduce(self, plan: Plan, everywhere: bool) -> bool:
        """Sum over all ranks, and with what the server keeps, on rank 0 or everywhere; whether here. Collective."""
        if plan.kept is not None:
            plan.sum.numbers[:-1] += plan.kept.total
        reduced = plan.sum.reduce(self.comm, everywhere)
        if reduced is not None:
            plan.reduced = reduced
        return reduced is not None

    def _keep(self, plan: Plan) -> None:
        """Have the server keep the sum, where it goes on counting."""
        if plan.kept is not None and self.comm.rank == 0:
            plan.kept.total = plan.reduced[:-1].copy()

    def traffic(self, plan: Plan, now: Round) -> tuple[Integers, Integers]:
        """[n] bytes that each client who is asked uploads and receives, without the broadcast, as in a deployment."""
        exchange, message, asked = plan.exchange, plan.message, now.asked_ids
        up = message.sent(asked, coded=self.name == "plain") * (
            now.sending[asked] if exchange.answer is not None else 0
        )
        return up, message.received(asked) * np.isin(asked, hearing(exchange, now))

    def spent(self, plan: Plan, question: Record, columns: Holdings, now: Round) -> Spent:
        """Cost of running the exchange of a plan once, as in a deployment."""
        exchange, message, who = plan.exchange, plan.message, now.asked_ids
        up, down = self.traffic(plan, now)
        by_columns = sum(nbytes(leaf) for name, leaf in leaves(question) if name in of_columns(question))
        one = np.zeros(1, np.int64)
        came = now.arrivals or Arrivals(one, one, 0.0)
        clear = nbytes(question) - by_columns + by_columns // columns.length * columns.widths(who)
        clear = clear // len(came.models)  # of which each client is sent one
        vain = came.late + came.lost  # who receive nothing but the broadcast; those who are late upload their answer
        down = down + clear
        integers = message.sent(answering(exchange, now)) // INTEGER_BYTES
        to_clients, hides = exchange.hear is not None, not exchange.clear
        opened = message.received(hearing(exchange, now)).max(initial=0) if to_clients else message.nbytes
        return Spent(
            up_bytes=int(up.sum() + (came.late and came.late * up.min())),
            down_bytes=int(down.sum() + vain * clear.max(initial=0)),
            up_most=int(up.max(initial=0)),
            down_most=int(down.max(initial=0)),
            sealed_most=hides * int(integers.max(initial=0)),
            opened_most=hides * int(opened) // INTEGER_BYTES,
            up_clear=0 if exchange.clear or to_clients else message.nbytes,
            down_clear=int(clear.max(initial=0)),
            added=int(integers.sum()),
        )


# --- groups of clients too small for a sum to hide anybody: the sum of a single upload is that upload ----------------


def withheld(message: Message, protection: Protection, present: Flags) -> Integers:
    """Positions that a sum for the server leaves as they were, where absent clients go on counting.

    The difference of two such sums would be the changes of the few who are present and fill them.
    """
    places = [place for place in message.places if message.exchange.withholds and not protection.allows(place)]
    few = (np.flatnonzero(place.filled(present) < protection.min_clients) for place in places)
    parts = [np.r_[place.positions(at)] for place, at in zip(places, few, strict=True)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def refuse_small(
    sums: Iterable[tuple[Message, Round]], protection: Protection, error: type[MpifedError] = TooFewClients
) -> None:
    """An error on all ranks alike, naming fields, where one of these sums would be over too few clients.

    What is withheld from a sum is in none; in the set-up, all clients are present.
    """
    named = dict[str, str]()
    for message, now in sums:
        setup = now.index == SETUP
        for place in message.places if setup or not message.exchange.withholds else ():
            count = place.fewest(now.present)
            if 0 < count < protection.min_clients and not protection.allows(place):
                named.setdefault(place.name, str(count) if setup else f"{count} in round {now.index}")
    if not named:
        return
    listed = ", ".join(f"{name} ({word})" for name, word in named.items())
    allowed = ", ".join(f'"{name}"' for name in dict.fromkeys(name.partition(".")[0] for name in named))
    raise error(
        f"[aggregation] min_clients = {protection.min_clients}: sums over fewer clients are not opened, since no "
        f"channel hides single ones in them: {listed}; let more clients participate, or, if their values may be "
        f"known, allow them by name: [aggregation] allow = [{allowed}]",
        agreed=True,
    )
