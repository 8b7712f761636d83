"""Windows of 128 bits of long rows of words, and which of them occur again; and how even the bits of words are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES = 16
_DEVIATIONS = 8.0  # half of which the ones of a bit may miss the half of the words by: Hoeffding's bound is 2 exp(-32)
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # [256, 8]
_PIECE = 2**18  # windows that are computed at once
_SHOWN = 16  # windows that occur again, at most, that are told


def length(words: NDArray[Any]) -> int:
    """Words of a window."""
    return BYTES // words.itemsize


def half(words: NDArray[Any], at: NDArray[np.int64] | slice, second: bool, signed: bool) -> NDArray[np.uint64]:
    """One half of each window that begins `at`; where `signed`, of it or its negative, whichever begins with bit 0."""
    count = len(words) - length(words) + 1
    negative = words[:count][at] >> (8 * words.itemsize - 1) > 0
    found = np.zeros(len(negative), dtype=np.uint64)
    start = length(words) // 2 * second
    for i in range(start, start + length(words) // 2):
        word = words[i : i + count][at]
        if signed:
            word = np.where(negative, -word, word)
        found |= word.astype(np.uint64) << np.uint64(8 * words.itemsize * (i - start))
    return found


def repeats(words: NDArray[Any]) -> Iterator[tuple[int, int, bool]]:
    """(where it was first, where again, whether with the other sign) of some windows that occur again, at any offset.

    Windows that begin with zero are left out.
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


def ones(words: NDArray[Any]) -> NDArray[np.int64]:
    """How many words have each bit, and in how many it is unlike the next."""
    found = []
    for some in (words, words ^ words >> 1):
        octets = some.view(np.uint8).reshape(-1, words.itemsize)
        found += [np.bincount(octets[:, i], minlength=256) @ _BITS for i in range(words.itemsize)]
    return np.concatenate(found)


def uneven_bits(counts: NDArray[np.int64], words: int) -> str:
    """Which of the counts of `ones` are not those of half of the words; "" where all are."""
    bad = np.flatnonzero(np.abs(2 * counts - words) > _DEVIATIONS * np.sqrt(words))
    return f"{len(bad)} of {len(counts)} counts of bits, bit {bad[0] % (len(counts) // 2)} first" if len(bad) else ""
