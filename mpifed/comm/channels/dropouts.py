"""Dropouts: unmasking a sum without the clients that left within a turn (Bonawitz et al. 2017, CCS).

Pairwise masks cancel in the sum only when both clients upload. So before it uploads, each client secret-shares two
secrets of the turn among its neighbours in the graph: the seed of its self-mask, and a key under which it deposits the
keys of its pairwise masks with the server. After the uploads, the remaining clients reveal for each client a share of
one of these: of the seed, if its upload is in the sum, so that its self-mask can be removed; of the key, if it left
before it uploaded, so that the pairwise masks of its partners can be removed. Never of both, which would reveal the
client's upload. What is unmasked belongs to this turn's message alone, so a client that has left can return with the
keys that it has.

Differs from the paper: there, the second secret is the client's private key, so a client that has left needs a new one.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channels.base import ChannelSetting, Plan, Recorder
from mpifed.comm.channels.deposits import (
    SEALED_BYTES,
    Deposit,
    RevealedShare,
    TurnSecrets,
    deposit_bytes,
    open_keys,
    open_seed,
)  # fmt: skip
from mpifed.comm.channels.graph import MaskGraph
from mpifed.comm.channels.keys import Keyring
from mpifed.comm.channels.shares import SHARE_BYTES
from mpifed.comm.channels.streams import Pad, Stream
from mpifed.comm.costs import Account
from mpifed.core.errors import BrokenProtocol, MpifedError, TooFewClients, UsageError
from mpifed.core.round import Round


def threshold(neighbours: int, most: int) -> int:
    """Shares that reconstruct a secret: of the neighbours left after `most` drop out; UsageError if no majority."""
    if neighbours < 2 * most + 1:
        raise UsageError(
            f"[participation] max_dropouts = {most}: each client has {neighbours} others to share its secrets with, "
            f"and needs {2 * most + 1}, so that a majority of them stays; lower max_dropouts, let more clients "
            "participate"
        )
    return neighbours - most


class Turn(NamedTuple):
    """A single run of an exchange."""

    plan: Plan
    now: Round
    graph: MaskGraph
    number: int

    @property
    def account(self) -> Account:
        return self.plan.account


class Dropouts:
    """The clients' part and, on rank 0, the server's, where up to `most` clients may leave within a turn."""

    def __init__(self, setting: ChannelSetting, keyring: Keyring, pad: Pad) -> None:
        self.setting, self.comm, self.keyring = setting, setting.comm, keyring
        self.most = setting.protection.max_dropouts
        self.turn_secrets = TurnSecrets(keyring, 0)  # of the turn
        self._pad = pad
        self._deposits: dict[int, Deposit] = {}  # of the turn, by client; on rank 0

    def threshold(self, turn: Turn, client: int) -> int:
        """Number of shares that reconstruct the secrets of a participating client."""
        return threshold(len(turn.graph.near[client]), self.most)

    def deposit(self, turn: Turn, recorder: Recorder | None) -> None:
        """Participating clients share their secrets. Collective; TooFewClients when so few do that nobody may leave."""
        least = min((len(near) for near in turn.graph.near.values()), default=0)
        if least < 2 * self.most + 1 and len(turn.graph.asked):
            raise TooFewClients(
                f"{turn.plan.exchange.name}: round {turn.now.index} asks {len(turn.graph.asked)} clients, and for "
                f"[participation] max_dropouts = {self.most} it takes {2 * self.most + 2}: lower max_dropouts, or let "
                "more clients participate"
            )
        self.turn_secrets = TurnSecrets(self.keyring, turn.number)
        with turn.account.timed():
            deposits = [self._deposit_of(turn, client) for client in self._hosted(turn.now.asked)]
        if recorder is not None:
            for deposit in deposits:
                what = "deposit and sealed shares"
                recorder.note(turn.plan, turn.now, f"client {deposit.client}", "server", what, deposit.payload)
        gathered = self.comm.gather(deposits) or []
        self._deposits = {deposit.client: deposit for deposit in chain(*gathered)}
        # in a deployment each client receives only what its own neighbours have sealed for it
        self.turn_secrets.held = self.comm.bcast({client: deposit.shares for client, deposit in self._deposits.items()})

    def _hosted(self, chosen: NDArray[np.bool_]) -> list[int]:
        clients: list[int] = self.setting.hosted[chosen[self.setting.hosted]].tolist()
        return clients

    def _deposit_of(self, turn: Turn, client: int) -> Deposit:
        partners = [partner.client for partner in turn.graph.partners(client)]
        return self.turn_secrets.deposit(
            client, turn.graph.near[client].tolist(), partners, self.threshold(turn, client)
        )

    def own(self, client: int) -> Stream:
        """The self-mask of a client."""
        return Stream(self.turn_secrets.seeds[client])

    def between(self, client: int, other: int) -> Stream:
        """The pairwise mask of two clients in this turn."""
        return Stream(self.turn_secrets.message_key(client, other))

    def refuse(self, turn: Turn) -> None:
        """Refuse to open the sum when too many clients have left to reconstruct every secret. Alike on all ranks."""
        for client in turn.graph.asked.tolist():
            staying, least = int(turn.now.staying[turn.graph.near[client]].sum()), self.threshold(turn, client)
            if staying < least:
                raise TooFewClients(
                    f"{turn.plan.exchange.name}: in round {turn.now.index} {staying} clients are left who hold shares "
                    f"of client {client}, and it takes {least}: more than [participation] max_dropouts = {self.most} "
                    "have left, and the sum is not opened"
                )

    def open(self, turn: Turn, reduced: np.ndarray, recorder: Recorder | None) -> None:
        """Remaining clients reveal their shares; rank 0 removes the reconstructed masks from `reduced`. Collective.

        Raises BrokenProtocol or TooFewClients on all ranks alike, when shares were changed or are missing.
        """
        failure: MpifedError | None = None
        revealed: list[RevealedShare] | None = None
        try:
            with turn.account.timed():
                revealed = self._reveal(turn, recorder)
        except BrokenProtocol as error:
            failure = error
        self.turn_secrets.seeds.clear()  # from here on, single uploads cannot be unmasked, only the sum
        gathered = self.comm.gather(revealed)
        if gathered is not None and all(shares is not None for shares in gathered):
            try:
                with turn.account.timed():
                    self._unmask(turn, reduced, [share for shares in gathered for share in shares or []])
            except (BrokenProtocol, TooFewClients) as error:
                failure = error
        self.comm.raise_on_all_ranks(failure)

    def _reveal(self, turn: Turn, recorder: Recorder | None) -> list[RevealedShare]:
        """The shares that this rank's clients reveal."""
        near, revealed = turn.graph.near, []
        for holder in self._hosted(turn.now.staying):
            for giver in near[holder].tolist():
                if giver not in self.turn_secrets.held:
                    continue  # rank 0 finds that the share is missing
                number = int(np.searchsorted(near[giver], holder)) + 1
                revealed.append(self.turn_secrets.reveal(holder, giver, number, bool(turn.now.present[giver])))
                if recorder is not None:
                    what = f"share of the {'seed' if turn.now.present[giver] else 'key'} of client {giver}"
                    recorder.note(turn.plan, turn.now, f"client {holder}", "server", what, revealed[-1].share)
        return revealed

    def _unmask(self, turn: Turn, reduced: np.ndarray, revealed: list[RevealedShare]) -> None:
        """Remove the self-masks of clients that uploaded, and the uncancelled pairwise masks of those that left."""
        shares: dict[int, dict[int, bytes]] = {client: {} for client in turn.graph.asked.tolist()}
        for share in revealed:
            shares[share.giver][share.number] = share.share
        present, graph = turn.now.present, turn.graph
        for client, client_shares in shares.items():
            if client not in self._deposits:
                raise TooFewClients(
                    f"client {client} participates, but has deposited no secrets: the sum is not opened"
                )
            secrets = self._deposits[client], client_shares, self.threshold(turn, client), turn.number
            if present[client]:
                self._pad.add([(Stream(open_seed(*secrets)), -1)], reduced, graph.own(client))
                continue
            for (other, sign, parts), key in zip(graph.partners(client), open_keys(*secrets), strict=True):
                if present[other]:  # and has added the mask with the opposite sign
                    self._pad.add([(Stream(key), sign)], reduced, parts)

    def traffic(self, turn: Turn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes of deposits and shares that each client uploads and receives, as in a deployment."""
        up, down = np.zeros((2, self.setting.clients), dtype=np.int64)
        for client in turn.graph.asked.tolist():
            near = len(turn.graph.near[client])
            up[client] = deposit_bytes(len(turn.graph.partners(client)), near)
            down[client] = near * SEALED_BYTES
            if turn.now.staying[client]:
                up[client] += near * SHARE_BYTES
                down[client] += -(-near // 8)  # a bit for each neighbour: whether it has uploaded
        return up, down
