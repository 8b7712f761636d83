"""Keys of the clients: agreed in pairs by X25519 (RFC 7748), and one that all clients share and the server lacks.

A client's private key is made on the rank that hosts it and never leaves it: it is not written, not pickled, and no
text shows it. Public keys go through rank 0, as they would through a server; what two clients agree on from them is
made into key material by HKDF-SHA256 (RFC 5869). Rank 0 is trusted to pass on what it was given (honest but curious):
there are no certificates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from mpifed.comm.channel import Setting
from mpifed.comm.streams import Prf
from mpifed.core.errors import BrokenProtocol

PROTOCOL = b"mpifed masked sums, version 1"
KEY_BYTES = 32  # of a public key, a pair's secret and the group's key
TAG_BYTES = 16  # that sealing adds
_GROUP_NONCE = b"group key   "  # the only message under the key that the maker has for it with each client


def derive(secret: bytes, info: bytes, length: int = KEY_BYTES, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869)."""
    return HKDF(SHA256(), length, salt, info).derive(secret)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """What both ends of a pair know, and nobody else (RFC 7748, section 6.1).

    Raises
    ------
    BrokenProtocol
        when the public key is of small order, so that the outcome would be the same whatever the private key is.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise BrokenProtocol(
            f"a public key of {len(public)} bytes that begins with {public[:4].hex()} is no client's: "
            f"{KEY_BYTES} bytes of a point of large order were expected; nothing is sent under it"
        ) from error


def seal(key: bytes, nonce: bytes, message: bytes, context: bytes = b"") -> bytes:
    """Encrypted, and bound to its context, by ChaCha20-Poly1305 (RFC 8439)."""
    return ChaCha20Poly1305(key).encrypt(nonce, message, context)


def unseal(key: bytes, nonce: bytes, sealed: bytes, context: bytes = b"") -> bytes:
    """The message.

    Raises
    ------
    BrokenProtocol
        when it is not what was sealed under this key for this context.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, context)
    except InvalidTag:
        raise BrokenProtocol(
            f"a sealed message of {len(sealed)} bytes does not open: it was changed on its way, or sealed for another "
            "client or another turn"
        ) from None


class Keyring:
    """The keys of this rank's clients.

    Parameters
    ----------
    setting : of the channel; its transport carries public keys
    """

    def __init__(self, setting: Setting) -> None:
        self.transport, self.hosted, self.clients = setting.transport, setting.hosted, setting.clients
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
        """What clients send: each its public key, and one of them the group's key, sealed for each other one."""
        return KEY_BYTES * self.clients + self._group_bytes

    @property
    def setup_down_bytes(self) -> int:
        """What clients are sent: each all public keys, and the group's key."""
        return KEY_BYTES * self.clients**2 + self._group_bytes

    @property
    def _group_bytes(self) -> int:
        return (KEY_BYTES + TAG_BYTES) * (self.clients - 1)

    def prepare(self, timed: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """New keys, known to whom they are for; `timed` is put around cryptography. Collective.

        Raises
        ------
        BrokenProtocol
            when two clients come with the same public key, or one with none.
        """
        self.forget()
        with timed():
            self._private = {client: X25519PrivateKey.generate() for client in self.hosted.tolist()}
            own = b"".join(key.public_key().public_bytes_raw() for key in self._private.values())
        public, ranks = np.zeros((self.clients, KEY_BYTES), np.uint8), np.full(self.clients, -1)
        gathered = self.transport.gather((self.hosted, np.frombuffer(own, np.uint8).reshape(-1, KEY_BYTES)))
        for rank, (clients, keys) in enumerate(gathered or []):
            public[clients], ranks[clients] = keys, rank
        self.public, ranks = self.transport.share((public, ranks))
        if len(np.unique(self.public, axis=0)) < self.clients or (ranks < 0).any():
            raise BrokenProtocol(
                f"{self.clients} clients, but {len(np.unique(self.public, axis=0))} different public keys of "
                f"{int((ranks >= 0).sum())} of them: each must have one of its own"
            )
        self._agree_on_group(ranks, timed)

    def _agree_on_group(self, ranks: NDArray[np.int64], timed: Callable[[], AbstractContextManager[None]]) -> None:
        """The first client makes the group's key; one client of each other rank is sent it for all of that rank.

        (In a deployment every client is sent it, which is what is counted.)
        """
        first = {int(rank): int(np.flatnonzero(ranks == rank)[0]) for rank in np.unique(ranks)}
        maker, sealed = 0, {}
        if maker in self._private:
            self._group = os.urandom(KEY_BYTES)
            with timed():
                sealed = {
                    rank: seal(self._group_seal(maker, client), _GROUP_NONCE, self._group)
                    for rank, client in first.items()
                    if client != maker
                }
        gathered = self.transport.gather(sealed)
        sealed = self.transport.share({rank: one for some in gathered or [] for rank, one in some.items()})
        if self._private and self._group is None:
            receiver = first[self.transport.rank]
            self._group = unseal(self._group_seal(receiver, maker), _GROUP_NONCE, sealed[self.transport.rank])

    def _group_seal(self, i: int, j: int) -> bytes:
        return derive(self.pair(i, j), PROTOCOL + b", group key")

    def pair(self, i: int, j: int) -> bytes:
        """[32] what client `i`, of this rank, and client `j` have agreed on; found when first needed.

        Raises
        ------
        BrokenProtocol
            when the other's public key is of small order.
        """
        pair = (i, j) if i < j else (j, i)
        found = self._pairs.get(pair)
        if found is None:
            found = self._pairs[pair] = self._secret(i, j)
        return found

    def prf(self, i: int, j: int) -> Prf:
        """What makes the keys of single messages of the secret of client `i`, of this rank, and client `j`."""
        pair = (i, j) if i < j else (j, i)
        found = self._prfs.get(pair)
        if found is None:
            found = self._prfs[pair] = Prf(self.pair(i, j))
        return found

    def _secret(self, i: int, j: int) -> bytes:
        first, second = (self.public[client].tobytes() for client in sorted((i, j)))
        return derive(agree(self._private[i], self.public[j].tobytes()), PROTOCOL + b", pair" + first + second)

    @property
    def group(self) -> bytes:
        """[32] what all clients know, and rank 0 does not unless it hosts some."""
        if self._group is None:
            raise BrokenProtocol(
                "the group's key is known to ranks that host clients, after they have agreed on keys, and to no others"
            )
        return self._group

    def secrets(self) -> Iterator[bytes]:
        """All that is in no message and with no server: for the audit, which looks for them."""
        yield from (key.private_bytes_raw() for key in self._private.values())
        yield from self._pairs.values()
        if self._group is not None:
            yield self._group

    def forget(self) -> None:
        """Drop all keys: what was sealed under them stays sealed."""
        self._private, self._group = {}, None
        self._pairs.clear()
        self._prfs.clear()

    @classmethod
    def made_up(cls, setting: Setting) -> Keyring:
        """A keyring of random secrets, for a rehearsal: the clients of other ranks are not there."""
        found = _MadeUp(setting)
        found._group = os.urandom(KEY_BYTES)
        return found


class _MadeUp(Keyring):
    """No private keys: what a pair has agreed on is drawn."""

    def prepare(self, timed: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Nothing to agree on."""

    def _secret(self, i: int, j: int) -> bytes:
        return os.urandom(KEY_BYTES)
