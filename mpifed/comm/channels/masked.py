"""The masked channel: secure aggregation, in which clients add masks to their integers that cancel only in the sum.

For each client with which it shares a secret, a client adds a key stream that the other subtracts (Bonawitz,
Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth 2017, "Practical secure aggregation for
privacy-preserving machine learning", CCS; eprint 2017/281). So an ordinary reduction adds masked integers, and
reveals nothing but their sum. Masks between clients of the same rank are not cancelled beforehand: the clients are
separate parties. All parties are honest but curious, and may collude.

- A sum for the server: rank 0 receives it. Entries that a single client fills are not masked: the sum is its value.
- A sum for clients: each adds another key stream, under a group key that the server does not have.
- Where last answers are kept, see `mpifed.comm.channels.kept`: clients upload changes.
- Where clients may leave within a round, see `mpifed.comm.channels.dropouts`: each also adds a self-mask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channels.base import Channel, ChannelSetting, Plan, refuse_small
from mpifed.comm.channels.dropouts import Dropouts, Turn, threshold
from mpifed.comm.channels.graph import MaskGraph, enough, order
from mpifed.comm.channels.kept import SealedTotal
from mpifed.comm.channels.keys import Keyring
from mpifed.comm.channels.streams import Mask, Pad, Stream, Turns, nonce
from mpifed.comm.sums import Positions
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import answering, hearing
from mpifed.core.record import Record
from mpifed.core.round import Round

_FEW = 20  # up to this many clients every pair shares a mask: a third of so few could easily be one more
_STREAMS = 2**14  # cached from turn to turn: creating a stream takes as long as 5,000 of its numbers


class Masked(Channel):
    """Pairwise masks and a single reduction."""

    name = "masked"

    def __init__(self, setting: ChannelSetting) -> None:
        """Raises UsageError when more clients may leave than their neighbours can compensate."""
        super().__init__(setting)
        self.keyring = Keyring(setting)
        self.pad, self._turns = Pad(), Turns()
        self._dropouts: Dropouts | None = None  # None where nobody may leave
        self._most = setting.protection.max_dropouts
        if self._most:
            threshold(min(setting.clients - 1, self.neighbours(setting.clients)), self._most)
            self._dropouts = Dropouts(setting, self.keyring, self.pad)
        self._streams: dict[tuple[int, int], Stream] = {}
        self._group: Stream | None = None
        self._nonce = nonce(0)  # of the turn
        self._graphs: dict[str, tuple[bytes, MaskGraph]] = {}

    def neighbours(self, n: int) -> int:
        """Number of neighbours of each of n clients; n - 1 or more means all others."""
        return n - 1 if n <= _FEW else enough(n, self._most)

    def prepare(self, plans: list[Plan]) -> None:
        self.keyring.prepare(self.keys.timed)
        self._streams.clear()
        self._group, self._turns = None, Turns()
        if self.comm.rank == 0:
            self.keys.costs["up_bytes"] += self.keyring.setup_up_bytes
            self.keys.costs["down_bytes"] += self.keyring.setup_down_bytes
        if self.recorder is not None:
            for client in self.setting.hosted.tolist():
                public = self.keyring.public[client].tobytes()
                self.recorder.note(None, None, f"client {client}", "server", "public key", public)

    def _turn(self, plan: Plan, now: Round) -> Turn:
        name, asked = plan.exchange.name, now.asked
        cached = self._graphs.get(name)
        if cached is None or cached[0] != asked.tobytes():
            who = np.flatnonzero(asked)
            places = order(now.seed, self.setting.clients)
            graph = MaskGraph(plan.message, who, self.neighbours(len(who)), places)
            cached = self._graphs[name] = asked.tobytes(), graph
        return Turn(plan, now, cached[1], self._turns.now)

    def begin(self, plan: Plan, now: Round) -> None:
        """Start a new turn; where clients may leave, they first share its secrets. Collective in that case."""
        super().begin(plan, now)
        if plan.kept is not None:
            plan.sum.numbers[:-1] = 0
            if plan.kept.sealed is None:
                plan.kept.sealed = SealedTotal(plan)
        self._nonce = nonce(self._turns.next())
        if self._dropouts is not None:
            self._dropouts.deposit(self._turn(plan, now), self.recorder)

    def add(self, plan: Plan, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers, or their changes, and all masks of each client."""
        if plan.kept is None:
            super().add(plan, answer, clients, now)
        else:
            for i, client in enumerate(clients.tolist()):
                numbers = plan.message.pick(plan.integers(answer, i, client), client)
                plan.message.put(plan.sum.numbers, client, self._change(plan, numbers, client))
                plan.kept.last[client] = numbers
        with plan.account.timed():
            turn, message = self._turn(plan, now), plan.sum.numbers
            for client in clients.tolist():
                self._mask(turn, message, client)

    def seal(self, plan: Plan, integers: np.ndarray, client: int, now: Round) -> np.ndarray:
        """The client's integers [m] with all its masks; NumericalError when one is out of range: a sum may overflow."""
        plan.message.check_range(integers, client)
        if plan.kept is None:
            sealed: np.ndarray = integers.copy()
        else:
            sealed = np.zeros_like(integers)
            plan.message.put(sealed, client, self._change(plan, plan.message.pick(integers, client), client))
        with plan.account.timed():
            self._mask(self._turn(plan, now), sealed, client)
        return sealed

    @staticmethod
    def _change(plan: Plan, numbers: np.ndarray, client: int) -> np.ndarray:
        """Change of a client's numbers since its last upload; integers may wrap around, and do so back in the sum."""
        assert plan.kept is not None
        before = plan.kept.last.get(client)
        return numbers if before is None else numbers - before

    def gather(self, plan: Plan, upload: np.ndarray, client: int) -> None:
        plan.sum.numbers[:-1] += upload

    def resend(self, plan: Plan, now: Round) -> None:
        """As `Channel.resend`: as changes from zero, masked in a turn of their own."""
        stale = plan.kept
        assert stale is not None
        last, stale.last = stale.last, {}
        self.begin(plan, now)
        message = plan.sum.numbers
        for client, numbers in sorted(last.items()):
            plan.message.put(plan.sum.numbers, client, numbers)
            self._mask(self._turn(plan, now), message, client)
        stale.last = last
        self.collect(plan, now)

    def _mask(self, turn: Turn, message: np.ndarray, client: int) -> None:
        self._turns.use(client)
        masks: dict[int, tuple[list[Positions], list[Mask]]] = {}  # masks of the same parts are added together
        for other, sign, parts in turn.graph.partners(client):
            masks.setdefault(id(parts), (parts, []))[1].append((self._between(client, other), sign))
        own = turn.graph.own(client)
        if self._dropouts is not None:
            masks.setdefault(id(own), (own, []))[1].append((self._dropouts.own(client), 1))
        if turn.plan.exchange.hear is not None:
            masks.setdefault(id(own), (own, []))[1].append((self._sealing(client), 1))
        for parts, streams in masks.values():
            self.pad.add(streams, message, parts)

    def _between(self, i: int, j: int) -> Stream:
        """Pairwise mask of two clients in this turn; with dropouts, under a key of this turn alone."""
        if self._dropouts is not None:
            return self._dropouts.between(i, j)
        pair = (i, j) if i < j else (j, i)
        stream = self._streams.get(pair)
        if stream is None:
            if len(self._streams) >= _STREAMS:
                self._streams.clear()
            stream = self._streams[pair] = Stream(self.keyring.prf(i, j).key(b"streams", 0))
        stream.begin(self._nonce)
        return stream

    def _sealing(self, client: int) -> Stream:
        """Key stream that clients know and the server does not, for a client's upload of this turn."""
        if self._group is None:
            self._group = Stream(self.keyring.group[:16])
        self._group.begin(nonce(self._turns.now, client))
        return self._group

    def collect(self, plan: Plan, now: Round) -> bool:
        """Reduce; on rank 0 remove the masks of clients that left; open the sum for its receivers. Collective.

        Raises TooFewClients on all ranks alike, before anything is opened: when the sum is over fewer clients than the
        job allows, or too many have left to open it; BrokenProtocol on all ranks alike, when shares were changed.
        """
        turn, message, reduced = self._turn(plan, now), plan.sum.numbers, plan.reduced
        self._refuse(turn)
        if self.recorder is not None:
            self.recorder.passed_on(plan, now, message[:-1])
        to_clients, serves = plan.exchange.hear is not None, self.comm.rank == 0
        stored: SealedTotal | None = plan.kept.sealed if plan.kept is not None else None
        if stored is not None and to_clients and serves:
            message[:-1] += stored.total[:-1]
        if to_clients and self._dropouts is None:
            self.comm.Allreduce(message, reduced)
        else:
            self.comm.Reduce(message, reduced if serves else None)
        if self._dropouts is not None:
            if now.present.any():
                self._dropouts.open(turn, reduced, self.recorder)
            if to_clients:
                self.comm.Bcast(reduced)
        if stored is not None and to_clients:
            return self._hear_stored(turn, stored)
        if stored is not None and serves:
            stored.total[:-1] += reduced[:-1]
            reduced[:-1] = stored.total[:-1]
        return self._hear(turn) if to_clients else serves

    def _refuse(self, turn: Turn) -> None:
        """Check participation before anything is reduced: where nobody may leave, the reduction opens the sum."""
        plan, now = turn.plan, turn.now
        refuse_small(plan.message, self.setting.protection, now)
        left = np.flatnonzero(now.asked & ~now.present)
        if self._dropouts is not None:
            self._dropouts.refuse(turn)
        elif len(left):
            raise TooFewClients(
                f"{plan.exchange.name}: client {left[0]} left before it uploaded, and masks of others would stay in "
                "the sum; set [participation] max_dropouts to the number of clients that may leave"
            )

    def _hear(self, turn: Turn) -> bool:
        """Remove the key streams under the group key, if a client of this rank receives the sum; whether one does."""
        if not hearing(turn.plan.exchange, turn.now)[self.setting.hosted].any():
            return False
        with turn.account.timed():
            reduced = turn.plan.reduced
            for client in np.flatnonzero(answering(turn.plan.exchange, turn.now)).tolist():
                self.pad.add([(self._sealing(client), -1)], reduced, turn.graph.own(client))
        return True

    def _hear_stored(self, turn: Turn, stored: SealedTotal) -> bool:
        """As `_hear`, for a sum with the stored total, which is then sealed again for the server. Collective."""
        plan, now, message = turn.plan, turn.now, turn.plan.sum.numbers
        receives = self._hear(turn)
        with turn.account.timed():
            opened = plan.reduced
            for unit, before in stored.known() if receives else ():
                self.pad.add([(self._storing(unit.number, before), -1)], opened, [unit.at])
            message[:-1] = 0
            sealers = list(stored.sealers(plan, now))
            hosted = set(self.setting.hosted.tolist())
            for unit, client in sealers:
                if client in hosted:
                    message[unit.at], stream = plan.reduced[unit.at], self._storing(unit.number, turn.number)
                    self.pad.add([(stream, 1)], message, [unit.at])
                    if self.recorder is not None:
                        sealed = message[unit.at].tobytes()
                        self.recorder.note(plan, now, f"client {client}", "server", "sum so far, sealed", sealed)
                stored.sealed_in[unit.number] = turn.number
        total = np.empty_like(message) if self.comm.rank == 0 else None
        self.comm.Reduce(message, total)
        if total is not None:
            for unit, _ in sealers:
                stored.total[unit.at] = total[unit.at]
        return receives

    def _storing(self, unit: int, turn: int) -> Stream:
        """Key stream that clients know and the server does not, for a unit of the stored total since that turn."""
        stream = self._sealing(0)
        stream.begin(nonce(turn, self.setting.clients + unit))
        return stream

    def traffic(self, plan: Plan, now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes of uploads and of shares, and of shares and the sum that each client receives."""
        up, down = super().traffic(plan, now)
        if self._dropouts is not None:
            more_up, more_down = self._dropouts.traffic(self._turn(plan, now))
            return up + more_up, down + more_down
        if plan.kept is not None and plan.exchange.hear is not None:
            up = up + plan.kept.sealed.nbytes(plan, now)
        return up, down
