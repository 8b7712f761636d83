"""Packed Paillier: integers side by side in slots of 64 bits, 31 a ciphertext at 2048 bits. Slow, and here to compare.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes", 1999: what HyFDCA (Overman, Blum,
Klabjan) proposes, one number a ciphertext. The arithmetic is that of the library; the primes of the key are made by
`cryptography`, since the library's own come from a generator that is not meant for secrets.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import BrokenProtocol, UsageError

_SLOT = 64  # bits
_STRENGTH = {2048: 112, 3072: 128, 7680: 192}  # NIST SP 800-57


class PackedPaillier:
    """The public modulus everywhere, its factors with the clients alone.

    The plaintext is the sum of v_k 2^(64 k), of whatever sign; sums of slots stay below 2^63, and so never reach into
    the next one. Adding 2^63 to every slot once it is opened makes them digits.
    """

    name = "paillier"
    capacity = 2**62 + 2**32  # a grid's sums stay below 2^62, but for what rounds up in each client

    def __init__(self, bits: int = 2048) -> None:
        """`bits`: of the modulus."""
        self._library = _library()
        self.bits, self.slots = bits, (bits - 1) // _SLOT
        self.nbytes = bits // 4  # modulo the square of the modulus
        strength = max((known for size, known in _STRENGTH.items() if size <= bits), default=0)
        self.security = f"{strength} bits (Paillier, modulus of {bits} bits)"
        self._half = sum(1 << (_SLOT * k + _SLOT - 1) for k in range(self.slots))
        self._scheme: Any = None

    def make_keys(self) -> None:
        """New keys, on one client's rank."""
        from cryptography.hazmat.primitives.asymmetric import rsa

        primes = rsa.generate_private_key(public_exponent=65537, key_size=self.bits).private_numbers()
        self._begin(primes.p * primes.q, (primes.p - 1) * (primes.q - 1))

    def _begin(self, n: int, order: int | None) -> None:
        library = self._library
        secret = None if order is None else library.PaillierSecretKey(order, pow(order, -1, n), n)
        self._scheme = library.Paillier(library.PaillierPublicKey(n, n + 1), secret)
        self._scheme.register_randomness_source(_Randomness(n), boot_now=True)

    def public(self) -> bytes:
        """The modulus."""
        return int(self._scheme.public_key.n).to_bytes(self.bits // 8, "little")

    def use(self, public: bytes) -> None:
        """Take a modulus."""
        if self._scheme is None or self.public() != public:
            self._begin(int.from_bytes(public, "little"), None)

    def secret(self) -> bytes:
        """What its factors are known by; only ever sealed under another key."""
        return int(self._scheme.secret_key.lambda_).to_bytes(self.bits // 8, "little")

    def trust(self, secret: bytes) -> None:
        """Take the secret key that belongs to the modulus."""
        self._begin(int(self._scheme.public_key.n), int.from_bytes(secret, "little"))

    @property
    def opens(self) -> bool:
        """Whether the secret key is here."""
        return self._scheme is not None and self._scheme.secret_key is not None

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """A ciphertext of up to `slots` numbers."""
        slots = np.zeros(self.slots, dtype=np.int64)
        slots[: len(values)] = values
        digits = slots.view(np.uint64) ^ np.uint64(2**63)  # v + 2^63
        plain = int.from_bytes(digits.astype("<u8").tobytes(), "little") - self._half
        return self.save(self._scheme.encrypt(plain))

    def load(self, block: bytes) -> Any:
        """A ciphertext from its bytes."""
        number = int.from_bytes(block, "little")
        if len(block) != self.nbytes or not 1 < number < self._scheme.public_key.n_squared:
            raise BrokenProtocol(f"a ciphertext of {len(block)} bytes is none of this modulus; it was altered")
        return self._library.PaillierCiphertext(number, self._scheme)

    def add(self, total: Any, more: Any) -> Any:
        """A new sum."""
        return total + more

    def save(self, total: Any) -> bytes:
        """The bytes of a ciphertext."""
        return int(total.get_value()).to_bytes(self.nbytes, "little")

    def open(self, total: Any) -> NDArray[np.int64]:
        """[slots] its numbers."""
        if not self.opens:
            raise BrokenProtocol("a ciphertext cannot be opened where there is no secret key")
        shifted = int(self._scheme.decrypt(total)) + self._half
        if not 0 <= shifted < 1 << (_SLOT * self.slots):
            raise BrokenProtocol("a ciphertext opens to no sum of integers: it was altered; nothing was used of it")
        digits = np.frombuffer(shifted.to_bytes(_SLOT // 8 * self.slots, "little"), dtype="<u8")
        found: NDArray[np.int64] = (digits ^ np.uint64(2**63)).view(np.int64)
        return found

    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(its words but the highest ones, which the modulus bounds, 2^64)."""
        yield np.frombuffer(block[:-64], dtype="<u8"), 2**64

    def randomness(self, block: bytes) -> Iterator[bytes]:
        """Modulo n: r^n, since the plaintext is in the powers of n + 1."""
        n = int(self._scheme.public_key.n)
        yield int(int.from_bytes(block, "little") % n).to_bytes(self.bits // 8, "little")

    def secrets(self) -> Iterator[bytes]:
        """The secret key, if it is here."""
        if self.opens:
            yield self.secret()


class _Randomness:
    """r^n for new r, from the system's entropy; where the library asks for it first."""

    def __init__(self, n: int) -> None:
        self._n, self._square = n, n * n
        self.nr_yielded = 0

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def get_one(self) -> int:
        """One."""
        from tno.mpc.encryption_schemes.utils import pow_mod

        self.nr_yielded += 1
        return int(pow_mod(secrets.randbelow(self._n - 1) + 1, self._n, self._square))


def _library() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it recommends gmpy2, with which it is faster
            from tno.mpc.encryption_schemes import paillier
    except ImportError as error:
        raise UsageError(
            '[encryption] scheme = "paillier": the library tno.mpc.encryption_schemes.paillier cannot be loaded '
            f"({error}); install it: pip install 'mpifed[paillier]'"
        ) from error
    return paillier
