"""Exact sums: the grid, its bounds, and integers that no order of addition can change."""

from __future__ import annotations

from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import covering

from mpifed.maths.fixedpoint import Encoder, SumGrid, decode, grid

pytestmark = pytest.mark.usefixtures("loops_by")
ONE_LIMB, TWO_LIMBS = (2.0**-40, 2.0**10), (2.0**-40, 2.0**35)
GRIDS = [
    ONE_LIMB,
    TWO_LIMBS,
    (2.0**-30, 2.0**20),
    (1.0, 2.0**40),
    (2.0**-60, 2.0**20),
    (2.0**-52, 0.75),
    (8.0, 2.0**50),
]


def rounded(x: float, scale: float) -> int:
    """x / scale to the nearest integer, ties to even: Python's exact rationals say so."""
    return round(Fraction(float(x)) / Fraction(scale))


def summed(form: SumGrid, groups: list[list[Any]], size: int) -> Any:
    """The accumulator after adding groups each on a rank of its own, and then the ranks."""
    total = np.zeros(form.limbs * size, dtype=np.int64)
    for values in filter(None, groups):
        encoder, accumulator = Encoder(form), np.full(form.limbs * size, 77)
        rows, half = np.stack(values), len(values) // 2
        encoder.add(rows[: half or None], accumulator, anew=True)
        if half:
            encoder.add(rows[half:], accumulator)
        total += accumulator
    return total


def integers(form: SumGrid, accumulator: Any) -> list[int]:
    """What an accumulator stands for, in multiples of the scale."""
    ratio = 2**32 if form.limbs == 2 else 0
    high, low = accumulator.reshape(form.limbs, -1)[[0, -1]].tolist()
    return [h * ratio + k for h, k in zip(high, low, strict=True)]


@st.composite
def answers(draw: Any) -> tuple[tuple[float, float], list[Any]]:
    """(scale, bound) and values [size] of several clients, among them ties and the bound itself."""
    scale, bound = draw(st.sampled_from(GRIDS))
    size, dtype = draw(st.integers(1, 4)), draw(st.sampled_from(["f8", "f4"]))
    half = st.integers(-(2**20), 2**20).map(lambda k: min(max((k + 0.5) * scale, -bound), bound))
    anything = st.floats(-bound, bound, width=64) | half | st.sampled_from([0.0, -0.0, bound, -bound, scale / 2])
    clients = draw(st.lists(st.lists(anything, min_size=size, max_size=size), min_size=1, max_size=6))
    return (scale, bound), [np.clip(np.array(v).astype(dtype), -bound, bound).astype(dtype) for v in clients]


@settings(max_examples=80)
@given(answers(), st.randoms(use_true_random=False), st.integers(1, 5), st.sampled_from(["f4", "f8"]))
def test_sums_in_any_order_and_grouping_are_those_of_exact_rationals(
    given_: Any, random: Any, ranks: int, dtype: str
) -> None:
    """And are decoded with one rounding, or nearly: a float64 on the way, two limbs one more; then the dtype."""
    (scale, bound), values = given_
    form, size = grid(scale, bound, len(values)), len(values[0])
    expected = [sum(rounded(v[i], scale) for v in values) for i in range(size)]
    groups: list[list[Any]] = [[] for _ in range(ranks)]  # some of which may stay empty
    for value in random.sample(values, len(values)):
        groups[random.randrange(ranks)].append(value)
    total = summed(form, groups, size)
    assert integers(form, total) == expected
    found = decode(total, form, dtype)
    assert found.dtype == dtype
    for number, exact in zip(found, (Fraction(k) * Fraction(scale) for k in expected), strict=True):
        last = abs(exact) * Fraction(float(np.finfo(dtype).eps))
        assert abs(Fraction(float(number)) - exact) <= (abs(exact) + Fraction(bound)) * Fraction(2) ** -50 + last


def test_grids() -> None:
    assert grid(*ONE_LIMB, clients=1000).limbs == 1
    assert grid(*TWO_LIMBS, clients=1000).limbs == 2
    for limbs, steps, clients in ((1, 2**50, 2**12 - 1), (2, 2**50, 2**12), (1, 2**51 - 1, 1), (2, 2**51, 1)):
        assert grid(2.0**-40, steps * 2.0**-40, clients).limbs == limbs  # below 2^51 steps, and 2^62 of all clients
    assert grid(2.0**-40, 2.0**10, 10) == grid(2.0**-40, 2.0**10, 100)
    assert grid(0.25, 1.0, 1).limb_scales == (0.25,)
    assert grid(*TWO_LIMBS, clients=2).limb_scales == (2.0**-8, 2.0**-40)


REFUSED = [
    *((scale, 1.0, 1, "must be a power of two") for scale in (0.3, 0.0, -1.0, 3.0, nan, inf)),
    *((1.0, bound, 1, "must be positive and finite") for bound in (0.0, -1.0, nan, inf)),
    (2.0**-60, 2.0**30, 1, "must stay below"),
    (2.0**-50, 2.0**30, 2**20, "must stay below"),
    (1.0, 2.0**83, 1, "must stay below"),
]


@pytest.mark.parametrize(("scale", "bound", "clients", "said"), REFUSED)
def test_no_grid(scale: float, bound: float, clients: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        grid(scale, bound, clients)


@pytest.mark.parametrize("clients", [1, 3, 4000])
@pytest.mark.parametrize("sign", [1, -1])
def test_everybody_at_the_bound(clients: int, sign: int) -> None:
    """Where a sum would wrap, it does."""
    for scale, bound in (ONE_LIMB, (2.0**-40, 2.0**10.5), (1.0, 2.0**50), TWO_LIMBS, (2.0**-60, 2.0**22)):
        form = grid(scale, bound, clients)
        values = [np.array([sign * bound])] * clients
        assert integers(form, summed(form, [values], 1)) == [clients * rounded(sign * bound, scale)]


@pytest.mark.parametrize("form", [SumGrid(2.0**-40, 2.0**10, 1), SumGrid(2.0**-60, 2.0**10, 2)])
def test_sums_above_the_bound_of_one_value(form: SumGrid) -> None:
    rng, encoder = np.random.default_rng(1), Encoder(form)
    found: Any = np.empty(50 * form.limbs, np.int64)
    totals = [(rng.uniform(-1, 1, 50) * form.bound * times).astype("f4") for times in (1, 30, 0.01, 9, 3)]
    for i, total in enumerate(totals):
        assert encoder.add(total[None], found, anew=i == 0, clients=30)
    wanted = [sum(rounded(x, form.scale) for x in column) for column in zip(*totals, strict=True)]
    assert integers(form, found) == wanted


@covering(
    {
        "limbs": [1, 2],
        "clients": [1, 2, 4, 7],
        "dtype": ["f4", "f8"],
        "bad": [nan, inf, -inf, 2.0**10 * 1.001, -(2.0**30), 3e38],
    }
)
def test_what_is_outside_is_told_wherever_it_is(bad: float, dtype: str, clients: int, limbs: int) -> None:
    form = SumGrid(2.0**-40 if limbs == 1 else 2.0**-60, 2.0**10, limbs)
    values = np.random.default_rng(0).uniform(-(2.0**10), 2.0**10, (clients, 3001)).astype(dtype)
    encoder, sums = Encoder(form), np.empty(limbs * 3001, np.int64)
    assert encoder.add(values, sums, anew=True)
    assert encoder.add(values.sum(axis=0)[None], sums, clients=clients)
    half, again = values / 2, np.empty_like(sums)
    assert encoder.add(half, sums, anew=True, common=half[-1])
    assert encoder.add(half + half[-1], again, anew=True)
    assert (sums == again).all()
    assert not encoder.add(half, sums, common=3 * values[0])
    for client, place in ((0, 0), (clients - 1, 3000), (clients // 2, 1500)):
        wrong = values.copy()
        wrong[client, place] = bad
        assert not encoder.add(wrong, sums, anew=True)
        assert not encoder.add(wrong, sums)
    assert not encoder.add(np.full((1, 3001), clients * 2.0**10 * 1.001, dtype), sums, clients=clients)


@pytest.mark.parametrize("largest", [2**31, 2**50, 2**51, 2**52, 2**62])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_sums_are_rounded_once(largest: int, dtype: str) -> None:
    rng = np.random.default_rng(largest)
    sums = rng.integers(-largest, largest, 4001)
    sums[:8] = [0, -1, 2**51 - 1, 2**51, -(2**51), -(2**51) - 1, largest - 1, -largest]
    wanted = [np.dtype(dtype).type(int(k)) * np.dtype(dtype).type(2.0**-40) for k in sums]
    np.testing.assert_array_equal(decode(sums, SumGrid(2.0**-40, 2.0**10, 1), dtype), wanted)
