"""Secret shares that clients hold for their neighbours, so that a masked sum can be opened after dropouts.

A client draws two secrets for each turn: the seed of its self-mask, and a key under which it deposits the keys of its
pairwise masks with the server. Its neighbours receive shares of both, and reveal the share of one: see `.dropouts`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import NamedTuple

from mpifed.comm.channels.keys import PROTOCOL, TAG_BYTES, Keyring, derive, seal, unseal
from mpifed.comm.channels.shares import SECRET_BYTES, SHARE_BYTES, check, commitment, rebuild, split
from mpifed.comm.channels.streams import KEY_BYTES
from mpifed.core.errors import BrokenProtocol

SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES  # of the two shares for a neighbour
_COMMITMENT_BYTES = 32
_DEPOSIT_NONCE = b"deposit     "  # its key encrypts no other message


class Deposit(NamedTuple):
    """What a client sends to the server before it uploads."""

    client: int
    seed_commitment: bytes
    key_commitment: bytes
    keys: bytes  # of its pairwise masks, in the order of its partners; sealed
    shares: list[bytes]  # for its neighbours, ascending, each sealed for it

    @property
    def payload(self) -> bytes:
        return b"".join([self.seed_commitment, self.key_commitment, self.keys, *self.shares])


class RevealedShare(NamedTuple):
    """A share of a neighbour's secret, revealed by its holder."""

    giver: int  # whose secret it is
    number: int  # of the share
    share: bytes


def deposit_bytes(partners: int, neighbours: int) -> int:
    return 2 * _COMMITMENT_BYTES + partners * KEY_BYTES + TAG_BYTES + neighbours * SEALED_BYTES


def _context(what: bytes, turn: int, client: int) -> bytes:
    return PROTOCOL + b", " + what + b" of client %d in turn %d" % (client, turn)


class TurnSecrets:
    """Secrets of this rank's clients in a turn, and the shares that they hold."""

    def __init__(self, keyring: Keyring, turn: int) -> None:
        self.keyring, self.turn = keyring, turn
        self.seeds: dict[int, bytes] = {}  # [16] of each client's self-mask
        self.held: dict[int, list[bytes]] = {}  # by giver, the sealed shares of its neighbours
        self._revealed: dict[tuple[int, int], bool] = {}  # by holder and giver, whether the giver had uploaded

    def __repr__(self) -> str:
        return f"TurnSecrets(turn {self.turn})"

    def deposit(self, client: int, neighbours: list[int], partners: list[int], least: int) -> Deposit:
        """Draw and share the client's two secrets, with threshold `least`, and seal its keys under the second."""
        seed, wrap = os.urandom(SECRET_BYTES), os.urandom(SECRET_BYTES)
        self.seeds[client] = seed
        of_seed, of_wrap = (split(secret, len(neighbours), least) for secret in (seed, wrap))
        shares = zip(neighbours, of_seed, of_wrap, strict=True)
        keys = b"".join(self.message_key(client, other) for other in partners)
        context = _context(b"shares", self.turn, client)
        return Deposit(
            client,
            commitment(seed, _context(b"seed", self.turn, client)),
            commitment(wrap, _context(b"key", self.turn, client)),
            seal(derive(wrap, PROTOCOL + b", deposit"), _DEPOSIT_NONCE, keys, _context(b"keys", self.turn, client)),
            [
                seal(*self._between(client, holder, client), seed_share + wrap_share, context)
                for holder, seed_share, wrap_share in shares
            ],
        )

    def message_key(self, client: int, other: int) -> bytes:
        """Key [16] of the pairwise mask in this turn."""
        return self.keyring.prf(client, other).key(b"message", self.turn)

    def _between(self, here: int, there: int, giver: int) -> tuple[bytes, bytes]:
        """Key and nonce that seal the giver's shares between client `here`, of this rank, and client `there`."""
        return self.keyring.prf(here, there).long_key(b"shares ", self.turn), struct.pack(">QI", self.turn, giver)

    def reveal(self, holder: int, giver: int, number: int, answered: bool) -> RevealedShare:
        """The holder's share of the giver's seed, if the giver has uploaded, else of its key.

        Raises BrokenProtocol when the holder has revealed its share of the other secret, or its sealed shares do not
        open.
        """
        if self._revealed.setdefault((holder, giver), answered) != answered:
            raise BrokenProtocol(
                f"turn {self.turn}: client {holder} is asked for its shares of both secrets of client {giver}, whose "
                "upload they would reveal; it reveals its share of one only"
            )
        sealed, context = self.held[giver][number - 1], _context(b"shares", self.turn, giver)
        both = unseal(*self._between(holder, giver, giver), sealed, context)
        return RevealedShare(giver, number, both[:SHARE_BYTES] if answered else both[SHARE_BYTES:])


def open_seed(deposit: Deposit, shares: Mapping[int, bytes], least: int, turn: int) -> bytes:
    """Seed [16] of the self-mask of a client that has uploaded; on the server.

    Raises TooFewClients when fewer than `least` shares were revealed; BrokenProtocol when a share was changed.
    """
    seed = rebuild(shares, least)
    check(seed, _context(b"seed", turn, deposit.client), deposit.seed_commitment)
    return seed


def open_keys(deposit: Deposit, shares: Mapping[int, bytes], least: int, turn: int) -> list[bytes]:
    """Keys [16] of the pairwise masks of a client that left before its upload; on the server. Raises: `open_seed`."""
    wrap = rebuild(shares, least)
    check(wrap, _context(b"key", turn, deposit.client), deposit.key_commitment)
    context = _context(b"keys", turn, deposit.client)
    keys = unseal(derive(wrap, PROTOCOL + b", deposit"), _DEPOSIT_NONCE, deposit.keys, context)
    return [keys[start : start + KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)]
