"""BFV by Microsoft SEAL: 8192 exact integers a ciphertext, 32 bytes and about half a microsecond each.

Fan and Vercauteren, "Somewhat practical fully homomorphic encryption", 2012. Clients encrypt with the public key, so an
upload needs no secret; encrypting with the secret key would save a third of a sum's time.

Parameters: ring of dimension 8192; two primes of 60 bits, which form the ciphertext modulus, and one of 32, only in
keys. Their 152 bits are the maximum of the homomorphic encryption standard for 192-bit security (218 for 128-bit). The
plaintext modulus is a prime of 58 bits, equal to 1 mod 16384, which allows batching. A sum of 10,000 ciphertexts leaves
41 bits of noise budget; one prime less would leave none, and decryption would give garbage.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import BrokenProtocol, UsageError

LibraryObject: TypeAlias = Any  # the library has no types
Ciphertext: TypeAlias = LibraryObject

_RING = 8192
_PLAIN = 288230376150876161
_LEAST_BUDGET = 8  # bits; a ciphertext with less was altered, or is the sum of too many


def library() -> LibraryObject:
    """Microsoft SEAL; UsageError where it cannot be imported."""
    try:
        return importlib.import_module("seal")
    except ImportError as error:
        raise UsageError(
            f'[aggregation] security = "encrypted": the library seal-python cannot be loaded ({error}); install it: '
            "pip install 'mpifed[encrypted]'"
        ) from error


class Bfv:
    """Encryption and addition of exact integers in slots, for which the public key is enough, and decryption.

    All clients share the secret key. The public key is on every rank, the secret one on ranks of clients alone, and
    never on disk.
    """

    slots = _RING  # of one ciphertext
    capacity = _PLAIN // 2  # the largest sum in a slot, in absolute value
    budget: int | None = None  # bits of noise that the ciphertext decrypted last could still take

    def __init__(self, primes: Sequence[int] = (60, 60, 32)) -> None:
        """`primes`: bits of the primes of the modulus; the last is used only in keys."""
        seal = self._seal = library()
        parameters = seal.EncryptionParameters(seal.scheme_type.bfv)
        parameters.set_poly_modulus_degree(_RING)
        parameters.set_coeff_modulus(seal.CoeffModulus.Create(_RING, list(primes)))
        parameters.set_plain_modulus(_PLAIN)
        self._context = seal.SEALContext(parameters, True, seal.sec_level_type.tc128)
        if not self._context.parameters_set():
            raise UsageError(f"BFV with primes of {list(primes)} bits: {self._context.parameter_error_message()}")
        self.security = self._strength(sum(primes))
        self._moduli = [modulus.value() for modulus in parameters.coeff_modulus()][:-1]
        self._data = 2 * len(self._moduli) * _RING  # numbers of a ciphertext: two polynomials for each prime
        self.nbytes = 8 * self._data + 113
        self._encoder, self._evaluator = seal.BatchEncoder(self._context), seal.Evaluator(self._context)
        self._public: LibraryObject = None
        self._secret: LibraryObject = None
        self._encryptor: LibraryObject = None
        self._decryptor: LibraryObject = None

    def _strength(self, bits: int) -> str:
        """Security level of a modulus of `bits` bits, by the homomorphic encryption standard."""
        levels = self._seal.sec_level_type
        most = {n: self._seal.CoeffModulus.MaxBitCount(_RING, getattr(levels, f"tc{n}")) for n in (128, 192, 256)}
        level = max(n for n in most if bits <= most[n])
        return f"{level} bits (BFV, ring of dimension {_RING}, modulus of {bits} bits of at most {most[level]})"

    def make_keys(self) -> None:
        """Generate keys, on the rank of a single client."""
        generator = self._seal.KeyGenerator(self._context)
        self._public, self._secret = generator.create_public_key(), generator.secret_key()
        self._begin()

    def _begin(self) -> None:
        self._encryptor = self._seal.Encryptor(self._context, self._public)
        if self._secret is not None:
            self._decryptor = self._seal.Decryptor(self._context, self._secret)

    def public(self) -> bytes:
        """The public key, for all ranks."""
        return bytes(self._public.to_string())

    def use(self, public: bytes) -> None:
        """Use this public key."""
        self._public = self._read(self._context.from_public_str, public, "public key")
        self._begin()

    def secret(self) -> bytes:
        """The secret key; it is sent only sealed under another key."""
        return bytes(self._secret.to_string())

    def trust(self, secret: bytes) -> None:
        """Use this secret key."""
        self._secret = self._read(self._context.from_secret_str, secret, "secret key")
        self._begin()

    @property
    def opens(self) -> bool:
        """Whether this rank has the secret key."""
        return self._secret is not None

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """A ciphertext of up to `slots` integers, under the public key."""
        return bytes(self._encryptor.encrypt(self._encoder.encode(values)).to_string())

    def load(self, block: bytes) -> Ciphertext:
        """A ciphertext from its bytes; BrokenProtocol when they are not valid."""
        cipher = self._read(self._context.from_cipher_str, block, "ciphertext")
        if len(block) != self.nbytes or cipher.size() != 2 or cipher.is_ntt_form() or cipher.is_transparent():
            raise BrokenProtocol("a ciphertext is not one that a client's encryption gives; it was altered in transit")
        return cipher

    def _read(self, reader: Callable[[bytes], LibraryObject], data: bytes, what: str) -> LibraryObject:
        try:
            return reader(data)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BrokenProtocol(f"a {what} of {len(data)} bytes does not load ({error}); it was altered") from error

    def add(self, total: Ciphertext, more: Ciphertext) -> Ciphertext:
        """The sum of two ciphertexts; `total` is changed in place."""
        self._evaluator.add_inplace(total, more)
        return total

    def save(self, total: Ciphertext) -> bytes:
        return bytes(total.to_string())

    def open(self, total: Ciphertext) -> NDArray[np.int64]:
        """Decrypt: [slots] integers; BrokenProtocol when the ciphertext is too damaged."""
        if self._decryptor is None:
            raise BrokenProtocol("a ciphertext cannot be decrypted on a rank that has no secret key")
        self.budget = int(self._decryptor.invariant_noise_budget(total))
        if self.budget < _LEAST_BUDGET:
            raise BrokenProtocol(
                f"a ciphertext has {self.budget} bits of noise budget left, and {_LEAST_BUDGET} are needed: it was "
                "altered, or is the sum of more ciphertexts than its parameters allow; nothing was opened"
            )
        numbers: NDArray[np.int64] = self._encoder.decode(self._decryptor.decrypt(total))
        return numbers

    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(coefficients, modulus) for each prime of the ciphertext modulus: uniform without the secret key."""
        numbers = np.frombuffer(block[-8 * self._data :], dtype="<u8").reshape(2, len(self._moduli), _RING)
        for i, modulus in enumerate(self._moduli):
            yield numbers[:, i].ravel(), modulus
