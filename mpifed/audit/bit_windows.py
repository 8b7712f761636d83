"""Repeated windows of 128 bits in sequences of words, counts of bits, and searches for 64-bit words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array

BYTES = 16
_DEVIATIONS = 8.0  # in half square roots of the number of words; Hoeffding's bound is 2 exp(-32)
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # [256, 8]
_PIECE = 2**18  # windows that are computed together
_TABLE = 2**20  # size of a first lookup table, by the low bits of words
_LOW = np.uint64(_TABLE - 1)
_SHOWN = 16  # most repeated windows that are reported


def length(words: Array) -> int:
    """Number of words of a window."""
    return BYTES // words.itemsize


def half(words: Array, at: NDArray[np.int64] | slice, second: bool, signed: bool) -> NDArray[np.uint64]:
    """A half of each window at `at`; if `signed`, of the window or its negative, whichever has a leading bit of 0."""
    count = len(words) - length(words) + 1
    negative = words[:count][at] >> (8 * words.itemsize - 1) > 0
    halves = np.zeros(len(negative), dtype=np.uint64)
    start = length(words) // 2 * second
    for i in range(start, start + length(words) // 2):
        word = words[i : i + count][at]
        if signed:
            word = np.where(negative, -word, word)
        halves |= word.astype(np.uint64) << np.uint64(8 * words.itemsize * (i - start))
    return halves


def repeats(words: Array) -> Iterator[tuple[int, int, bool]]:
    """(first position, repeated position, whether negated) of repeated windows at any offset, at most `_SHOWN`.

    Windows with a leading zero word are left out.
    """
    more = length(words) - 1
    first = np.empty(max(0, len(words) - more), dtype=np.uint64)
    for start in range(0, len(first), _PIECE):
        first[start : start + _PIECE] = half(words[start : start + _PIECE + more], slice(None), False, signed=True)
    there = words[: len(first)] != 0
    ordered = first[there]
    ordered.sort()
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_SHOWN]
    at = np.flatnonzero(np.isin(first, twice) & there)
    before: dict[tuple[int, int], int] = {}
    for i, *key in zip(at.tolist(), first[at].tolist(), half(words, at, True, signed=True).tolist(), strict=True):
        j = before.setdefault((key[0], key[1]), i)
        if j != i:
            yield j, i, bool((words[i] ^ words[j]) >> (8 * words.itemsize - 1))


def ones(words: Array) -> NDArray[np.int64]:
    """Number of words in which each bit is set, and in which it differs from the next bit."""
    counts = []
    for bits in (words, words ^ words >> 1):
        octets = bits.view(np.uint8).reshape(-1, words.itemsize)
        counts += [np.bincount(octets[:, i], minlength=256) @ _BITS for i in range(words.itemsize)]
    return np.concatenate(counts)


def uneven_bits(counts: NDArray[np.int64], words: int) -> str:
    """Description of the counts of `ones` that are not near half of the words; "" if there are none."""
    bad = np.flatnonzero(np.abs(2 * counts - words) > _DEVIATIONS * np.sqrt(words))
    return f"{len(bad)} of {len(counts)} bit counts, first bit {bad[0] % (len(counts) // 2)}" if len(bad) else ""


def distinct_bytes(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """[m] number of distinct bytes of each word."""
    octets = np.sort(words.view(np.uint8).reshape(-1, 8), axis=1)
    changes: NDArray[np.int64] = (np.diff(octets, axis=1) != 0).sum(axis=1)
    return 1 + changes


class KnownWords:
    """64-bit words that are searched for, in ascending order."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words, self._table = words, np.zeros(_TABLE, dtype=bool)
        self._table[words & _LOW] = True

    def positions(self, text: NDArray[np.uint8]) -> Iterator[int]:
        """Positions, at any byte, where one of these words begins."""
        for start in range(min(8, len(text))):
            words = text[start : start + (len(text) - start) // 8 * 8].view("<u8")
            for first in range(0, len(words), _PIECE):
                piece = words[first : first + _PIECE]
                at = np.flatnonzero(self._table[piece & _LOW])
                near = self._words[np.searchsorted(self._words[:-1], piece[at])]
                yield from ((at[near == piece[at]] + first) * 8 + start).tolist()
