"""Discrete Gaussian samples: integers x with probabilities proportional to exp(-x^2 / (2 sigma^2)), sigma >= 1.

A sample of large sigma is a sum over levels j of 2^{m_j} a_j, m_0 = 0, with a_j ~ D(sigma_j) of small sigma_j, each
drawn from an alias table (A. J. Walker 1977; M. D. Vose 1991) with thresholds of 144 bits. The upper 16 bits are
compared first, and the others, with fresh random bits, only on a tie, which is equivalent to comparing all 144.

The total variation between a sample and D(sigma) is bounded here, and computed in integers and fractions where this is
tested. With V the variance of all levels above level j, a Gaussian on the multiples of 2^{m_{j+1}}, and
s = 2^{m_j} sigma_j, the probability of their sum at x is proportional to

    exp(-x^2 / (2 (V + s^2))) * sum over y in 2^{m_{j+1}} Z of exp(-(y - c x)^2 / (2 t^2)),   t^2 = V s^2 / (V + s^2),

and by Poisson's summation formula the second factor is constant up to a relative h = 2 sum over k >= 1 of
exp(-2 pi^2 r^2 k^2), r = t / 2^{m_{j+1}} (C. Peikert, CRYPTO 2010; D. Micciancio, M. Walter, CRYPTO 2017): a total
variation of at most h / (1 - h). Levels are chosen with r^2 >= 5, where that is below 1e-42. A table
omits the tails beyond 13 sigma_j, of probability below 2e-38; its rounding errors sum to less than 2^-143.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core import loops

Integers = NDArray[np.int64]
Words = Callable[[int], NDArray[np.uint64]]  # the next so many random words of 64 bits

MOST_BITS = 16  # of an index of a table
WIDEST = 2.0**40  # the largest sigma
_TAIL = 13  # standard deviations that a table covers at least
_THRESHOLD_BITS = 144
_PRECISE_BITS = 320  # of the weights from which a table is computed
TOGETHER = 2**13  # samples drawn at a time: intermediate results stay in the cache
# (2^{m_j} sigma_j / 2^{m_{j+1}})^2 of every level but the last; all levels above have at least 5 times its variance,
# hence r^2 >= 6 * 5 / 6
_SQUARE = 6
_DIGITS = 120  # of decimal arithmetic


class Level(NamedTuple):
    """2^shift a, a ~ D(sigma_j): the alias table of a + middle, with 2^bits entries."""

    variance: Fraction  # sigma_j^2
    shift: int
    bits: int
    table: NDArray[np.uint32]  # upper 16 bits of each entry's threshold, and its alias
    thresholds: list[int]

    @property
    def middle(self) -> int:
        """The index of a = 0."""
        return int(2 ** (self.bits - 1))


@lru_cache(maxsize=16)
def levels_of(sigma: float) -> tuple[Level, ...]:
    """The levels of D(sigma), finest first; () for sigma = 0.

    Raises
    ------
    ValueError : for sigma between 0 and 1, negative, or above 2^40.
    """
    if sigma == 0:
        return ()
    if not 1 <= sigma <= WIDEST:
        raise ValueError(f"sigma = {sigma}: must lie between 1 and 2^40")
    variance, narrow = Fraction(sigma) ** 2, 2 ** (MOST_BITS - 1) // _TAIL
    shifts = [0]
    if variance > narrow**2:  # as few levels as possible, of about equal size
        step = math.floor(math.log2(narrow / math.sqrt(_SQUARE)))  # so that sqrt(6) 2^m with integer m fits a table
        count = next(n for n in range(2, 20) if sigma <= 2.0 ** (step * (n - 1)) * narrow)
        ratio = math.log2(sigma / math.sqrt(_SQUARE)) / count
        shifts = [math.ceil(ratio * j) for j in range(count)]
    parts = [Fraction(_SQUARE * 4 ** (b - a)) for a, b in pairwise(shifts)]
    coarsest = variance - sum((part * 4**shift for part, shift in zip(parts, shifts[:-1], strict=True)), Fraction(0))
    return tuple(_level(part, shift) for part, shift in zip([*parts, coarsest / 4 ** shifts[-1]], shifts, strict=True))


def _level(variance: Fraction, shift: int) -> Level:
    reach = math.isqrt(_TAIL**2 * math.ceil(variance)) + 1
    bits = max(1, (2 * reach).bit_length())
    thresholds, aliases = _alias(_weights(variance, bits))
    table = np.array([(one >> 128) << 16 | other for one, other in zip(thresholds, aliases, strict=True)], np.uint32)
    return Level(variance, shift, bits, table, thresholds)


def _weights(variance: Fraction, bits: int) -> list[int]:
    """[2^bits] weights of the integers -2^(bits - 1) (weight 0) to 2^(bits - 1) - 1; their sum is 2^(bits + 144).

    With q = exp(-1 / (2 sigma^2)), the probability of i + 1 is that of i times q^(2i + 1).
    """
    unit = 2**_PRECISE_BITS
    with localcontext(Context(prec=_DIGITS)):
        exponent = Decimal(-variance.denominator) / Decimal(2 * variance.numerator)
        q = int(exponent.exp() * unit)
    half, weight, ratio, square = 2 ** (bits - 1), unit, q, q * q >> _PRECISE_BITS
    half_weights = [unit]
    for _ in range(half - 1):
        weight = weight * ratio >> _PRECISE_BITS
        ratio = ratio * square >> _PRECISE_BITS
        half_weights.append(weight)
    target_sum, total = 2 ** (bits + _THRESHOLD_BITS), 2 * sum(half_weights) - unit
    scaled = [weight * target_sum // total for weight in half_weights]
    scaled[0] += target_sum - (2 * sum(scaled) - scaled[0])  # the remainder of rounding down
    return [0, *scaled[:0:-1], *scaled]


def _alias(weights: list[int]) -> tuple[list[int], list[int]]:
    """(thresholds, aliases), exact: below its threshold, out of 2^144, an index gives itself, above it its alias."""
    unit = 2**_THRESHOLD_BITS
    remaining, aliases = list(weights), list(range(len(weights)))
    thresholds = [unit - 1] * len(weights)  # does not matter where an index is its own alias
    small = [place for place, weight in enumerate(remaining) if weight < unit]
    large = [place for place, weight in enumerate(remaining) if weight >= unit]
    while small:
        place, other = small.pop(), large[-1]
        thresholds[place], aliases[place] = remaining[place], other
        remaining[other] -= unit - remaining[place]
        if remaining[other] < unit:
            small.append(large.pop())
    return thresholds, aliases


def draw(levels: tuple[Level, ...], words: Words, out: Integers) -> None:
    """Fill `out` [m] with independent samples, using m random words for every two levels; without levels it stays."""
    for start in range(0, len(out), TOGETHER):
        numbers = out[start : start + TOGETHER]
        random_words = np.empty(0, np.uint64)
        for j, level in enumerate(levels):
            if j % 2 == 0:
                random_words = words(len(numbers))
            upper = bool(j % 2)
            ties = loops.alias_level(random_words, upper, level.table, level.middle, level.shift, j == 0, numbers)
            if len(ties):
                _settle(level, random_words[ties] >> np.uint64(32 * upper), words, numbers, ties)


def _settle(level: Level, words: NDArray[np.uint64], more: Words, out: Integers, ties: Integers) -> None:
    """Resolve ties with the following bits; `out` has the result for values not below their thresholds."""
    drawn, mask = more(2 * len(ties)).tolist(), 2**level.bits - 1
    halves = drawn[: len(ties)], drawn[len(ties) :]
    for tie, word, first, second in zip(ties.tolist(), words.tolist(), *halves, strict=True):  # seldom more than one
        place = word & mask
        if first << 64 | second < level.thresholds[place] & (2**128 - 1):
            out[tie] += (place - (int(level.table[place]) & 0xFFFF)) << level.shift
