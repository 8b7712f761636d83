"""The masked channel: clients add numbers to their integers that cancel in the sum and nowhere else.

Each client adds, for each other one with whom it shares a secret, a key stream that the other takes away (Bonawitz,
Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth 2017, "Practical secure aggregation for
privacy-preserving machine learning", CCS; eprint 2017/281). So the ordinary reduction adds masked integers, and who
carries them sees nothing but their sum. Masks of clients of one rank are not cancelled beforehand: they are parties
of their own. Everybody is taken to follow the protocol, and may tell others what it has seen.

- `ToServer`: rank 0 hears the sum. Places that a single client fills are not masked there, since the sum is its value.
- `ToClients`: each client adds another stream, under a key that all clients share and the server lacks.
- Where absent clients go on counting, see `mpifed.comm.masking.sealed_total`: changes travel.
- Where clients may leave within a round, see `mpifed.comm.masking.dropouts`: each adds a mask of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Channel, Setting, answering, hearing
from mpifed.comm.groups import refuse_small
from mpifed.comm.keys import Keyring
from mpifed.comm.line import Line, answer_of
from mpifed.comm.masking.dropouts import Dropouts, Turn, threshold
from mpifed.comm.masking.escrow import Drawn
from mpifed.comm.masking.graph import Common, Plan, enough, order
from mpifed.comm.masking.sealed_total import SealedTotal
from mpifed.comm.streams import Mask, Pad, Part, Stream, Turns, nonce
from mpifed.core.errors import NumericalError, TooFewClients
from mpifed.core.exchange import ToClients
from mpifed.core.record import Record
from mpifed.core.round import Round

_FEW = 20  # clients, up to whom every pair shares a mask: of so few, a third could easily be one more
_STREAMS = 2**14  # kept from turn to turn: making one takes as long as 5,000 of its numbers


class Masked(Channel):
    """Pairwise masks, and one reduction."""

    name = "masked"

    def __init__(self, setting: Setting) -> None:
        """Raises UsageError when more clients may leave than their neighbours can make up for."""
        super().__init__(setting)
        self.keyring = Keyring.made_up(setting) if setting.rehearsed else Keyring(setting)
        self.pad, self._turns = Pad(), Turns()
        self._dropouts: Dropouts | None = None  # where nobody may leave
        self._most = setting.protection.max_dropouts
        if self._most:
            threshold(min(setting.clients - 1, self.neighbours(setting.clients)), self._most)
            self._dropouts = Dropouts(setting, self.keyring, self.pad)
        self._streams: dict[tuple[int, int], Stream] = {}
        self._group: Stream | None = None
        self._nonce = nonce(0)  # of the turn
        self._commons: dict[str, Common] = {}
        self._plans: dict[str, tuple[bytes, Plan]] = {}
        self._aside: dict[str, NDArray[Any]] = {}

    def watch_secrets(self, watch: Callable[[Drawn], None]) -> None:
        """Show an audit what clients draw in each turn so that others may leave."""
        if self._dropouts is not None:
            self._dropouts.watch = watch

    def neighbours(self, n: int) -> int:
        """How many neighbours each of n clients has, if there are so many others."""
        chosen = self.setting.protection.neighbours
        if chosen is None:
            return n - 1 if n <= _FEW else enough(n, self._most)
        return 2 * -(-chosen // 2)

    def prepare(self, lines: list[Line]) -> None:
        """New keys. Collective."""
        self.keyring.prepare(self.keys.timed)
        self._streams.clear()
        self._group, self._turns = None, Turns()
        if self.transport.rank == 0:
            self.keys.up_bytes += self.keyring.setup_up_bytes
            self.keys.down_bytes += self.keyring.setup_down_bytes
        if self.recorder is not None:
            for client in self.setting.hosted.tolist():
                public = self.keyring.public[client].tobytes()
                self.recorder.note(None, None, f"client {client}", "server", "public key", public)

    def secrets(self) -> Iterator[bytes]:
        """Those of the keyring, and the keys of the streams that are made from them."""
        yield from self.keyring.secrets()
        for i, j in list(self._streams):
            yield self.keyring.prf(i, j).key(b"streams", 0)

    def _turn(self, line: Line, now: Round) -> Turn:
        name, asked = line.exchange.name, now.asked
        kept = self._plans.get(name)
        if kept is None or kept[0] != asked.tobytes():
            if name not in self._commons:
                self._commons[name] = Common(line)
            who = np.flatnonzero(asked)
            plan = Plan(self._commons[name], who, self.neighbours(len(who)), order(now.seed, self.setting.clients))
            kept = self._plans[name] = asked.tobytes(), plan
        return Turn(line, now, kept[1], self._turns.now)

    def begin(self, line: Line, now: Round) -> None:
        """A new turn; where clients may leave, those who are asked share its secrets first, which is collective."""
        super().begin(line, now)
        if line.memory is not None:
            line.sum.message[:-1] = 0
            if line.memory.sealed is None:
                line.memory.sealed = SealedTotal(line)
        self._nonce = nonce(self._turns.next())
        if self._dropouts is not None:
            self._dropouts.deposit(self._turn(line, now), self.recorder)

    def add(self, line: Line, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        """Add the answers, or how they have changed, and every mask of each of the clients."""
        if line.memory is None:
            super().add(line, answer, clients, now)
        else:
            for i, client in enumerate(clients.tolist()):
                numbers = line.sum.numbers(answer_of(answer, i), client)
                line.put(line.sum.message, client, self._change(line, numbers, client))
                line.memory.last[client] = numbers
        with line.account.timed():
            turn, message = self._turn(line, now), self._target(line, line.sum.message)
            for client in clients.tolist():
                self._mask(turn, message, client)

    def seal(self, line: Line, integers: NDArray[Any], client: int, now: Round) -> NDArray[Any]:
        """The client's integers [m] with all its masks.

        Raises
        ------
        NumericalError
            when one of them is outside what its field may send: the sum could pass over the end of the numbers.
        """
        check_range(line, integers, client)
        if line.memory is None:
            sealed: NDArray[Any] = integers.copy()
        else:
            sealed = np.zeros_like(integers)
            line.put(sealed, client, self._change(line, line.pick(integers, client), client))
        with line.account.timed():
            self._mask(self._turn(line, now), self._target(line, sealed), client)
        return sealed

    @staticmethod
    def _change(line: Line, numbers: NDArray[Any], client: int) -> NDArray[Any]:
        """How a client's numbers differ from those before; in integers, which may pass over the end and come back."""
        assert line.memory is not None
        before = line.memory.last.get(client)
        return numbers if before is None else numbers - before

    def gather(self, line: Line, upload: NDArray[Any], client: int) -> None:
        """Add what left a client."""
        line.sum.message[:-1] += upload

    def resend(self, line: Line, now: Round) -> None:
        """As changes from nothing, masked in a turn of their own."""
        memory = line.memory
        assert memory is not None
        last, memory.last = memory.last, {}
        self.begin(line, now)
        message = self._target(line, line.sum.message)
        for client, numbers in sorted(last.items()):
            line.put(line.sum.message, client, numbers)
            self._mask(self._turn(line, now), message, client)
        memory.last = last
        self.collect(line, now)

    def _target(self, line: Line, message: NDArray[Any]) -> NDArray[Any]:
        """Where masks go: in a rehearsal nobody takes them away, so they cost the same and are left aside."""
        if not self.setting.rehearsed:
            return message
        name = line.exchange.name
        if name not in self._aside:
            self._aside[name] = np.zeros_like(message)
        return self._aside[name]

    def _mask(self, turn: Turn, message: NDArray[Any], client: int) -> None:
        """Add the masks of one client."""
        self._turns.use(client)
        masks: dict[int, tuple[list[Part], list[Mask]]] = {}  # those for the same parts are added together
        for other, sign, parts in turn.plan.partners(client):
            masks.setdefault(id(parts), (parts, []))[1].append((self._between(client, other), sign))
        own = turn.plan.common.own(client)
        if self._dropouts is not None:
            masks.setdefault(id(own), (own, []))[1].append((self._dropouts.own(client), 1))
        if isinstance(turn.line.exchange, ToClients):
            masks.setdefault(id(own), (own, []))[1].append((self._sealing(client), 1))
        for parts, some in masks.values():
            self.pad.add(some, message, parts)

    def _between(self, i: int, j: int) -> Stream:
        """The mask of two clients in this turn; under a key of its own where the server may be given that."""
        if self._dropouts is not None:
            return self._dropouts.between(i, j)
        pair = (i, j) if i < j else (j, i)
        found = self._streams.get(pair)
        if found is None:
            if len(self._streams) >= _STREAMS:
                self._streams.clear()
            found = self._streams[pair] = Stream(self.keyring.prf(i, j).key(b"streams", 0))
        found.begin(self._nonce)
        return found

    def _sealing(self, client: int) -> Stream:
        """What the clients know and the server does not, for one client's answer of this turn."""
        if self._group is None:
            self._group = Stream(self.keyring.group[:16])
        self._group.begin(nonce(self._turns.now, client))
        return self._group

    def collect(self, line: Line, now: Round) -> bool:
        """Reduce; on rank 0 take away masks of those who have left; open for who may hear. Collective.

        Raises
        ------
        TooFewClients
            on all ranks alike, before anything is opened: when so few have answered that the sum hides nobody, or so
            many have left that it cannot be opened.
        BrokenProtocol
            on all ranks alike, when shares are not what was sealed.
        """
        turn, message, reduced = self._turn(line, now), line.sum.message, line.reduced
        self._refuse(turn)
        if self.recorder is not None:
            self.recorder.passed_on(line, now, message[:-1])
        to_clients, serves = isinstance(line.exchange, ToClients), self.transport.rank == 0
        kept: SealedTotal | None = line.memory.sealed if line.memory is not None else None
        if kept is not None and to_clients and serves:
            message[:-1] += kept.total[:-1]
        if to_clients and self._dropouts is None:
            self.transport.reduce_all(message, reduced)
        else:
            self.transport.reduce(message, reduced if serves else None)
        if self._dropouts is not None:
            if now.present.any():
                self._dropouts.open(turn, self._target(line, reduced), self.recorder)
            if to_clients:
                self.transport.broadcast(reduced)
        if kept is not None and to_clients:
            return self._hear_kept(turn, kept)
        if kept is not None and serves:
            kept.total[:-1] += reduced[:-1]
            reduced[:-1] = kept.total[:-1]
        return self._hear(turn) if to_clients else serves

    def _refuse(self, turn: Turn) -> None:
        """Before anything is reduced: where nobody may leave, the reduction is what opens the sum."""
        line, now = turn.line, turn.now
        refuse_small(line, self.setting.cells, self.setting.protection, now)
        gone = np.flatnonzero(now.asked & ~now.present)
        if self._dropouts is not None:
            self._dropouts.refuse(turn)
        elif len(gone):
            raise TooFewClients(
                f"{line.exchange.name}: client {gone[0]} left before it answered, and masks of others would stay in "
                "the sum; set [participation] max_dropouts to as many as may leave"
            )

    def _hear(self, turn: Turn) -> bool:
        """Take away what the clients have added under their common key, if one of this rank's hears the sum."""
        if not hearing(turn.line.exchange, turn.now)[self.setting.hosted].any():
            return False
        with turn.account.timed():
            reduced = self._target(turn.line, turn.line.reduced)
            for client in np.flatnonzero(answering(turn.line.exchange, turn.now)).tolist():
                self.pad.add([(self._sealing(client), -1)], reduced, turn.plan.common.own(client))
        return True

    def _hear_kept(self, turn: Turn, kept: SealedTotal) -> bool:
        """The same of a sum with what the server has kept, which is sealed anew for it. Collective."""
        line, now, message = turn.line, turn.now, turn.line.sum.message
        heard = self._hear(turn)
        with turn.account.timed():
            opened = self._target(line, line.reduced)
            for unit, before in kept.known() if heard else ():
                self.pad.add([(self._keeping(unit.number, before), -1)], opened, [unit.at])
            message[:-1] = 0
            sealers = list(kept.sealers(line, now))
            hosted = set(self.setting.hosted.tolist())
            for unit, client in sealers:
                if client in hosted:
                    message[unit.at], stream = line.reduced[unit.at], self._keeping(unit.number, turn.number)
                    self.pad.add([(stream, 1)], self._target(line, message), [unit.at])
                    if self.recorder is not None:
                        sealed = message[unit.at].tobytes()
                        self.recorder.note(line, now, f"client {client}", "server", "sum so far, sealed", sealed)
                kept.sealed_in[unit.number] = turn.number
        total = np.empty_like(message) if self.transport.rank == 0 else None
        self.transport.reduce(message, total)
        if total is not None:
            for unit, _ in sealers:
                kept.total[unit.at] = total[unit.at]
        return heard

    def _keeping(self, unit: int, turn: int) -> Stream:
        """What the clients know and the server does not, for what it keeps of a unit since that turn."""
        found = self._sealing(0)
        found.begin(nonce(turn, self.setting.clients + unit))
        return found

    def traffic(self, line: Line, now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes of uploads, of shares to and from the server, and of the sum for those who hear it."""
        up, down = super().traffic(line, now)
        if self._dropouts is not None:
            more_up, more_down = self._dropouts.traffic(self._turn(line, now))
            return up + more_up, down + more_down
        if line.memory is not None and isinstance(line.exchange, ToClients):
            up = up + line.memory.sealed.nbytes(line, now)
        return up, down


def check_range(line: Line, integers: NDArray[np.signedinteger], client: int) -> None:
    """Refuse integers [m] that no answer within its fields' bounds is encoded as.

    Raises
    ------
    NumericalError
        naming field and client.
    """
    for place in line.sum.places:
        size = (place.stop - place.start) // place.form.limbs
        for limb, most in enumerate(place.form.largest):
            part = integers[place.start + limb * size : place.start + (limb + 1) * size]
            if part.max(initial=0) > most or part.min(initial=0) < -most:
                raise NumericalError(
                    f"{place.name}: client {client} sends an integer outside +-{most}, which its bound "
                    f"{place.form.bound:g} and scale {place.form.scale:g} allow; it is not sealed"
                )
