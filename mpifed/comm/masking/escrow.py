"""What a client keeps of its neighbours' secrets, so that a masked sum can be opened without those who leave.

A client draws two secrets for each turn: the seed of a mask of its own, and a key under which it deposits the keys of
its pair masks with the server. Its neighbours get shares of both, and hand over that of one: see `.dropouts`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mpifed.comm.keys import PROTOCOL, TAG_BYTES, Keyring, derive, seal, unseal
from mpifed.comm.masking.shares import SECRET_BYTES, SHARE_BYTES, check, commitment, rebuild, split
from mpifed.comm.streams import KEY_BYTES
from mpifed.core.errors import BrokenProtocol

SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES  # what a client sends to a neighbour
_COMMITMENT_BYTES = 32
_DEPOSIT_NONCE = b"deposit     "  # the only message under its key


class Deposit(NamedTuple):
    """What a client sends the server before it answers."""

    client: int
    seed_commitment: bytes
    key_commitment: bytes
    keys: bytes  # of its pair masks, in the order of its partners; sealed
    shares: list[bytes]  # for its neighbours, ascending, each sealed for it

    @property
    def payload(self) -> bytes:
        """As it travels."""
        return b"".join([self.seed_commitment, self.key_commitment, self.keys, *self.shares])


class Drawn(NamedTuple):
    """The secrets of a client's deposit: for an audit, which plays all parties; nobody else ever has them together."""

    turn: int
    client: int
    seed: bytes
    wrap: bytes  # under which the keys are deposited
    keys: dict[int, bytes]  # of its pair masks, by partner
    seed_shares: list[bytes]
    wrap_shares: list[bytes]
    under: dict[int, bytes]  # the key under which the shares of each neighbour travel


class Opening(NamedTuple):
    """What a client hands over of a neighbour's secrets."""

    giver: int  # whose secret it is
    number: int  # of the share
    share: bytes


def deposit_bytes(partners: int, neighbours: int) -> int:
    """Of a client."""
    return 2 * _COMMITMENT_BYTES + partners * KEY_BYTES + TAG_BYTES + neighbours * SEALED_BYTES


def _context(what: bytes, turn: int, client: int) -> bytes:
    return PROTOCOL + b", " + what + b" of client %d in turn %d" % (client, turn)


class Escrow:
    """What this rank's clients keep in one turn: their own secrets, and the shares of others'."""

    def __init__(self, keyring: Keyring, turn: int, watch: Callable[[Drawn], None] | None = None) -> None:
        self.keyring, self.turn, self._watch = keyring, turn, watch
        self.seeds: dict[int, bytes] = {}  # [16] of each client's own mask
        self.held: dict[int, list[bytes]] = {}  # by giver, what its neighbours were sent
        self._handed: dict[tuple[int, int], bool] = {}  # by holder and giver, whether the giver had answered

    def __repr__(self) -> str:
        return f"Escrow(turn {self.turn})"

    def deposit(self, client: int, neighbours: list[int], partners: list[int], least: int) -> Deposit:
        """The client's two secrets in shares, of which `least` rebuild them, and its keys under one of them."""
        seed, wrap = os.urandom(SECRET_BYTES), os.urandom(SECRET_BYTES)
        self.seeds[client] = seed
        of_seed, of_wrap = (split(secret, len(neighbours), least) for secret in (seed, wrap))
        halves = zip(neighbours, of_seed, of_wrap, strict=True)
        keys = b"".join(self.message_key(client, other) for other in partners)
        if self._watch is not None:
            each = {other: self.message_key(client, other) for other in partners}
            under = {holder: self._between(client, holder, client)[0] for holder in neighbours}
            self._watch(Drawn(self.turn, client, seed, wrap, each, of_seed, of_wrap, under))
        context = _context(b"shares", self.turn, client)
        return Deposit(
            client,
            commitment(seed, _context(b"seed", self.turn, client)),
            commitment(wrap, _context(b"key", self.turn, client)),
            seal(derive(wrap, PROTOCOL + b", deposit"), _DEPOSIT_NONCE, keys, _context(b"keys", self.turn, client)),
            [seal(*self._between(client, holder, client), one + other, context) for holder, one, other in halves],
        )

    def message_key(self, client: int, other: int) -> bytes:
        """[16] of the pair's mask in this turn."""
        return self.keyring.prf(client, other).key(b"message", self.turn)

    def _between(self, here: int, there: int, giver: int) -> tuple[bytes, bytes]:
        """Key and nonce under which the giver's shares travel between client `here`, of this rank, and `there`."""
        return self.keyring.prf(here, there).long_key(b"shares ", self.turn), struct.pack(">QI", self.turn, giver)

    def hand_over(self, holder: int, giver: int, number: int, answered: bool) -> Opening:
        """The holder's share of the giver's seed, if it has answered, else of its key.

        Raises
        ------
        BrokenProtocol
            when the other one has been handed over, or the shares that the holder was sent do not open.
        """
        if self._handed.setdefault((holder, giver), answered) != answered:
            raise BrokenProtocol(
                f"turn {self.turn}: client {holder} is asked for its shares of both secrets of client {giver}, whose "
                "answer they would show; it hands over one"
            )
        sealed, context = self.held[giver][number - 1], _context(b"shares", self.turn, giver)
        both = unseal(*self._between(holder, giver, giver), sealed, context)
        return Opening(giver, number, both[:SHARE_BYTES] if answered else both[SHARE_BYTES:])


def open_seed(deposit: Deposit, shares: Mapping[int, bytes], least: int, turn: int) -> bytes:
    """[16] of the own mask of a client who has answered; on the server.

    Raises
    ------
    TooFewClients
        when fewer than `least` shares were handed over.
    BrokenProtocol
        when one of them was changed.
    """
    seed = rebuild(shares, least)
    check(seed, _context(b"seed", turn, deposit.client), deposit.seed_commitment)
    return seed


def open_keys(deposit: Deposit, shares: Mapping[int, bytes], least: int, turn: int) -> list[bytes]:
    """[16] each, of the pair masks of a client who left before it answered; on the server. Raises like `open_seed`."""
    wrap = rebuild(shares, least)
    check(wrap, _context(b"key", turn, deposit.client), deposit.key_commitment)
    context = _context(b"keys", turn, deposit.client)
    keys = unseal(derive(wrap, PROTOCOL + b", deposit"), _DEPOSIT_NONCE, deposit.keys, context)
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]
