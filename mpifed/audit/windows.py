"""Windows of 128 bits of long rows of words, and which of them occur again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES = 16
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
    if len(words) < length(words):
        return
    first = half(words, slice(None), False, signed=True)
    there = words[: len(first)] != 0
    ordered = np.sort(first[there])
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])[:_SHOWN]
    at = np.flatnonzero(np.isin(first, twice) & there)
    before: dict[tuple[int, int], int] = {}
    for i, *key in zip(at.tolist(), first[at].tolist(), half(words, at, True, signed=True).tolist(), strict=True):
        j = before.setdefault((key[0], key[1]), i)
        if j != i:
            yield j, i, bool((words[i] ^ words[j]) >> (8 * words.itemsize - 1))
