"""Additively homomorphic encryption of exact integers: the interface of a scheme, and the schemes available.

A ciphertext holds many integers in its slots; adding two ciphertexts adds slot by slot.

bfv             Fan and Vercauteren 2012, by Microsoft SEAL; the clients share a secret key, which the server lacks
threshold-bfv   the same by OpenFHE; each client has its own share of the key, and decryption takes all of them
paillier        Paillier 1999, the scheme that papers name; slow, for comparison
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
    """Encryption and addition, which need only the public key."""

    name: str
    slots: int  # of one ciphertext
    capacity: int  # the largest sum in a slot, in absolute value
    nbytes: int  # of one ciphertext
    security: str  # in words

    def use(self, public: bytes) -> None:
        """Use this public key."""

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """A ciphertext of up to `slots` integers, under the public key."""

    def load(self, block: bytes) -> Any:
        """A ciphertext from its bytes; BrokenProtocol when they are not valid."""

    def add(self, total: Any, more: Any) -> Any:
        """The sum of two ciphertexts; `total` may be changed in place."""

    def save(self, total: Any) -> bytes:
        """Serialize a ciphertext."""

    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(integers, modulus) that make up a ciphertext, and look uniform to anyone without the secret key."""

    def randomness(self, block: bytes) -> Iterator[bytes]:
        """Parts of a ciphertext that depend only on its randomness and the public key, not on the plaintext.

        Where one of these is equal in two ciphertexts, they share randomness: by chance with probability <= 2^-72.
        """

    def secrets(self) -> Iterator[bytes]:
        """The secret keys on this rank; for the audit."""


class Shared(Scheme, Protocol):
    """A scheme with a single secret key for all clients."""

    def make_keys(self) -> None:
        """Generate keys, on the rank of a single client."""

    def public(self) -> bytes:
        """The public key, for all ranks."""

    def secret(self) -> bytes:
        """The secret key."""

    def trust(self, secret: bytes) -> None:
        """Use this secret key."""

    @property
    def opens(self) -> bool:
        """Whether this rank has the secret key."""

    def open(self, total: Any) -> NDArray[np.int64]:
        """Decrypt: [slots] integers; BrokenProtocol when the ciphertext is too damaged."""


class Split(Scheme, Protocol):
    """A threshold scheme: each client has a share of the secret key."""

    part_nbytes: int  # of a partial decryption of a ciphertext

    def join(self, client: int, joint: bytes | None) -> bytes:
        """Generate the key share of a client of this rank, and extend the joint public key of earlier clients."""

    def part(self, client: int, total: Any) -> bytes:
        """A client's partial decryption of a ciphertext."""

    def fuse(self, parts: list[bytes]) -> NDArray[np.int64]:
        """Combine the partial decryptions of all clients, in order: [slots] integers."""


def make_scheme(protection: Protection, clients: int) -> Shared | Split:
    """The scheme that the job names; its library is imported here.

    Raises
    ------
    UsageError
        when there is no such scheme, or its library cannot be imported.
    """
    if protection.scheme == "bfv":
        from mpifed.comm.encryption.bfv import Bfv

        return Bfv()
    if protection.scheme == "threshold-bfv":
        from mpifed.comm.encryption.threshold_bfv import ThresholdBfv

        return ThresholdBfv(clients)
    if protection.scheme == "paillier":
        from mpifed.comm.encryption.paillier import PackedPaillier

        return PackedPaillier(protection.key_bits)
    raise UsageError(f'[encryption] scheme = "{protection.scheme}": expected one of {", ".join(SCHEMES)}')


def check(protection: Protection, clients: int, clients_per_round: int | None) -> list[str]:
    """Error messages where the scheme does not support the job's participation or dropouts."""
    if protection.scheme not in SCHEMES:
        return [f'[encryption] scheme = "{protection.scheme}": expected one of {", ".join(SCHEMES)}']
    if protection.scheme == "paillier" and not 2048 <= protection.key_bits <= 8192:
        return [f"[encryption] key_bits = {protection.key_bits}: expected 2048 to 8192 (3072 is 128-bit security)"]
    if protection.scheme != "threshold-bfv":
        return []
    errors = []
    if clients_per_round is not None and clients_per_round < clients:
        errors.append(
            f"[participation] clients_per_round = {clients_per_round}: a threshold scheme opens a sum only with the "
            f'shares of all {clients} clients; let all participate, or set [encryption] scheme = "bfv"'
        )
    if protection.max_dropouts > 0:
        errors.append(
            f"[participation] max_dropouts = {protection.max_dropouts}: a threshold scheme opens a sum only with the "
            f'shares of all {clients} clients, so none may leave; set it to 0, or [encryption] scheme = "bfv"'
        )
    return errors
