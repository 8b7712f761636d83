"""Additively homomorphic encryption of exact integers: what a scheme is, and the schemes by name.

A ciphertext holds many integers in its slots; adding two ciphertexts adds slot by slot. To add a scheme, write a
subclass of `SharedKeyScheme` or `ThresholdScheme` in a file of its own, and add a line to `SCHEMES`: its module and
library are imported where a job names it.
"""

from __future__ import annotations

import importlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.core.errors import UsageError

LibraryObject: TypeAlias = Any  # none of the schemes' libraries has types
Ciphertext: TypeAlias = LibraryObject


SCHEMES = {  # by name: "module.Class" beside this one, and the module of the library to be installed
    "bfv": ("bfv.Bfv", "seal"),
    "threshold-bfv": ("threshold_bfv.ThresholdBfv", "openfhe"),
    "paillier": ("paillier.PackedPaillier", "tno.mpc.encryption_schemes.paillier"),
}


class Scheme(ABC):
    """Encryption and addition, which need only the public key."""

    name: str
    slots: int  # of one ciphertext
    capacity: int  # the largest sum in a slot, in absolute value
    nbytes: int  # of one ciphertext
    security: str  # in words
    budget: int | None = None  # bits of noise that the ciphertext decrypted last could still take; None: any number

    @classmethod
    @abstractmethod
    def of(cls, protection: Protection, clients: int) -> SharedKeyScheme | ThresholdScheme:
        """The scheme as the job sets it; UsageError where its library cannot be imported."""

    @classmethod
    def errors(cls, protection: Protection, clients: int, clients_per_round: int | None) -> list[str]:
        """Messages where the scheme does not support the job's settings."""
        return []

    @abstractmethod
    def use(self, public: bytes) -> None:
        """Use this public key."""

    @abstractmethod
    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """A ciphertext of up to `slots` integers, under the public key."""

    @abstractmethod
    def load(self, block: bytes) -> Ciphertext:
        """A ciphertext from its bytes; BrokenProtocol when they are not valid."""

    @abstractmethod
    def add(self, total: Ciphertext, more: Ciphertext) -> Ciphertext:
        """The sum of two ciphertexts; `total` may be changed in place."""

    @abstractmethod
    def save(self, total: Ciphertext) -> bytes:
        """Serialize a ciphertext."""

    @abstractmethod
    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(integers, modulus) that make up a ciphertext, and look uniform to anyone without the secret key."""


class SharedKeyScheme(Scheme):
    """A scheme with a single secret key for all clients."""

    @abstractmethod
    def make_keys(self) -> None:
        """Generate keys, on the rank of a single client."""

    @abstractmethod
    def public(self) -> bytes:
        """The public key, for all ranks."""

    @abstractmethod
    def secret(self) -> bytes:
        """The secret key."""

    @abstractmethod
    def trust(self, secret: bytes) -> None:
        """Use this secret key."""

    @property
    @abstractmethod
    def opens(self) -> bool:
        """Whether this rank has the secret key."""

    @abstractmethod
    def open(self, total: Ciphertext) -> NDArray[np.int64]:
        """Decrypt: [slots] integers; BrokenProtocol when the ciphertext is too damaged."""


class ThresholdScheme(Scheme):
    """A scheme in which each client has a share of the secret key, so that decryption takes all clients."""

    part_nbytes: int  # of a partial decryption of a ciphertext

    @abstractmethod
    def join(self, client: int, joint: bytes | None) -> bytes:
        """Generate the key share of a client of this rank, and extend the joint public key of earlier clients."""

    @abstractmethod
    def part(self, client: int, total: Ciphertext) -> bytes:
        """A client's partial decryption of a ciphertext."""

    @abstractmethod
    def fuse(self, parts: list[bytes]) -> NDArray[np.int64]:
        """Combine the partial decryptions of all clients, in order: [slots] integers."""

    @classmethod
    def errors(cls, protection: Protection, clients: int, clients_per_round: int | None) -> list[str]:
        errors = []
        if clients_per_round is not None and clients_per_round < clients:
            errors.append(
                f"[participation] clients_per_round = {clients_per_round}: a threshold scheme opens a sum only with "
                f'the shares of all {clients} clients; let all participate, or set [encryption] scheme = "bfv"'
            )
        if protection.max_dropouts > 0:
            errors.append(
                f"[participation] max_dropouts = {protection.max_dropouts}: a threshold scheme opens a sum only with "
                f'the shares of all {clients} clients, so none may leave; set it to 0, or [encryption] scheme = "bfv"'
            )
        return errors


def library_of(scheme: str, package: str, extra: str) -> LibraryObject:
    """The library of a scheme, from `package`; UsageError where it cannot be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that of Paillier recommends gmpy2, with which it is faster
            return importlib.import_module(SCHEMES[scheme][1])
    except ImportError as error:
        raise UsageError(
            f'[encryption] scheme = "{scheme}": the library {package} cannot be loaded ({error}); install it: '
            f"pip install 'mpifed[{extra}]'"
        ) from error


def scheme_class(name: str) -> type[SharedKeyScheme | ThresholdScheme]:
    """The class of the scheme of that name, which imports its library when it is created; UsageError: there is none."""
    if name not in SCHEMES:
        raise UsageError(f'[encryption] scheme = "{name}": expected one of {", ".join(SCHEMES)}')
    module, _, attribute = SCHEMES[name][0].partition(".")
    scheme: type[SharedKeyScheme | ThresholdScheme]
    scheme = getattr(importlib.import_module(f"mpifed.comm.encryption.{module}"), attribute)
    return scheme


def make_scheme(protection: Protection, clients: int) -> SharedKeyScheme | ThresholdScheme:
    """The scheme that the job names; UsageError when there is no such scheme, or its library cannot be imported."""
    return scheme_class(protection.scheme).of(protection, clients)


def check(protection: Protection, clients: int, clients_per_round: int | None) -> list[str]:
    """Error messages where the scheme does not support the job's settings, participation or dropouts."""
    try:
        return scheme_class(protection.scheme).errors(protection, clients, clients_per_round)
    except UsageError as error:
        return [str(error)]
