"""Threshold BFV by OpenFHE: each client has a share of the secret key, and decrypting a sum takes all shares.

Asharov, Jain, Lopez-Alt, Tromer, Vaikuntanathan, Wichs, "Multiparty computation with low communication, computation and
interaction via threshold FHE", 2012. The joint public key passes from client to client, each adding its share;
each share is generated on its client's rank and never leaves it, not even sealed. To decrypt a sum each client sends a
partial decryption, hidden in noise; all of them together, and no fewer, give the sum.

Parameters: the library's for 128-bit security in its mode NOISE_FLOODING_MULTIPARTY: ring of dimension 16384, modulus
of 240 bits, of which 180 hide the share in each partial decryption, uniformly. That leaves room for a plaintext modulus
of 48 bits (from 52 on the library decrypts to garbage, which the self-test would detect), and for 1024 clients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Protection
from mpifed.comm.encryption.schemes import Ciphertext, LibraryObject, ThresholdScheme
from mpifed.core.errors import BrokenProtocol, UsageError

_PLAIN = 281474975662081  # a prime, and 1 modulo twice the ring's dimension
_MOST_CLIENTS = 1024  # each adds noise of up to half of the modulus / 2^60


class ThresholdBfv(ThresholdScheme):
    """Threshold BFV: the joint public key on every rank, key shares only on their clients' ranks."""

    name = "threshold-bfv"
    capacity = _PLAIN // 2

    def __init__(self, clients: int) -> None:
        fhe = self._fhe = _library()
        if clients > _MOST_CLIENTS:
            raise UsageError(
                f'[encryption] scheme = "threshold-bfv": {clients} clients, at most {_MOST_CLIENTS} can hide their '
                'shares in noise of their own; set scheme = "bfv"'
            )
        parameters = fhe.CCParamsBFVRNS()
        parameters.SetPlaintextModulus(_PLAIN)
        parameters.SetSecurityLevel(fhe.SecurityLevel.HEStd_128_classic)
        parameters.SetMultipartyMode(fhe.MultipartyMode.NOISE_FLOODING_MULTIPARTY)
        parameters.SetMultiplicativeDepth(0)
        parameters.SetEvalAddCount(max(clients, 2))
        self._context = fhe.GenCryptoContext(parameters)
        features = fhe.PKESchemeFeature
        for feature in (features.PKE, features.KEYSWITCH, features.LEVELEDSHE, features.MULTIPARTY):
            self._context.Enable(feature)
        self.slots = int(self._context.GetRingDimension())
        assert (_PLAIN - 1) % (2 * self.slots) == 0, self.slots
        bits = round(np.log2(float(self._context.GetModulus())))
        self.security = f"128 bits (BFV with noise flooding, ring of dimension {self.slots}, modulus of {bits} bits)"
        self._public: LibraryObject = None
        self._shares: dict[int, LibraryObject] = {}
        self._first: int | None = None  # the first client, if this rank hosts it
        self.nbytes, self.part_nbytes = self._sizes(clients)

    @classmethod
    def of(cls, protection: Protection, clients: int) -> ThresholdBfv:
        return cls(clients)

    def _sizes(self, clients: int) -> tuple[int, int]:
        """Bytes of a ciphertext and of a partial decryption; alike on all ranks, measured with temporary keys.

        (The library's serialized length depends on how a key was generated.)
        """
        pair = self._context.KeyGen()
        public = self._read("PublicKey", self._bytes(pair.publicKey))
        if clients > 1:
            public = self._read("PublicKey", self._bytes(self._context.MultipartyKeyGen(public).publicKey))
        trial = self._bytes(self._context.Encrypt(public, self._context.MakePackedPlaintext([0])))
        part = self._context.MultipartyDecryptLead([self._read("Ciphertext", trial)], pair.secretKey)[0]
        return len(trial), len(self._bytes(part))

    def join(self, client: int, joint: bytes | None) -> bytes:
        if joint is None:
            self._first, pair = client, self._context.KeyGen()
        else:
            pair = self._context.MultipartyKeyGen(self._read("PublicKey", joint))
        self._shares[client] = pair.secretKey
        return self._bytes(pair.publicKey)

    def use(self, public: bytes) -> None:
        self._public = self._read("PublicKey", public)

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        return self._bytes(self._context.Encrypt(self._public, self._context.MakePackedPlaintext(values.tolist())))

    def load(self, block: bytes) -> Ciphertext:
        return self._read("Ciphertext", block)

    def add(self, total: Ciphertext, more: Ciphertext) -> Ciphertext:
        try:
            self._context.EvalAddInPlace(total, more)
        except RuntimeError as error:
            raise BrokenProtocol(
                f"a ciphertext cannot be added ({error}): it was encrypted under another key"
            ) from error
        return total

    def save(self, total: Ciphertext) -> bytes:
        return self._bytes(total)

    def part(self, client: int, total: Ciphertext) -> bytes:
        lead = client == self._first
        opener = self._context.MultipartyDecryptLead if lead else self._context.MultipartyDecryptMain
        return self._bytes(opener([total], self._shares[client])[0])

    def fuse(self, parts: list[bytes]) -> NDArray[np.int64]:
        try:
            plain = self._context.MultipartyDecryptFusion([self._read("Ciphertext", part) for part in parts])
        except RuntimeError as error:
            raise BrokenProtocol(f"the partial decryptions do not fit together ({error})") from error
        values = np.array(plain.GetPackedValue(), dtype=np.int64)
        return np.pad(values, (0, self.slots - len(values)))

    def words(self, block: bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
        """(half of the first polynomial modulo the first prime; 2^60, which that prime is close to)."""
        length = 8 * (self.slots // 2)
        first = len(block) // 8 // 4
        for start in range(first, first + 8):  # integers of 8 bytes start at one of these offsets
            coefficients = np.frombuffer(block[start : start + length], dtype="<u8")
            if coefficients.max() < 2**60:
                yield coefficients, 2**60
                return
        raise BrokenProtocol(f"a ciphertext of {len(block)} bytes does not have the layout of this version of OpenFHE")

    def _bytes(self, element: LibraryObject) -> bytes:
        return bytes(self._fhe.Serialize(element, self._fhe.BINARY))

    def _read(self, kind: str, data: bytes) -> LibraryObject:
        try:
            return getattr(self._fhe, f"Deserialize{kind}String")(data, self._fhe.BINARY)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise BrokenProtocol(f"a {kind} of {len(data)} bytes does not load ({error}); it was altered") from error


def _library() -> LibraryObject:
    try:
        import openfhe
    except ImportError as error:
        raise UsageError(
            '[encryption] scheme = "threshold-bfv": the library openfhe cannot be loaded on Python '
            f"{sys.version_info.major}.{sys.version_info.minor} ({error}). Its wheels are for Python 3.10 on "
            "Linux, and 3.12 on Ubuntu 24.04 and others with glibc 2.38 and libstdc++ of GCC 13: there, pip install "
            "'mpifed[threshold]'; elsewhere set scheme = \"bfv\", where any client can "
            'decrypt a sum with the key that the clients share, or [aggregation] security = "masked"'
        ) from error
    return openfhe
