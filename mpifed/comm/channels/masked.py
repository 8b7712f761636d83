"""The masked channel: secure aggregation, in which clients add masks to their integers that cancel only in the sum.

For each client with which it shares a secret, a client adds a key stream that the other subtracts (Bonawitz,
Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth 2017, "Practical secure aggregation for
privacy-preserving machine learning", CCS; eprint 2017/281). So an ordinary reduction adds masked integers, and
reveals nothing but their sum. Masks between clients of the same rank are not cancelled beforehand: the clients are
separate parties. All parties are honest but curious, and may collude.

- A sum for the server: rank 0 uses it; unless clients may leave, all ranks have it in memory. Entries that a single
  client fills are not masked: the sum is its value.
- A sum for clients: each adds another key stream, under a group key that the server does not have.
- A sum in which absent clients go on counting: clients upload changes, and the server adds. What is for clients stands
  there under a stream of theirs; the first client that is asked and holds a unit moves it to the next stream, by adding
  the difference of the two to its upload, or else two of these sums would differ by the changes in clear.
- Where clients may leave within a round, see `mpifed.comm.channels.dropouts`: each also adds a self-mask.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

import numpy as np

from mpifed.comm.channels.base import Channel, ChannelSetting, Plan, refuse_small
from mpifed.comm.channels.dropouts import Dropouts, Turn
from mpifed.comm.channels.graph import MaskGraph, enough, order
from mpifed.comm.channels.keys import KEY_BYTES, STREAM_BYTES, Keyring, Mask, Pad, Stream, Turns, nonce
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import answering, hearing
from mpifed.core.record import Integers, Record
from mpifed.core.round import Round
from mpifed.data.roster import located

_FEW = 20  # up to this many clients every pair shares a mask: a third of so few could easily be one more
_STREAMS = 2**14  # cached from turn to turn: creating a stream takes as long as 5,000 of its numbers


class Masked(Channel):
    """Pairwise masks and a single reduction."""

    name = "masked"

    def __init__(self, setting: ChannelSetting) -> None:
        super().__init__(setting)
        keyring = self.keyring = Keyring(setting, self.keys)
        self.pad, self._turns = Pad(), Turns()
        self._stream = lru_cache(_STREAMS)(lambda i, j: Stream(keyring.key(i, j, b"streams", 0)))
        self._dropouts = Dropouts(setting, keyring, self.pad) if setting.protection.max_dropouts else None
        self._turn: Turn
        self._movers: dict[int, int] = {}  # of the turn: by unit of a kept sum for clients, who moves its stream
        self._graphs: dict[str, MaskGraph] = {}

    def neighbours(self, n: int) -> int:
        """Number of neighbours of each of n clients; n - 1 or more means all others."""
        return n - 1 if n <= _FEW else enough(n, self.protection.max_dropouts)

    def prepare(self, plans: list[Plan]) -> None:
        clients = self.clients
        self._publish(self.keyring.prepare())
        if self.comm.rank == 0:
            # all are introduced to their partners; the group key takes those of client 0 and its partners anyway
            sums = [plan for plan in plans if plan.exchange.answer is not None]
            up, down = self.keyring.setup_bytes
            if any(not unit.by_all for plan in sums for unit in plan.message.units):
                everybody, drawn = np.arange(clients), order(0, clients)  # as an example: rounds have their own
                graphs = [MaskGraph(plan.message, everybody, self.neighbours(clients), drawn) for plan in sums]
                met = [len(set[int]().union(*(graph.partners(n) for graph in graphs))) for n in range(clients)]
                down += KEY_BYTES * (sum(met) - 2 * met[0])
            elif sums:
                down += KEY_BYTES * min(self.neighbours(clients), clients - 1) * (clients - 2)
            self.keys.costs |= {"up_bytes": up, "down_bytes": down}

    def _publish(self, public: dict[int, bytes]) -> None:
        for client, key in public.items():
            self.tap(client, "public key", key)

    def _graph(self, plan: Plan, now: Round) -> MaskGraph:
        graph = self._graphs.get(plan.exchange.name)
        who = now.asked_ids if plan.exchange.answer is not None else np.zeros(0, np.int64)
        if graph is None or not np.array_equal(graph.asked, who):
            graph = MaskGraph(plan.message, who, self.neighbours(len(who)), order(now.seed, self.clients))
            self._graphs[plan.exchange.name] = graph
        return graph

    def begin(self, plan: Plan, now: Round) -> None:
        """Start a new turn; where clients may leave, they first share its secrets. Collective in that case."""
        super().begin(plan, now)
        self._publish(self.keyring.introduce(now.asked_ids))
        self._movers = {}
        if plan.kept is not None and plan.exchange.hear is not None and plan.exchange.answer is not None:
            holders = (np.flatnonzero(now.asked & unit.who) for unit in plan.message.units)
            self._movers = {number: int(who[0]) for number, who in enumerate(holders) if len(who)}
        self._turn = Turn(plan, now, self._graph(plan, now), self._turns.next())
        if self._dropouts is not None:
            self._dropouts.begin(self._turn, self.tap)

    def add(self, plan: Plan, answer: Record, clients: Integers, now: Round) -> None:
        """Add the answers and all masks of each client."""
        super().add(plan, answer, clients, now)
        with plan.account.timed():
            for client in clients.tolist():
                self._mask(plan.sum.numbers, client)

    def seal(self, plan: Plan, integers: Integers, client: int, now: Round) -> Integers:
        """What the client adds to the sum [m] with all its masks."""
        sealed = plan.change(integers.copy(), client)
        with plan.account.timed():
            self._mask(sealed, client)
        return sealed

    def gather(self, plan: Plan, upload: Integers, client: int) -> None:
        plan.sum.numbers[:-1] += upload

    def _mask(self, numbers: Integers, client: int) -> None:
        """Add all masks of a client to its integers, once in a turn."""
        self._turns.use(client)
        plan, _, graph, turn = self._turn
        now = nonce(turn)
        masks = defaultdict[tuple[int, ...], list[Mask]](list)  # by the units that they cover
        own, kept = plan.message.units_of(client), plan.kept
        for other, units in graph.partners(client).items():
            sign = 1 if client < other else -1
            if self._dropouts is None:
                stream = self._stream(client, other) if sign > 0 else self._stream(other, client)
                stream.begin(now)
            else:  # under a key of this turn alone
                stream = Stream(self._dropouts.message_key(client, other))
            masks[units].append((stream, sign))
        if self._dropouts is not None:
            masks[own].append((Stream(self._dropouts.seeds[client]), 1))
        if kept is None and plan.exchange.hear is not None:
            masks[own].append((self._of_clients(client, turn), 1))
        for unit in (unit for unit, mover in self._movers.items() if mover == client):
            masks[unit,].append((self._of_clients(self.clients + unit, turn), 1))
            if kept is not None and unit in kept.moved:
                masks[unit,].append((self._of_clients(self.clients + unit, kept.moved[unit]), -1))
        for units, streams in masks.items():
            self.pad.add(streams, numbers, plan.message.positions(units))

    def _of_clients(self, number: int, turn: int) -> Stream:
        """A stream that clients know and the server does not: of a client in a turn, or, from N on, of a kept unit."""
        return Stream(self.keyring.group[:STREAM_BYTES], nonce(turn, number))

    def collect(self, plan: Plan, now: Round) -> bool:
        """Reduce; on rank 0 remove the masks of clients that left; open the sum for its receivers. Collective.

        Raises TooFewClients on all ranks alike, before anything is opened: when the sum is over fewer clients than the
        job allows, or too many have left to open it; BrokenProtocol on all ranks alike, when shares were changed.
        """
        refuse_small([(plan.message, now)], self.protection)
        if self._dropouts is not None:
            self._dropouts.refuse()
        for client in [] if now.leaving is None else np.flatnonzero(now.asked & ~now.present).tolist():
            if self._dropouts is None or client in self._movers.values():
                raise TooFewClients(
                    f"{plan.exchange.name}: client {client} left before it uploaded, and streams that it alone can "
                    "remove would stay in the sum; set [participation] max_dropouts to the number of clients that may "
                    "leave, none of them the first of an exchange in which absent clients go on counting"
                )
        to_clients = plan.exchange.hear is not None
        received = self._reduce(plan, to_clients and self._dropouts is None)
        if self._dropouts is not None:
            self._dropouts.open(plan.reduced, self.tap)
            if to_clients:
                self.comm.Bcast(plan.reduced)
        self._keep(plan)
        if plan.kept is not None:
            plan.kept.moved |= dict.fromkeys(self._movers, self._turns.now)
        return self._hear(plan, now) if to_clients else received

    def _hear(self, plan: Plan, now: Round) -> bool:
        """Remove the clients' streams, if a client of this rank receives the sum; whether one does."""
        if not len(located(hearing(plan.exchange, now), self.hosted)):
            return False
        message, plan.reduced = plan.message, plan.reduced.copy()  # ranks may share it
        clients, turn = answering(plan.exchange, now).tolist(), self._turns.now
        sealed = [(client, turn, message.units_of(client)) for client in clients]
        if plan.kept is not None:
            sealed = [(self.clients + unit, turn, (unit,)) for unit, turn in plan.kept.moved.items()]
        with plan.account.timed():
            for number, turn, units in sealed:
                self.pad.add([(self._of_clients(number, turn), -1)], plan.reduced, message.positions(units))
        return True

    def traffic(self, plan: Plan, now: Round) -> tuple[Integers, Integers]:
        """[n] bytes of uploads and shares, and of what each client receives: shares, sums, keys of new partners."""
        up, down = super().traffic(plan, now)
        graph = self._graph(plan, now)
        if not len(graph.asked):
            return up, down
        if len(graph.asked) < self.clients:  # drawn anew in every round
            down = down + KEY_BYTES * graph.degrees
        if self._dropouts is not None:
            more_up, more_down = self._dropouts.traffic(now, graph)
            up, down = up + more_up, down + more_down
        return up, down
