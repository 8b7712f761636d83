"""Clients who leave within a turn: how a masked sum is opened without them (Bonawitz et al. 2017, CCS).

Masks of pairs cancel in the sum only when both clients answer. So before it answers, each client shares two secrets of
the turn among its neighbours in the graph: the seed of a mask of its own, and a key under which the server keeps the
keys of its pair masks. When answers are in, those who are still there hand over for each client a share of one: of the
seed, if its answer is in the sum, so that its own mask can be taken away; of the key, if it left before it answered, so
that what its partners have masked with it can be. Never of both, which would show the client's answer. Whatever is
opened so is of this turn's message alone, so that who has left can come back with the keys that it has.

Differs from the paper: there, the second secret is the client's private key, so that who has left needs a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accounts import Account
from mpifed.comm.channel import Recorder, Setting
from mpifed.comm.keys import Keyring
from mpifed.comm.line import Line
from mpifed.comm.masking.escrow import (
    SEALED_BYTES,
    Deposit,
    Drawn,
    Escrow,
    Opening,
    deposit_bytes,
    open_keys,
    open_seed,
)  # fmt: skip
from mpifed.comm.masking.graph import Plan
from mpifed.comm.masking.shares import SECRET_BYTES, SHARE_BYTES, rebuild, split
from mpifed.comm.streams import Pad, Stream
from mpifed.core.errors import BrokenProtocol, MpifedError, TooFewClients, UsageError
from mpifed.core.round import Round


def threshold(neighbours: int, most: int) -> int:
    """How many shares rebuild a secret: those of the neighbours who stay when `most` leave, and a majority.

    Raises
    ------
    UsageError
        when they are none.
    """
    if neighbours < 2 * most + 1:
        raise UsageError(
            f"[participation] max_dropouts = {most}: each client has {neighbours} others to share its secrets with, "
            f"and needs {2 * most + 1}, so that a majority of them stays; lower max_dropouts, let more clients take "
            "part, or raise [masking] neighbours"
        )
    return neighbours - most


class Turn(NamedTuple):
    """What is played: one exchange, once."""

    line: Line
    now: Round
    plan: Plan
    number: int

    @property
    def account(self) -> Account:
        """Of the exchange."""
        return self.line.account


class Dropouts:
    """The clients' and, on rank 0, the server's part, for `most` clients who may leave within a turn."""

    def __init__(self, setting: Setting, keyring: Keyring, pad: Pad) -> None:
        self.setting, self.transport, self.keyring = setting, setting.transport, keyring
        self.most = setting.protection.max_dropouts
        self.escrow = Escrow(keyring, 0)  # of the turn
        self.watch: Callable[[Drawn], None] | None = None  # is shown all secrets, in an audit
        self._pad = pad
        self._deposits: dict[int, Deposit] = {}  # of the turn, by client; on rank 0

    def threshold(self, turn: Turn, client: int) -> int:
        """How many shares rebuild the secrets of one who is asked."""
        return threshold(len(turn.plan.near[client]), self.most)

    def deposit(self, turn: Turn, recorder: Recorder | None) -> None:
        """Those who are asked share their secrets. Collective.

        Raises
        ------
        TooFewClients
            on all ranks alike, when so few are asked that nobody may leave.
        """
        least = min((len(near) for near in turn.plan.near.values()), default=0)
        if least < 2 * self.most + 1 and len(turn.plan.asked):
            raise TooFewClients(
                f"{turn.line.exchange.name}: round {turn.now.index} asks {len(turn.plan.asked)} clients, and for "
                f"[participation] max_dropouts = {self.most} it takes {2 * self.most + 2}: lower max_dropouts, or let "
                "more clients take part"
            )
        self.escrow = Escrow(self.keyring, turn.number, self.watch)
        with turn.account.timed():
            given = [self._give(turn, client) for client in self._here(turn.now.asked)]
        if recorder is not None:
            for one in given:
                what = "deposit and sealed shares"
                recorder.note(turn.line, turn.now, f"client {one.client}", "server", what, one.payload)
        gathered = self.transport.gather(given) or []
        self._deposits = {one.client: one for one in chain(*gathered)}
        # in a deployment each client is sent what its own neighbours have sealed for it
        self.escrow.held = self.transport.share({client: one.shares for client, one in self._deposits.items()})

    def _here(self, chosen: NDArray[np.bool_]) -> list[int]:
        found: list[int] = self.setting.hosted[chosen[self.setting.hosted]].tolist()
        return found

    def _give(self, turn: Turn, client: int) -> Deposit:
        partners = [one.client for one in turn.plan.partners(client)]
        return self.escrow.deposit(client, turn.plan.near[client].tolist(), partners, self.threshold(turn, client))

    def own(self, client: int) -> Stream:
        """The mask of the client's own."""
        return Stream(self.escrow.seeds[client])

    def between(self, client: int, other: int) -> Stream:
        """The mask of a pair, in this turn."""
        return Stream(self.escrow.message_key(client, other))

    def refuse(self, turn: Turn) -> None:
        """Refuse to open anything when so many have left that not everything can be. Alike on all ranks."""
        for client in turn.plan.asked.tolist():
            staying, least = int(turn.now.staying[turn.plan.near[client]].sum()), self.threshold(turn, client)
            if staying < least:
                raise TooFewClients(
                    f"{turn.line.exchange.name}: in round {turn.now.index} {staying} clients are left who hold shares "
                    f"for client {client}, and it takes {least}: more than [participation] max_dropouts = {self.most} "
                    "have left, and the sum is not opened"
                )

    def open(self, turn: Turn, reduced: NDArray[Any], recorder: Recorder | None) -> None:
        """Those who stay hand over their shares; rank 0 takes the masks that they open out of `reduced`. Collective.

        Raises
        ------
        BrokenProtocol, TooFewClients
            on all ranks alike, when shares were changed, or are missing.
        """
        failure: MpifedError | None = None
        openings: list[Opening] | None = None
        try:
            with turn.account.timed():
                openings = self._hand_over(turn, recorder)
        except BrokenProtocol as error:
            failure = error
        self.escrow.seeds.clear()  # what was sealed with them can be opened only together, from here on
        gathered = self.transport.gather(openings)
        if gathered is not None and all(some is not None for some in gathered):
            try:
                with turn.account.timed():
                    if self.setting.rehearsed:
                        self._rehearse(turn, reduced)
                    else:
                        self._take_away(turn, reduced, [one for some in gathered for one in some])
            except (BrokenProtocol, TooFewClients) as error:
                failure = error
        self.transport.agree(failure)

    def _hand_over(self, turn: Turn, recorder: Recorder | None) -> list[Opening]:
        """Of this rank's clients."""
        near, found = turn.plan.near, []
        for holder in self._here(turn.now.staying):
            for giver in near[holder].tolist():
                if giver not in self.escrow.held:
                    continue  # of nobody, in a rehearsal; else rank 0 finds that shares are missing
                number = int(np.searchsorted(near[giver], holder)) + 1
                found.append(self.escrow.hand_over(holder, giver, number, bool(turn.now.present[giver])))
                if recorder is not None:
                    what = f"share of the {'seed' if turn.now.present[giver] else 'key'} of client {giver}"
                    recorder.note(turn.line, turn.now, f"client {holder}", "server", what, found[-1].share)
        return found

    def _take_away(self, turn: Turn, reduced: NDArray[Any], openings: list[Opening]) -> None:
        """The own masks of those who have answered, and what is left of the pair masks of those who have not."""
        shares: dict[int, dict[int, bytes]] = {client: {} for client in turn.plan.asked.tolist()}
        for one in openings:
            shares[one.giver][one.number] = one.share
        present, plan = turn.now.present, turn.plan
        for client, its in shares.items():
            if client not in self._deposits:
                raise TooFewClients(f"client {client} was asked, and has deposited nothing: the sum is not opened")
            opened = self._deposits[client], its, self.threshold(turn, client), turn.number
            if present[client]:
                self._pad.add([(Stream(open_seed(*opened)), -1)], reduced, plan.common.own(client))
                continue
            for (other, sign, parts), key in zip(plan.partners(client), open_keys(*opened), strict=True):
                if present[other]:  # and has added it with the other sign
                    self._pad.add([(Stream(key), sign)], reduced, parts)

    def _rehearse(self, turn: Turn, reduced: NDArray[Any]) -> None:
        """The same work on made-up shares, since most clients are not there."""
        shares: dict[tuple[int, int], dict[int, bytes]] = {}  # split once: the server only rebuilds
        for client in turn.plan.asked.tolist():
            near, least = len(turn.plan.near[client]), self.threshold(turn, client)
            if (near, least) not in shares:
                shares[near, least] = dict(enumerate(split(bytes(SECRET_BYTES), near, least), 1))
            secret = rebuild(shares[near, least], least)
            self._pad.add([(Stream(secret), -1)], reduced, turn.plan.common.own(client))

    def traffic(self, turn: Turn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes of deposits and shares that each client sends, and is told, as a deployment would send them."""
        up, down = np.zeros((2, self.setting.clients), dtype=np.int64)
        for client in turn.plan.asked.tolist():
            near = len(turn.plan.near[client])
            up[client] = deposit_bytes(len(turn.plan.partners(client)), near)
            down[client] = near * SEALED_BYTES
            if turn.now.staying[client]:
                up[client] += near * SHARE_BYTES
                down[client] += -(-near // 8)  # a bit for each neighbour: whether it has answered
        return up, down
