"""Additively homomorphic encryption of exact integers: what a scheme offers, and the schemes there are.

A ciphertext of each holds many integers in its slots; adding two ciphertexts adds slot by slot.

bfv             Fan and Vercauteren 2012, by Microsoft SEAL; the clients share one secret key, which the server lacks
threshold-bfv   the same by OpenFHE; every client has a share of the key of its own, and only all together can open
paillier        Paillier 1999, the scheme that the papers name; slow, and here to be compared with
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.core.errors import UsageError

SCHEMES = ("bfv", "threshold-bfv", "paillier")


class Scheme(Protocol):
    """Encrypts and adds, with the public key alone."""

    name: str
    slots: int  # of one ciphertext
    capacity: int  # the largest sum in a slot, in absolute value
    nbytes: int  # of one ciphertext
    security: str  # in words

    def use(self, public: bytes) -> None:
        """Take a public key."""

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """A ciphertext of up to `slots` numbers, under the public key."""

    def load(self, block: bytes) -> Any:
        """A ciphertext from its bytes; BrokenProtocol when they are none."""

    def add(self, total: Any, more: Any) -> Any:
        """The sum of two; the first may be changed."""

    def save(self, total: Any) -> bytes:
        """The bytes of a ciphertext."""

    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(numbers, modulus): what a ciphertext consists of, which looks uniform to whoever cannot open it."""

    def randomness(self, block: bytes) -> Iterator[bytes]:
        """What of a ciphertext follows from its randomness and the public key alone, whatever is encrypted.

        Where one of these is the same in two ciphertexts, they were made alike: by chance with 2^-72, at most.
        """

    def secrets(self) -> Iterator[bytes]:
        """The secret keys that are here; for the audit."""


class Shared(Scheme, Protocol):
    """One secret key for all clients."""

    def make_keys(self) -> None:
        """New keys, on one client's rank."""

    def public(self) -> bytes:
        """The public key, for everybody."""

    def secret(self) -> bytes:
        """The secret key."""

    def trust(self, secret: bytes) -> None:
        """Take a secret key."""

    @property
    def opens(self) -> bool:
        """Whether the secret key is here."""

    def open(self, total: Any) -> NDArray[np.int64]:
        """[slots] the numbers of a ciphertext; BrokenProtocol when it is damaged beyond opening."""


class Split(Scheme, Protocol):
    """A share of the secret key for each client."""

    part_nbytes: int  # of a partial opening of one ciphertext

    def join(self, client: int, joint: bytes | None) -> bytes:
        """Give a client of this rank its share, and extend the joint public key of those before it."""

    def part(self, client: int, total: Any) -> bytes:
        """A client's part of the opening of a ciphertext."""

    def fuse(self, parts: list[bytes]) -> NDArray[np.int64]:
        """[slots] the numbers, from the parts of all clients in their order."""


def make_scheme(protection: Protection, clients: int) -> Shared | Split:
    """The scheme that the job names, its library loaded now.

    Raises
    ------
    UsageError
        when there is no such scheme, or its library cannot be loaded.
    """
    if protection.scheme == "bfv":
        from mpifed.comm.encryption.bfv import Bfv

        return Bfv()
    if protection.scheme == "threshold-bfv":
        from mpifed.comm.encryption.threshold import ThresholdBfv

        return ThresholdBfv(clients)
    if protection.scheme == "paillier":
        from mpifed.comm.encryption.paillier import PackedPaillier

        return PackedPaillier(protection.key_bits)
    raise UsageError(f'[encryption] scheme = "{protection.scheme}": expected one of {", ".join(SCHEMES)}')


def check(protection: Protection, clients: int, clients_per_round: int | None) -> list[str]:
    """What does not fit between the scheme and how clients take part, one message each."""
    if protection.scheme not in SCHEMES:
        return [f'[encryption] scheme = "{protection.scheme}": expected one of {", ".join(SCHEMES)}']
    if protection.scheme == "paillier" and not 2048 <= protection.key_bits <= 8192:
        return [f"[encryption] key_bits = {protection.key_bits}: expected 2048 to 8192 (3072 is 128-bit security)"]
    if protection.scheme != "threshold-bfv":
        return []
    found = []
    if clients_per_round is not None and clients_per_round < clients:
        found.append(
            f"[participation] clients_per_round = {clients_per_round}: a threshold scheme opens a sum only with the "
            f'shares of all {clients} clients; let all take part, or set [encryption] scheme = "bfv"'
        )
    if protection.max_dropouts > 0:
        found.append(
            f"[participation] max_dropouts = {protection.max_dropouts}: a threshold scheme opens a sum only with the "
            f'shares of all {clients} clients, so none may leave; set it to 0, or [encryption] scheme = "bfv"'
        )
    return found
