"""Keys of the clients, pairwise and of all of them, and the streams that these keys give.

A client's private key (X25519, RFC 7748) is generated when it first takes part, on the rank that hosts it, and never
leaves it: it is not written, not pickled, and appears in no text. Public keys are sent through rank 0, as they would be
through a server, which is trusted to forward them unchanged (honest but curious): there are no certificates. The shared
secret of two clients is turned into key material by HKDF-SHA256 (RFC 5869). A group key, which the server does not
have, is sent sealed.

A pair has a single secret for the whole run, and a key of its own for every message: the secret is the key of a
pseudorandom function, which is AES-256 of a single block for each key (label, half, turn). Blocks never repeat, and
from so few of them a permutation cannot be told from a function. So a party that is given the key of one message, as
the server is after a client has left, learns nothing about any other message.

Streams are AES-128 in counter mode (NIST SP 800-38A), read as little-endian integers. On CPUs
with AES instructions, 10^6 integers of 64 bits take 1.1 ms, against 1.5 with AES-256 and 1.8 with ChaCha20.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from mpifed.comm.channels.base import ChannelSetting
from mpifed.comm.costs import Account
from mpifed.core.errors import BrokenProtocol
from mpifed.core.holdings import Positions
from mpifed.core.record import Integers
from mpifed.data.roster import located

PROTOCOL = b"mpifed masked sums, version 1"
KEY_BYTES = 32  # of a public key, a pair's secret and the group key
STREAM_BYTES = 16  # of a stream's key
TAG_BYTES = 16  # added by authenticated encryption
PIECE_BYTES = 2**18  # of a stream, generated and added piece by piece, so that it and the message stay in the cache
_SPARE = 16  # bytes that the library requires beyond its output
_GROUP_NONCE = b"group key   "  # its key, of the creator and a client, encrypts no other message


# --- secrets ----------------------------------------------------------------------------------------------------------


def derive(secret: bytes, info: bytes) -> bytes:
    """[32] by HKDF-SHA256 (RFC 5869), without salt."""
    return HKDF(SHA256(), KEY_BYTES, None, info).derive(secret)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """The shared secret of a private and a public key (RFC 7748, section 6.1).

    Raises BrokenProtocol when the public key is of small order, so that the secret would not depend on the private key.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise BrokenProtocol(
            f"a public key of {len(public)} bytes that begins with {public[:4].hex()} is no client's: "
            f"{KEY_BYTES} bytes of a point of large order were expected; nothing is sent under it"
        ) from error


def seal(key: bytes, nonce: bytes, message: bytes, context: bytes = b"") -> bytes:
    """Encrypt a message and authenticate it with its context, by ChaCha20-Poly1305 (RFC 8439)."""
    return ChaCha20Poly1305(key).encrypt(nonce, message, context)


def unseal(key: bytes, nonce: bytes, sealed: bytes, context: bytes = b"") -> bytes:
    """Decrypt a message of `seal`; BrokenProtocol when it was not sealed under this key for this context."""
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, context)
    except InvalidTag:
        raise BrokenProtocol(
            f"a sealed message of {len(sealed)} bytes does not open: it was changed in transit, or sealed for another "
            "client or another turn"
        ) from None


class Keyring:
    """The keys of this rank's clients; the ranks pass on public keys. What it takes is counted in `account`."""

    def __init__(self, setting: ChannelSetting, account: Account) -> None:
        self.comm, self.hosted, self.clients, _ = setting
        self._timed = account.timed
        self.public: dict[int, bytes] = {}  # of 32 bytes, of each client who has taken part; on every rank
        self._private: dict[int, X25519PrivateKey] = {}
        self._group: bytes | None = None
        self._prf = cache(lambda i, j: Cipher(algorithms.AES256(self.pair(i, j)), modes.ECB()).encryptor().update)
        # the public key of each client, and the group key, sealed for each client but its creator, who receive it; and
        # each of them and the creator the other's public key
        others = (KEY_BYTES + TAG_BYTES) * (self.clients - 1)
        self.setup_bytes = KEY_BYTES * self.clients + others, 2 * KEY_BYTES * (self.clients - 1) + others  # up, down

    def prepare(self) -> dict[int, bytes]:
        """Agree on a group key, which client 0 generates and the first client of each other rank receives for that one.
        Collective, once; gives and raises what `introduce` does.

        (In a deployment every client receives it, which is what is counted.)
        """
        first = [client for clients in self.comm.allgather(self.hosted[:1].tolist()) for client in clients]
        own, sealed = self.introduce(np.union1d(0, first)), {}
        with self._timed():
            if 0 in self._private:
                self._group = os.urandom(KEY_BYTES)
                for client in filter(None, first):
                    sealed[client] = seal(self._group_seal(0, client), _GROUP_NONCE, self._group)
        sealed = next(filter(None, self.comm.allgather(sealed)), {})
        with self._timed():
            for client in sealed.keys() & self._private.keys():
                self._group = unseal(self._group_seal(client, 0), _GROUP_NONCE, sealed[client])
        return own

    def introduce(self, clients: Integers) -> dict[int, bytes]:
        """Generate and distribute the keys of those of `clients` [n] who have none: [32] of this rank's. Collective.

        BrokenProtocol when clients share a key, or one has none. `clients` are the same, ascending, on every rank.
        """
        new = np.array([client for client in clients.tolist() if client not in self.public], dtype=np.int64)
        if not len(new):
            return {}
        with self._timed():
            private = {
                client: X25519PrivateKey.generate() for client in self.hosted[located(new, self.hosted)].tolist()
            }
            own = {client: key.public_key().public_bytes_raw() for client, key in private.items()}
        self._private |= private
        known = len(self.public) + len(new)
        for keys in self.comm.allgather(own):
            self.public |= keys
        if (different := len(set(self.public.values()))) < known:
            raise BrokenProtocol(f"{known} clients have {different} different public keys: each must have its own")
        return own

    def _group_seal(self, i: int, j: int) -> bytes:
        return derive(self.pair(i, j), PROTOCOL + b", group key")

    def pair(self, i: int, j: int) -> bytes:
        """[32] the secret of two clients, one of this rank; BrokenProtocol where the other's key is of small order."""
        own, other = (i, j) if i in self._private else (j, i)
        both = b"".join(self.public[client] for client in sorted((i, j)))
        return derive(agree(self._private[own], self.public[other]), PROTOCOL + b", pair" + both)

    def key(self, i: int, j: int, label: bytes, turn: int, halves: Sequence[int] = (0,)) -> bytes:
        """[16 each half] the key of one message of two clients, one of this rank, for a label of 7 bytes."""
        return self._prf(min(i, j), max(i, j))(b"".join(struct.pack(">7sBQ", label, half, turn) for half in halves))

    @property
    def group(self) -> bytes:
        """[32] the key of all clients, which rank 0 does not have unless it hosts clients."""
        if self._group is None:
            raise BrokenProtocol("the group key is known only to ranks that host clients, after the key agreement")
        return self._group


# --- streams ----------------------------------------------------------------------------------------------------------


def nonce(turn: int, client: int = 0) -> bytes:
    """[16] turn, client and a block counter that starts at 0, in 6, 4 and 6 bytes."""
    return struct.pack(">QII", turn << 16 | client >> 16, (client & 0xFFFF) << 16, 0)


class Stream:
    """Key stream of a key; it only moves forward, until `begin` restarts it under another nonce, at little cost."""

    __slots__ = ("begin", "into")

    def __init__(self, key: bytes, nonce: bytes = bytes(16)) -> None:
        context = Cipher(algorithms.AES(key), modes.CTR(nonce)).encryptor()
        self.begin: Callable[[bytes], None] = context.reset_nonce  # of a nonce
        self.into: Callable[[memoryview, memoryview], int] = context.update_into  # (zeros, output of the same length)


Mask: TypeAlias = tuple[Stream, int]  # stream and sign


class Pad:
    """Adds key streams to messages; owns buffers, so use it from a single thread."""

    def __init__(self) -> None:
        self._zeros = memoryview(bytes(PIECE_BYTES))
        self._generated: NDArray[np.uint8] = np.empty(PIECE_BYTES + _SPARE, np.uint8)
        self._out = memoryview(self._generated)  # type: ignore[arg-type]

    def add(self, masks: Sequence[Mask], message: Integers, at: Positions) -> None:
        """Add the streams, or subtract them where the sign is negative, to the message's entries `at`, in place.

        All streams are added to a piece while it is in the cache.
        """
        values = message[at]  # a view of a slice, and of other positions a copy
        length = PIECE_BYTES // message.itemsize
        for start in range(0, len(values), length):
            piece = values[start : start + length]
            zeros, out = self._zeros[: piece.nbytes], self._out
            key_stream = self._generated[: piece.nbytes].view("<i8")
            for stream, sign in masks:
                stream.into(zeros, out)
                (np.add if sign > 0 else np.subtract)(piece, key_stream, piece)
        if not isinstance(at, slice):
            message[at] = values


class Turns:
    """Counts messages, so that no key stream is ever used for two of them."""

    def __init__(self) -> None:
        self.now = 0
        self._sealed: set[int] = set()

    def next(self) -> int:
        """The next turn; `nonce` has room for 2^48 of them, and they restart only with new keys."""
        self.now += 1
        self._sealed.clear()
        return self.now

    def use(self, client: int) -> None:
        """Register that the client seals its message of this turn; BrokenProtocol when it has sealed one before."""
        if client in self._sealed:
            raise BrokenProtocol(
                f"repeated nonce: client {client} would seal a second message in turn {self.now}; their difference "
                "would be known to anyone who has both"
            )
        self._sealed.add(client)
