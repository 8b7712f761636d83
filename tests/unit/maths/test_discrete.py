"""Discrete Gaussian numbers: tables against exact arithmetic, the whole against its distribution, and every bit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, chisquare, norm

from mpifed.core import loops
from mpifed.core.round import Round, secret_words
from mpifed.maths.privacy import discrete
from mpifed.maths.privacy.discrete import draw, levels_of
from mpifed.privacy.spending import DRAWN

SIGMAS = [1.0, 3.7, 150.25, 2520.0, 2521.0, 2.0**13.3, 2.0**17.1, 2.0**19.9, 2.0**21.3, 2.0**21.4, 2.0**27, 2.0**36]
UNLIKELY = 1e-6
THRESHOLD_BITS = 144

Words = Callable[[int], NDArray[np.uint64]]
VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("privacy_vectors.json").read_text(encoding="utf-8"))


def philox(seed: int) -> Words:
    found: Words = np.random.Philox(seed).random_raw
    return found


def numbers(sigma: float, count: int, words: Words | None = None) -> NDArray[np.int64]:
    out = np.empty(count, np.int64)
    draw(levels_of(sigma), words or philox(1), out)
    return out


def exact(variance: Fraction, reach: int) -> list[Decimal]:
    """[reach] the probabilities of 0, 1, ..., by decimal arithmetic, which the product does not use for them."""
    weights = [(Decimal(-(i**2)) / Decimal(2 * variance.numerator) * variance.denominator).exp() for i in range(reach)]
    whole = 2 * sum(weights) - 1
    return [one / whole for one in weights]


def probabilities(level: discrete.Level) -> list[Fraction]:
    """[2^bits] the exact probability of each index of a level's table."""
    unit, count = 2**THRESHOLD_BITS, 2**level.bits
    sums = [0] * count
    for place, (entry, threshold) in enumerate(zip(level.table.tolist(), level.thresholds, strict=True)):
        assert entry >> 16 == threshold >> 128
        sums[place] += threshold
        sums[entry & 0xFFFF] += unit - threshold
    return [Fraction(numerator, unit * count) for numerator in sums]


def closeness(sigma: float) -> float:
    """A bound on the total variation between `draw`'s numbers and D(sigma)."""
    levels = levels_of(sigma)
    with localcontext(Context(prec=120, rounding=ROUND_CEILING)) as context:
        total = Decimal(0)
        for level in levels:
            reach = Decimal(level.middle - 1) ** 2 / _decimal(2 * level.variance, context)
            # Gaussian tails: 2 Q(x) < sqrt(2 / pi) exp(-x^2 / 2) / x, and x > 12.9
            total += (-reach).exp() / 16 + Decimal(2) ** (1 - THRESHOLD_BITS)
        for j in range(len(levels) - 1):
            above = sum((level.variance * 4**level.shift for level in levels[j + 1 :]), Fraction(0))
            variance = levels[j].variance * 4 ** levels[j].shift
            square = above * variance / (above + variance) / 4 ** levels[j + 1].shift  # r^2
            first = (Decimal("-19.7392") * _decimal(square, context)).exp()  # 2 pi^2 is larger
            ripple = 2 * first / (1 - first)
            total += ripple / (1 - ripple)
    return math.nextafter(float(total), math.inf)


def _decimal(number: Fraction, context: Context) -> Decimal:
    return context.divide(Decimal(number.numerator), Decimal(number.denominator))


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["draws"])
def test_draws_stay(row: dict[str, Any]) -> None:
    words = secret_words(bytes.fromhex(VECTORS["key"]), VECTORS["round"])
    assert numbers(row["sigma"], len(row["integers"]), words).tolist() == row["integers"]


@pytest.mark.parametrize("sigma", [1.0, 3.7, 150.25, 2.0**13.3])
def test_a_table_is_the_distribution(sigma: float) -> None:
    """In exact fractions, place by place; what it lacks in all is no more than is said of it."""
    with localcontext() as context:
        context.prec = 80
        for level in levels_of(sigma):
            found = probabilities(level)
            assert sum(found) == 1
            expected = exact(level.variance, level.middle + 400)
            apart = Decimal(0)
            for place, chance in enumerate(found):
                value = Decimal(chance.numerator) / Decimal(chance.denominator)
                at = abs(place - level.middle)
                assert at < level.middle or chance == 0  # the place below the smallest is for nothing
                apart += abs(value - expected[at]) if at < level.middle else 0
            apart += 2 * sum(expected[level.middle :])  # tails
            assert apart / 2 <= closeness(sigma)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_levels_make_up_the_variance(sigma: float) -> None:
    """And what is left between the two distributions is below what is counted, of so many numbers."""
    levels = levels_of(sigma)
    assert sum(level.variance * 4**level.shift for level in levels) == Fraction(sigma) ** 2
    assert levels[0].shift == 0
    for fine, coarse in pairwise(levels):  # at least twice the spacing of the next
        assert fine.variance * 4**fine.shift >= 4 * 4**coarse.shift
    for level in levels:
        assert level.bits <= discrete.MOST_BITS and level.middle - 1 >= 12.9 * math.sqrt(level.variance)
    assert 0 < closeness(sigma) <= DRAWN / 1e12


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "count"), [
    (2.0**13.3, 10**6), (2.0**19.9, 10**6), (2.0**23.5, 10**6),
    pytest.param(2.0**19.9, 10**8, marks=pytest.mark.long),
])  # fmt: skip
def test_cells_and_tails(sigma: float, count: int) -> None:
    """A normal distribution's cells, the tails in one each; beside a grid so fine nothing tells the two apart."""
    edges = np.arange(-6, 6, max(1, int(sigma / 40)) / sigma) * sigma
    edges = np.concatenate([[-np.inf], np.floor(edges) + 0.5, [np.inf]])
    words = philox(2)
    counts = sum(np.histogram(numbers(sigma, 10**6, words), edges)[0] for _ in range(count // 10**6))
    expected = np.diff(norm.cdf(edges / sigma)) * count
    some = expected > 10
    counts, expected = (np.append(one[some], one[~some].sum()) for one in (counts, expected))
    assert chisquare(counts[expected > 0], expected[expected > 0]).pvalue > UNLIKELY


@pytest.mark.parametrize("sigma", [2.0**13.3, 2.0**19.9, 2.0**23.5])
def test_an_attack_on_levels_finds_nothing(sigma: float) -> None:
    """Modulo the spacing of each level numbers are uniform, also given what the levels above come to."""
    drawn = numbers(sigma, 10**6, philox(4))
    for level in levels_of(sigma)[1:]:
        for shift in (level.shift, level.shift - 1, level.shift + 1):
            low = drawn & (2 ** min(shift, 10) - 1)
            assert chisquare(np.bincount(low, minlength=2 ** min(shift, 10))).pvalue > UNLIKELY
            high = (drawn >> (shift - 4)) & 15
            by_sign = np.stack([np.bincount(high[side], minlength=16) for side in (drawn >= 0, drawn < 0)])
            even = by_sign.sum(axis=0, keepdims=True) / 2
            assert chi2.sf(((by_sign - even) ** 2 / even).sum(), 15) > UNLIKELY
    lag = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(lag) < 6 / 1000


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [3.7, 2.0**17.1, 2.0**23.5])
def test_compiled_or_not_the_numbers_are_the_same(sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loops.compiled is not None
    with_loops = numbers(sigma, 300_001)
    monkeypatch.setattr(loops, "compiled", None)
    assert np.array_equal(numbers(sigma, 300_001), with_loops)


@pytest.mark.parametrize("compiled", [True, False])
def test_ties_are_decided_by_the_bits_that_follow(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a word whose upper bits are those of the threshold, and words one below, at and above what follows."""
    if not compiled:
        monkeypatch.setattr(loops, "compiled", None)
    (level,) = levels_of(40.0)
    alias = (level.table & np.uint32(0xFFFF)).astype(int)
    place = next(i for i in range(level.middle, 2**level.bits) if alias[i] != i and level.thresholds[i] % 2**64)
    word = (int(level.table[place]) >> 16) << 16 | place
    following, last = divmod(level.thresholds[place] & 2**128 - 1, 2**64)
    for more, chosen in (
        ((following - 1, 2**64 - 1), place),
        ((following, last - 1), place),
        ((following, last), alias[place]),
        ((following + 1, 0), alias[place]),
    ):
        given = iter([np.array([word], np.uint64), np.array(more, np.uint64)])
        out = np.empty(1, np.int64)
        draw((level,), lambda count, given=given: next(given), out)
        assert out[0] == chosen - level.middle


def test_words_that_are_not_random_are_found_out() -> None:
    (level,) = levels_of(40.0)
    word = np.uint64((int(level.table[level.middle]) >> 16) << 16 | level.middle)
    with pytest.raises(AssertionError, match="not random"):
        draw((level,), lambda count: np.full(count, word), np.empty(2**13, np.int64))


@pytest.mark.parametrize("count", [1, 7, 2**13, 2**13 + 1, 3 * 2**13 + 5])
def test_secret_words_are_uniform_whatever_is_asked_for(count: int) -> None:
    words = Round(0, 1, np.ones(1, bool), secure=True).words("a", 0)
    found = np.concatenate([words(count) for _ in range(max(1, 40_000 // count))])
    assert abs(np.unpackbits(found.view(np.uint8)).mean() - 0.5) < 6 * 0.5 / math.sqrt(64 * len(found))
    assert len(np.unique(found)) == len(found)


def test_opendp_agrees() -> None:
    """The library's exact sampler, which shares nothing with ours."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    theirs = np.array(dp.m.make_gaussian(*space, scale=3.7)([0] * 20_000))
    ours = numbers(3.7, 20_000)
    edges = np.arange(-10.5, 11)
    counts = np.stack([np.histogram(np.clip(one, -10, 10), edges)[0] for one in (ours, theirs)])
    even = counts.sum(axis=0, keepdims=True) / 2
    assert chi2.sf(((counts - even) ** 2 / even).sum(), 20) > UNLIKELY
