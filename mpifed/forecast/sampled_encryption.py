"""Encryption in a rehearsal: each operation is run a few times, and the time of the skipped ones is added up.

A rehearsal must not take as long as the round itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OFTEN, _LONG_S = 4, 0.01  # each operation is run until it has been run so often or has taken so long


class SampledEncryption:
    """A scheme whose ciphertexts hold their numbers in the clear and are as long as real ones."""

    def __init__(self, scheme: Any) -> None:  # of any scheme: no library has types
        self._scheme = scheme
        self.skipped_s = 0.0  # seconds that skipped operations would have taken
        self._times: dict[str, list[float]] = {}  # seconds of each run, by operation
        self._sample = b""  # a real ciphertext

    def __getattr__(self, name: str) -> Any:  # as the scheme
        """Sizes and keys of the scheme."""
        return getattr(self._scheme, name)

    def _work(self, act: Callable[..., Any], ciphertexts: int, *arguments: object) -> Any:  # as the scheme
        """Run an operation on real ciphertexts, or skip it and add its time."""
        times = self._times.setdefault(act.__name__, [])
        if len(times) >= _OFTEN or sum(times) >= _LONG_S:
            self.skipped_s += min(times)  # the first run is slow
            return None
        real = [self._scheme.load(self._sample) for _ in range(ciphertexts)]
        start = time.perf_counter()
        result = act(*arguments, *real)
        times.append(time.perf_counter() - start)
        return result

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """The numbers, padded with zeros to the length of a ciphertext."""
        self._sample = self._work(self._scheme.encrypt, 0, values) or self._sample
        slots = np.zeros(self._scheme.slots, dtype=np.int64)
        slots[: len(values)] = values
        return self._block(slots)

    def _block(self, slots: NDArray[np.int64]) -> bytes:
        return slots.tobytes().ljust(int(self._scheme.nbytes), b"\0")

    def load(self, block: bytes) -> NDArray[np.int64]:
        """The numbers of a ciphertext, [slots]."""
        self._work(self._scheme.load, 0, self._sample)
        slots: NDArray[np.int64] = np.frombuffer(block, dtype=np.int64, count=int(self._scheme.slots)).copy()
        return slots

    def add(self, total: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sum, in place of `total`."""
        self._work(self._scheme.add, 2)
        total += more
        return total

    def save(self, total: NDArray[np.int64]) -> bytes:
        """The sum as a ciphertext, as by `encrypt`."""
        self._work(self._scheme.save, 1)
        return self._block(total)

    def open(self, total: NDArray[np.int64]) -> NDArray[np.int64]:
        self._work(self._scheme.open, 1)
        return total
