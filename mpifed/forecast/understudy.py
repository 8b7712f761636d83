"""Stands in for an encryption in a rehearsal: does each kind of work a few times, and owes the time of the rest.

Paillier takes 8 ms for 31 numbers, and a rehearsal must not take as long as the round that it tells of.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OFTEN, _LONG_S = 4, 0.01  # work of a kind is done until it has been so often, or has taken so long


class Understudy:
    """Plays a scheme of one key: its ciphertexts hold their numbers in the clear, and are as long as real ones."""

    def __init__(self, scheme: Any) -> None:
        self._scheme = scheme
        self.owed_s = 0.0  # for work that was not done
        self._times: dict[str, list[float]] = {}  # seconds of each kind of work
        self._sample = b""  # a real ciphertext

    def __getattr__(self, name: str) -> Any:
        """Sizes and keys are those of the scheme."""
        return getattr(self._scheme, name)

    def _work(self, act: Callable[..., Any], ciphertexts: int, *arguments: object) -> Any:
        """Do it with so many real ciphertexts, or owe it."""
        times = self._times.setdefault(act.__name__, [])
        if len(times) >= _OFTEN or sum(times) >= _LONG_S:
            self.owed_s += min(times)  # the first is slow
            return None
        real = [self._scheme.load(self._sample) for _ in range(ciphertexts)]
        start = time.perf_counter()
        found = act(*arguments, *real)
        times.append(time.perf_counter() - start)
        return found

    def encrypt(self, values: NDArray[np.int64]) -> bytes:
        """The numbers, and zeros up to the length of a ciphertext."""
        self._sample = self._work(self._scheme.encrypt, 0, values) or self._sample
        slots = np.zeros(self._scheme.slots, dtype=np.int64)
        slots[: len(values)] = values
        return self._block(slots)

    def _block(self, slots: NDArray[np.int64]) -> bytes:
        return slots.tobytes().ljust(int(self._scheme.nbytes), b"\0")

    def load(self, block: bytes) -> NDArray[np.int64]:
        """[slots]"""
        self._work(self._scheme.load, 0, self._sample)
        slots: NDArray[np.int64] = np.frombuffer(block, dtype=np.int64, count=int(self._scheme.slots)).copy()
        return slots

    def add(self, total: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
        """In place of `total`."""
        self._work(self._scheme.add, 2)
        total += more
        return total

    def save(self, total: NDArray[np.int64]) -> bytes:
        """Like `encrypt`."""
        self._work(self._scheme.save, 1)
        return self._block(total)

    def open(self, total: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers."""
        self._work(self._scheme.open, 1)
        return total
