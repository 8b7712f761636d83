"""BFV by Microsoft SEAL: 8192 exact integers a ciphertext, 32 bytes and about half a microsecond each.

Fan and Vercauteren, "Somewhat practical fully homomorphic encryption", 2012. Clients encrypt with the public key, so an
upload needs no secret; encrypting with the secret key would save a third of a sum's time.

Parameters: ring of dimension 8192; two primes of 60 bits, which form the ciphertext modulus, and one of 32, only in
keys. Their 152 bits are the maximum of the homomorphic encryption standard for 192-bit security (218 for 128-bit). The
plaintext modulus is a prime of 58 bits, equal to 1 mod 16384, which allows batching. A sum of 10,000 ciphertexts leaves
41 bits of noise budget, and each doubling takes one at most; one prime less would leave none, and decryption would give
garbage.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, TypeAlias

from mpifed.core.errors import BrokenProtocol, UsageError
from mpifed.core.record import Integers

LibraryObject: TypeAlias = Any  # the library has no types

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
        self._context = seal.SEALContext(parameters, True, seal.sec_level_type.tc192)  # no less is accepted
        self.nbytes = 16 * _RING * (len(primes) - 1) + 113  # two polynomials for each prime
        self._encoder, self._evaluator = seal.BatchEncoder(self._context), seal.Evaluator(self._context)
        self._encryptor: LibraryObject = None
        self._decryptor: LibraryObject = None

    def make_keys(self) -> tuple[bytes, bytes]:
        """(public, secret) new keys, on the rank of a single client; the secret one is sent only sealed."""
        generator = self._seal.KeyGenerator(self._context)
        public, secret = generator.create_public_key().to_string(), generator.secret_key().to_string()
        return bytes(public), bytes(secret)

    def use(self, public: bytes, secret: bytes | None = None) -> None:
        """Use these keys; without the secret one nothing can be decrypted."""
        self._encryptor = self._seal.Encryptor(self._context, self._context.from_public_str(public))
        if secret is not None:
            self._decryptor = self._seal.Decryptor(self._context, self._context.from_secret_str(secret))

    def encrypt(self, values: Integers) -> bytes:
        """A ciphertext of up to `slots` integers, under the public key."""
        return bytes(self._encryptor.encrypt(self._encoder.encode(values)).to_string())

    def add(self, x: bytes, y: bytes) -> bytes:
        """The sum of two ciphertexts; BrokenProtocol when their bytes are not valid."""
        total = self._load(x)
        self._evaluator.add_inplace(total, self._load(y))
        return bytes(total.to_string())

    def open(self, block: bytes) -> Integers:
        """Decrypt: [slots] integers; BrokenProtocol when the ciphertext is not valid, or too damaged."""
        cipher = self._load(block)
        if self._decryptor is None:
            raise BrokenProtocol("a ciphertext cannot be decrypted on a rank that has no secret key")
        self.budget = int(self._decryptor.invariant_noise_budget(cipher))
        if self.budget < _LEAST_BUDGET:
            raise BrokenProtocol(
                f"a ciphertext has {self.budget} bits of noise budget left, and {_LEAST_BUDGET} are needed: it was "
                "altered, or is the sum of more ciphertexts than its parameters allow; nothing was opened"
            )
        numbers: Integers = self._encoder.decode(self._decryptor.decrypt(cipher))
        return numbers

    def _load(self, block: bytes) -> LibraryObject:
        try:
            cipher = self._context.from_cipher_str(block)
        except (RuntimeError, ValueError, IndexError) as error:
            raise BrokenProtocol(
                f"a ciphertext of {len(block)} bytes does not load ({error}): it was altered"
            ) from error
        if len(block) != self.nbytes or cipher.size() != 2 or cipher.is_ntt_form() or cipher.is_transparent():
            raise BrokenProtocol("a ciphertext is not one that a client's encryption gives: it was altered")
        return cipher
