"""Dropouts: unmasking a sum without the clients that left within a turn (Bonawitz et al. 2017, CCS).

Pairwise masks cancel in the sum only when both clients upload. So before it uploads, each client draws two secrets for
the turn and shares them among its neighbours in the graph (Shamir 1979): the seed of its self-mask, and a key under
which it deposits the keys of its pairwise masks with the server. After the uploads, the remaining clients reveal for
each client a share of one of these: of the seed, if its upload is in the sum, so that its self-mask can be removed; of
the key, if it left before it uploaded, so that the pairwise masks of its partners can be removed. Never of both, which
would reveal the client's upload. What is unmasked belongs to this turn's message alone, so a client that has left can
return with the keys that it has.

Differs from the paper: there, the second secret is the client's private key, so a client that has left needs a new one.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache, reduce
from itertools import chain
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from mpifed.comm.channels.base import ChannelSetting, Plan, Tap
from mpifed.comm.channels.graph import MaskGraph
from mpifed.comm.channels.keys import PROTOCOL, STREAM_BYTES, TAG_BYTES, Keyring, Pad, Stream, derive, seal, unseal
from mpifed.comm.mpi import agreed
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.record import Array, Flags, Integers
from mpifed.core.round import Round
from mpifed.data.roster import located

PRIME = 2**130 - 5  # shares are numbers mod it
SECRET_BYTES = 16
SHARE_BYTES = 17
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES  # of the two shares for a neighbour
_COMMITMENT_BYTES = 32
_DEPOSIT_NONCE = b"deposit     "  # its key encrypts no other message
_SEED, _KEY = b"seed", b"key"


# --- secret sharing: any `threshold` shares reconstruct a secret, fewer reveal nothing about it -----------------------


def split(secret: bytes, holders: int, threshold: int) -> list[bytes]:
    """Shares 1, 2, ... of a secret [16]: the values there of a random polynomial with the secret at 0."""
    drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    coefficients = [*drawn, int.from_bytes(secret, "little")]
    values = (reduce(lambda y, a, x=x: (y * x + a) % PRIME, coefficients) for x in range(1, holders + 1))  # type: ignore[misc]
    return [value.to_bytes(SHARE_BYTES, "little") for value in values]


def rebuild(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Reconstruct a secret [16] from at least `threshold` shares, by number.

    Raises TooFewClients when there are fewer; BrokenProtocol when the shares evidently belong to different secrets; the
    commitment decides it in all cases.
    """
    if len(shares) < threshold:
        raise TooFewClients(
            f"{len(shares)} shares of a secret that takes {threshold}: the sum is not opened; let fewer clients leave"
        )
    numbers = tuple(sorted(shares)[:threshold])
    secret = sum(a * int.from_bytes(shares[x], "little") for x, a in _coefficients(numbers).items()) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise BrokenProtocol(f"shares number {numbers} do not belong to one secret: a share was changed")
    return secret.to_bytes(SECRET_BYTES, "little")


@lru_cache(maxsize=1024)
def _coefficients(numbers: tuple[int, ...]) -> dict[int, int]:
    """By number, Lagrange coefficients at 0, mod p: once for all secrets whose shares come from the same holders."""
    others = {x: [other for other in numbers if other != x] for x in numbers}
    return {x: prod(y) * pow(prod(other - x for other in y), -1, PRIME) for x, y in others.items()}


def threshold(neighbours: int, most: int) -> int:
    """Shares that reconstruct a secret: of the neighbours left after `most` drop out; TooFewClients if no majority."""
    if neighbours < 2 * most + 1:
        raise TooFewClients(
            f"[participation] max_dropouts = {most}: a client has {neighbours} others to share its secrets with, and "
            f"needs {2 * most + 1}, so that a majority of them stays; lower max_dropouts, or let more clients "
            "participate in a round"
        )
    return neighbours - most


# --- a turn -----------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """A single run of an exchange."""

    plan: Plan
    now: Round
    graph: MaskGraph
    number: int

    def context(self, what: bytes, client: int) -> bytes:
        return PROTOCOL + b", %b of client %d in turn %d" % (what, client, self.number)


class Deposit(NamedTuple):
    """What a client sends to the server before it uploads."""

    client: int
    commitments: dict[bytes, bytes]  # to its seed and its key, by which a wrong reconstruction is detected
    keys: bytes  # of its pairwise masks, in the order of its partners; sealed
    shares: list[bytes]  # of both, for its neighbours, ascending, each sealed for it


RevealedShare: TypeAlias = tuple[int, int, bytes]  # whose secret it is, the share's number, and the share


class Dropouts:
    """The clients' part and, on rank 0, the server's, where up to `most` clients may leave within a turn."""

    def __init__(self, setting: ChannelSetting, keyring: Keyring, pad: Pad) -> None:
        self.comm, self.hosted, self.clients, protection = setting
        self.keyring, self._pad, self.most = keyring, pad, protection.max_dropouts
        self.turn: Turn
        self.seeds: dict[int, bytes] = {}  # [16] of the self-masks of this rank's clients
        self.deposits: dict[int, Deposit] = {}  # by client
        self._least: dict[int, int] = {}  # by client, how many shares of its secrets reconstruct them
        self._revealed: dict[tuple[int, int], bool] = {}  # by holder and giver, whether the giver had uploaded

    def _hosted(self, chosen: Flags) -> list[int]:
        here = self.turn.graph.asked
        own: list[int] = self.hosted[located(here[chosen[here]], self.hosted)].tolist()
        return own

    def begin(self, turn: Turn, tap: Tap) -> None:
        """Participating clients share their secrets. Collective; TooFewClients when so few do that nobody may leave."""
        self.turn, self.seeds, self._revealed = turn, {}, {}
        self._least = {client: threshold(len(near), self.most) for client, near in turn.graph.near.items()}
        with turn.plan.account.timed():
            own = [self.deposit(client) for client in self._hosted(turn.now.asked)]
        for client, commitments, keys, shares in own:
            tap(client, "deposit and sealed shares", b"".join([*commitments.values(), keys, *shares]))
        # in a deployment each client receives of them only what its own neighbours have sealed for it
        self.deposits = {deposit.client: deposit for deposit in chain(*self.comm.allgather(own))}

    def deposit(self, client: int) -> Deposit:
        """Draw and share the client's two secrets, and seal the keys of its masks under the second."""
        turn, near = self.turn, self.turn.graph.near[client].tolist()
        drawn = {what: os.urandom(SECRET_BYTES) for what in (_SEED, _KEY)}
        self.seeds[client] = drawn[_SEED]
        shares = zip(*(split(secret, len(near), self._least[client]) for secret in drawn.values()), strict=True)
        keys = b"".join(self.message_key(client, other) for other in turn.graph.partners(client))
        return Deposit(
            client,
            {what: derive(secret, turn.context(what, client)) for what, secret in drawn.items()},
            seal(derive(drawn[_KEY], PROTOCOL + b", deposit"), _DEPOSIT_NONCE, keys, turn.context(b"keys", client)),
            [
                seal(*self._between(client, holder, client), b"".join(both), turn.context(b"shares", client))
                for holder, both in zip(near, shares, strict=True)
            ],
        )

    def message_key(self, client: int, other: int) -> bytes:
        """Key [16] of the pairwise mask in this turn."""
        return self.keyring.key(client, other, b"message", self.turn.number)

    def _between(self, here: int, there: int, giver: int) -> tuple[bytes, bytes]:
        """Key and nonce that seal the giver's shares between client `here`, of this rank, and client `there`."""
        number = self.turn.number
        return self.keyring.key(here, there, b"shares ", number, (1, 2)), struct.pack(">QI", number, giver)

    def refuse(self) -> None:
        """Refuse to open the sum when too many clients have left to reconstruct every secret. Alike on all ranks."""
        plan, now, graph, _ = self.turn
        for client, near in graph.near.items():
            staying, least = int(now.staying[near].sum()), self._least[client]
            if staying < least:
                raise TooFewClients(
                    f"{plan.exchange.name}: in round {now.index} {staying} clients are left who hold shares of client "
                    f"{client}, and it takes {least}: more than [participation] max_dropouts = {self.most} have left, "
                    "and the sum is not opened"
                )

    def open(self, reduced: Array, tap: Tap) -> None:
        """Remaining clients reveal their shares; rank 0 removes the reconstructed masks from `reduced`. Collective.

        Raises BrokenProtocol or TooFewClients on all ranks alike, when shares were changed or are missing.
        """
        timed = self.turn.plan.account.timed
        self.seeds.clear()  # from here on, single uploads cannot be unmasked, only the sum
        with agreed(self.comm), timed():
            revealed = self._reveal_all(tap)
        gathered = self.comm.gather(revealed)
        with agreed(self.comm), timed():
            if gathered is not None:
                self._unmask(reduced, list(chain(*gathered)))

    def _reveal_all(self, tap: Tap) -> list[RevealedShare]:
        """The shares that this rank's clients reveal."""
        now, revealed = self.turn.now, []
        for holder in self._hosted(now.staying):
            for giver in self.turn.graph.near[holder].tolist():
                revealed.append(self.reveal(holder, giver, bool(now.present[giver])))
                tap(holder, f"share of client {giver}", revealed[-1][-1])
        return revealed

    def reveal(self, holder: int, giver: int, uploaded: bool) -> RevealedShare:
        """The holder's share of the giver's seed, if the giver has uploaded, else of its key.

        Raises BrokenProtocol when the holder has revealed its share of the other secret, or its sealed shares do not
        open.
        """
        if self._revealed.setdefault((holder, giver), uploaded) != uploaded:
            raise BrokenProtocol(
                f"turn {self.turn.number}: client {holder} is asked for its shares of both secrets of client {giver}, "
                "whose upload they would reveal; it reveals its share of one only"
            )
        number = int(np.searchsorted(self.turn.graph.near[giver], holder)) + 1
        sealed, context = self.deposits[giver].shares[number - 1], self.turn.context(b"shares", giver)
        both = unseal(*self._between(holder, giver, giver), sealed, context)
        return giver, number, both[:SHARE_BYTES] if uploaded else both[SHARE_BYTES:]

    def _unmask(self, reduced: Array, revealed: list[RevealedShare]) -> None:
        """Remove the self-masks of clients that uploaded, and the uncancelled pairwise masks of those that left."""
        turn, present = self.turn, self.turn.now.present
        message, graph = turn.plan.message, turn.graph
        shares = defaultdict[int, dict[int, bytes]](dict)
        for giver, number, share in revealed:
            shares[giver][number] = share
        for client in graph.near:
            secret, what = rebuild(shares[client], self._least[client]), _SEED if present[client] else _KEY
            deposit, context = self.deposits[client], turn.context(what, client)
            if derive(secret, context) != deposit.commitments[what]:
                raise BrokenProtocol(
                    f"{context.decode()}: the reconstructed secret is not what the client has committed to: at least "
                    "one share was changed, and nothing is opened"
                )
            if present[client]:
                self._pad.add([(Stream(secret), -1)], reduced, message.own(client))
                continue
            context, key = turn.context(b"keys", client), derive(secret, PROTOCOL + b", deposit")
            keys = unseal(key, _DEPOSIT_NONCE, deposit.keys, context)
            for at, (other, units) in enumerate(graph.partners(client).items()):
                if present[other]:  # and has added the mask with the opposite sign
                    stream = Stream(keys[at * STREAM_BYTES :][:STREAM_BYTES])
                    self._pad.add([(stream, 1 if client < other else -1)], reduced, message.positions(units))

    def traffic(self, now: Round, graph: MaskGraph) -> tuple[Integers, Integers]:
        """[n] bytes of deposits and shares that each client uploads and receives, as in a deployment."""
        asked, stays = graph.asked.tolist(), now.staying[graph.asked]
        near = np.array([len(graph.near[client]) for client in asked])
        up = (
            2 * _COMMITMENT_BYTES
            + graph.degrees * STREAM_BYTES
            + TAG_BYTES
            + near * (SEALED_BYTES + SHARE_BYTES * stays)
        )
        return up, near * SEALED_BYTES + -(-near // 8) * stays  # a bit for each neighbour: whether it has uploaded
