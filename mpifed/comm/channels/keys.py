"""Keys of the clients: pairwise, agreed by X25519 (RFC 7748), and a group key that the server does not have.

A client's private key is generated on the rank that hosts it and never leaves it: it is not written, not pickled, and
appears in no text. Public keys are sent through rank 0, as they would be through a server; the shared secret of two
clients is turned into key material by HKDF-SHA256 (RFC 5869). Rank 0 is trusted to forward public keys unchanged
(honest but curious): there are no certificates.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from mpifed.comm.channels.base import ChannelSetting
from mpifed.comm.channels.streams import Prf
from mpifed.core.errors import BrokenProtocol

PROTOCOL = b"mpifed masked sums, version 1"
KEY_BYTES = 32  # of a public key, a pair's secret and the group key
TAG_BYTES = 16  # added by authenticated encryption
_GROUP_NONCE = b"group key   "  # its key, of the creator and a client, encrypts no other message


def derive(secret: bytes, info: bytes, length: int = KEY_BYTES, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    return HKDF(SHA256(), length, salt, info).derive(secret)


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
    """The keys of this rank's clients; public keys travel between ranks."""

    def __init__(self, setting: ChannelSetting) -> None:
        self.comm, self.hosted, self.clients = setting.comm, setting.hosted, setting.clients
        self.public: NDArray[np.uint8] = np.zeros((0, KEY_BYTES), np.uint8)  # [N, 32]; on every rank
        self._private: dict[int, X25519PrivateKey] = {}
        self._pairs: dict[tuple[int, int], bytes] = {}
        self._prfs: dict[tuple[int, int], Prf] = {}
        self._group: bytes | None = None

    def __repr__(self) -> str:
        return f"Keyring(of {len(self.hosted)} of {self.clients} clients)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keyring stays on its rank: it is neither copied nor written")

    @property
    def setup_up_bytes(self) -> int:
        """Uploads: the public key of each client, and the group key, sealed for each client but its creator."""
        return KEY_BYTES * self.clients + self._group_bytes

    @property
    def setup_down_bytes(self) -> int:
        """Downloads: each client receives all public keys, and the group key."""
        return KEY_BYTES * self.clients**2 + self._group_bytes

    @property
    def _group_bytes(self) -> int:
        return (KEY_BYTES + TAG_BYTES) * (self.clients - 1)

    def prepare(self, timed: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Generate and distribute new keys. Collective; BrokenProtocol when clients share one, or one has none."""
        self.forget()
        with timed():
            self._private = {client: X25519PrivateKey.generate() for client in self.hosted.tolist()}
            public_bytes = b"".join(key.public_key().public_bytes_raw() for key in self._private.values())
        public, ranks = np.zeros((self.clients, KEY_BYTES), np.uint8), np.full(self.clients, -1)
        gathered = self.comm.gather((self.hosted, np.frombuffer(public_bytes, np.uint8).reshape(-1, KEY_BYTES)))
        for rank, (clients, keys) in enumerate(gathered or []):
            public[clients], ranks[clients] = keys, rank
        self.public, ranks = self.comm.bcast((public, ranks))
        if len(np.unique(self.public, axis=0)) < self.clients or (ranks < 0).any():
            raise BrokenProtocol(
                f"{self.clients} clients, but {len(np.unique(self.public, axis=0))} different public keys of "
                f"{int((ranks >= 0).sum())} of them: each must have its own"
            )
        self._agree_on_group(ranks, timed)

    def _agree_on_group(self, ranks: NDArray[np.int64], timed: Callable[[], AbstractContextManager[None]]) -> None:
        """The first client generates the group key; the first client of each other rank receives it for that rank.

        (In a deployment every client receives it, which is what is counted.)
        """
        first = {int(rank): int(np.flatnonzero(ranks == rank)[0]) for rank in np.unique(ranks)}
        creator, sealed = 0, {}
        if creator in self._private:
            self._group = os.urandom(KEY_BYTES)
            with timed():
                sealed = {
                    rank: seal(self._group_seal(creator, client), _GROUP_NONCE, self._group)
                    for rank, client in first.items()
                    if client != creator
                }
        gathered = self.comm.gather(sealed)
        sealed = self.comm.bcast({rank: key for keys in gathered or [] for rank, key in keys.items()})
        if self._private and self._group is None:
            receiver = first[self.comm.rank]
            self._group = unseal(self._group_seal(receiver, creator), _GROUP_NONCE, sealed[self.comm.rank])

    def _group_seal(self, i: int, j: int) -> bytes:
        return derive(self.pair(i, j), PROTOCOL + b", group key")

    def pair(self, i: int, j: int) -> bytes:
        """[32] the secret of client `i`, of this rank, and `j`; BrokenProtocol where that has a key of small order."""
        pair = (i, j) if i < j else (j, i)
        secret = self._pairs.get(pair)
        if secret is None:
            secret = self._pairs[pair] = self._secret(i, j)
        return secret

    def prf(self, i: int, j: int) -> Prf:
        """Derives the keys of single messages from the secret of client `i`, of this rank, and client `j`."""
        pair = (i, j) if i < j else (j, i)
        prf = self._prfs.get(pair)
        if prf is None:
            prf = self._prfs[pair] = Prf(self.pair(i, j))
        return prf

    def _secret(self, i: int, j: int) -> bytes:
        first, second = (self.public[client].tobytes() for client in sorted((i, j)))
        return derive(agree(self._private[i], self.public[j].tobytes()), PROTOCOL + b", pair" + first + second)

    @property
    def group(self) -> bytes:
        """[32] the key of all clients, which rank 0 does not have unless it hosts clients."""
        if self._group is None:
            raise BrokenProtocol("the group key is known only to ranks that host clients, after the key agreement")
        return self._group

    def forget(self) -> None:
        """Discard all keys: messages sealed under them can no longer be opened."""
        self._private, self._group = {}, None
        self._pairs.clear()
        self._prfs.clear()
