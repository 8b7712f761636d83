"""Loops over memory, compiled and by NumPy, against one number after the other."""

from __future__ import annotations

import math
import shutil
import subprocess
import sysconfig
from functools import partial
from typing import Any

import numpy as np
import pytest
from lengths import covering

from mpifed.core import loops
from mpifed.maths.arrays import row_products

pytestmark = pytest.mark.usefixtures("loops_by")
dtypes = pytest.mark.parametrize("dtype", ["f4", "f8"])
STRANGE = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-45, 3e38, -3e38, 1.0, 1 / 3]


def numbers(size: int, dtype: Any, seed: int = 0) -> Any:
    """Of all magnitudes, and strange ones among them."""
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(dtype)
    at = rng.choice(size, len(STRANGE), replace=False)
    found[at] = STRANGE
    return found


def same(found: Any, wanted: Any) -> None:
    """To the bit, but for the kind of NaN."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    bits = f"u{found.itemsize}"
    np.testing.assert_array_equal(found[~nan].view(bits), wanted[~nan].view(bits))


def test_they_are_compiled_where_that_is_possible(loops_by: str) -> None:
    """What setup.py calls optional does not fail in silence here."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    tried = [compiler, "-fsyntax-only", "-I", sysconfig.get_path("include"), "-x", "c", "-"]
    headers = "#include <Python.h>\n#include <math.h>\n"
    if shutil.which(compiler) and subprocess.run(tried, input=headers, text=True, capture_output=True).returncode == 0:
        assert (loops._loaded() is not None) and (loops.compiled is not None) == (loops_by == "compiled")


def combined(factors: Any, arrays: Any) -> Any:
    """One product added after the other."""
    number = arrays[0].dtype.type
    total = number(factors[0]) * arrays[0]
    for factor, array in zip(factors[1:], arrays[1:], strict=True):
        total = total + number(factor) * array.astype(number)
    return total


@dtypes
@pytest.mark.parametrize("terms", [1, 2, 3, 4, 8, 9])
@np.errstate(all="ignore")
def test_combinations(dtype: str, terms: int) -> None:
    """In a new array, and in the place of any of them."""
    arrays = [numbers(2050, dtype, seed) for seed in range(terms)]
    factors = np.random.default_rng(9).standard_normal(terms).tolist()
    same(loops.combination(factors, arrays), combined(factors, arrays))
    for k in range(terms):
        here = [array.copy() for array in arrays]
        assert loops.combination(factors, here, out=here[k]) is here[k]
        same(here[k], combined(factors, arrays))
        for i in set(range(terms)) - {k}:
            same(here[i], arrays[i])


@dtypes
@pytest.mark.parametrize("at", [0, 7, 512, 1025])
@pytest.mark.parametrize("push", [None, "each", "common", "wide", "strided"])
@np.errstate(all="ignore")
def test_steps_in_place(dtype: str, at: int, push: str | None) -> None:
    """Of two clients, with two factors: what is penalized stands first."""
    x, change, each, common = (numbers(2050, dtype, seed).reshape(2, -1) for seed in range(4))
    pushes = {"each": each, "common": common[0], "wide": each.astype("f8"), "strided": each.T.copy().T}
    arrays = [change, *([pushes[push]] if push else []), x]
    ones = [1.0] * (len(arrays) - 1)
    parts = [[array[..., part] for array in arrays] for part in (slice(at), slice(at, None))]
    wanted = np.hstack([combined([*ones, factor], part) for factor, part in zip((0.7, 1.0), parts, strict=True)])
    assert loops.combination([*ones, 0.7], arrays, x, (at, [*ones, 1.0])) is x
    same(x, wanted)


@dtypes
@pytest.mark.parametrize("keep", [1.0, 0.7])
@pytest.mark.parametrize("shape", [(1,), (11,), (5000,), (50, 100)])
@np.errstate(all="ignore")
def test_first_steps_from_a_common_model(dtype: str, keep: float, shape: tuple[int, ...]) -> None:
    change, model = (numbers(5000, dtype, seed)[-math.prod(shape) :].reshape(shape) for seed in range(2))
    changes, factors = np.stack([change, change[::-1]]), (1.0, keep - 1, 1.0)
    model[~np.isfinite(model)] = 0  # a factor of 0 would make them NaN
    wanted = combined(factors, (changes, model, model))
    assert loops.combination(factors, (changes, model, model), changes) is changes
    same(changes, wanted)


@pytest.mark.parametrize("p", [1, 3, 15, 16, 17, 40, 784, 5001])
@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("squares", [False, True])
@np.errstate(all="ignore")
def test_products_of_rows(squares: bool, n: int, p: int) -> None:
    """Sixteen sums in float64 side by side, then halves of them."""
    X, Y = (numbers(50 * p, "f4", seed).reshape(50, p)[: 2 * n].reshape(2, n, p) for seed in range(2))
    if squares:
        Y = X
    wanted = np.zeros((2, n))
    for at in np.ndindex(2, n):
        sums = [0.0] * 16
        for j, (x, y) in enumerate(zip(X[at].tolist(), Y[at].tolist(), strict=True)):
            sums[j % 16] += x * y
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
        wanted[at] = sums[0]
    same(row_products(X, Y), wanted)
    same(row_products(np.asfortranarray(X), Y), wanted)


@dtypes
@pytest.mark.parametrize(("m", "classes"), [(1, 9), (2, 1), (2, 257), (300, 3)])
@np.errstate(all="ignore")
def test_residuals_of_the_cross_entropy(dtype: str, m: int, classes: int) -> None:
    rng, number = np.random.default_rng(m), np.dtype(dtype).type
    power = np.exp(8 * rng.standard_normal((m, classes))).astype(dtype)
    power[-1, 0] = np.inf
    y, weights, slopes = rng.integers(0, classes, m), rng.standard_normal(m), power.copy()
    loops.softmax_residuals(slopes, y, weights)
    for i in range(m):
        summed = power[i, 0]
        for k in range(1, classes):
            summed = summed + power[i, k]
        wanted = (power[i] / summed - (np.arange(classes) == y[i]).astype(dtype)) * number(weights[i])
        if m > 1:
            same(slopes[i], wanted)
        else:  # a single row is added by NumPy in an order of its own
            np.testing.assert_allclose(slopes[i], wanted, rtol=1e-6)


@dtypes
@np.errstate(all="ignore")
@covering({"shift": [None, "one", "each"], "scale": [None, "one", "each"], "raw": ["u1", "i2", "f4", "f8"]})
def test_rows(dtype: str, raw: str, scale: str | None, shift: str | None) -> None:
    rng, p = np.random.default_rng(3), 37
    values = rng.integers(0, 200, (23, p)).astype(raw) if raw[0] in "ui" else numbers(23 * p, raw).reshape(23, p)
    at = rng.integers(0, 23, 50)
    kinds = {None: None, "one": np.array(1 / 255, dtype), "each": rng.standard_normal(p).astype(dtype)}
    factor, term = kinds[scale], kinds[shift]
    beside = np.full((50, p + 5), 7, dtype)  # columns of others, left and right
    for rows, out in ((at, beside[:, 3:-2]), (at, np.empty((50, p), dtype)), (None, np.empty((23, p), dtype))):
        loops.scale_columns(np.hstack([values, values])[:, p:], factor, term, out, rows)  # columns of others too
        for i, row in enumerate(range(23) if rows is None else rows):
            wanted = values[row].astype(dtype)
            if factor is not None:
                wanted = wanted * factor
            same(out[i], wanted if term is None else wanted + term)
    assert (beside[:, :3] == 7).all() and (beside[:, -2:] == 7).all()
    if raw == dtype:
        there = values.copy()
        loops.scale_columns(there, factor, term, there)
        same(there, out)


@pytest.mark.parametrize("row", [23, 2**40, -24])
def test_rows_that_are_not_there(row: int) -> None:
    with pytest.raises(IndexError):
        loops.scale_columns(np.zeros((23, 3), "u1"), None, None, np.empty((2, 3), "f4"), np.array([0, row]))


def test_first_rows_that_differ() -> None:
    rng = np.random.default_rng(5)
    sizes = np.array([40, 41, 5000, 10, 2**33, 3])
    for width in (4, 30, 200):
        words = rng.integers(0, 2**64, (len(sizes), width), dtype=np.uint64)
        words[4, 1::2] = words[4, ::2]
        words[:, 0] = 2**64 - 1
        rows = np.full((len(sizes), 10), -1)
        found = loops.first_distinct(words, sizes, rows)
        for i, size in enumerate(sizes.tolist()):
            wanted = list(dict.fromkeys(int((int(word) >> 11) * 2.0**-53 * size) for word in words[i]))[:10]
            assert wanted[0] == size - 1
            assert rows[i].tolist() == wanted + [-1] * (10 - len(wanted))
            assert found[i] == len(wanted)


def test_sizes_that_do_not_fit_are_refused_and_read_nothing(loops_by: str) -> None:
    """Whoever calls the compiled functions by mistake gets an error and no other memory."""
    if loops_by != "compiled":
        return
    module, some, pairs = loops.compiled, np.zeros(8), np.zeros((4, 2))
    whole, rows, add = np.zeros(8, np.int64), np.zeros((2, 4), np.int64), module.add_encoded
    for call in (
        lambda: add(some, None, 2, 5, 1.0, (1.0, 0.0), True, whole),
        lambda: add(some, None, 1, 8, 1.0, (1.0, 1.0), True, whole),
        lambda: add(some, None, 1, 8, 1.0, (1.0, 0.0), True, whole[:4].view("i4")),
        lambda: add(some.astype("f2"), None, 1, 8, 1.0, (1.0, 0.0), True, whole),
        lambda: add(some, some[:7], 1, 8, 1.0, (1.0, 0.0), True, whole),
        lambda: module.gather(pairs, None, np.zeros(3), None, np.zeros((4, 2))),
        lambda: module.gather(pairs, np.zeros(3, np.int64), None, None, np.zeros((4, 2))),
        lambda: module.gather(pairs, None, None, None, np.zeros((4, 3))),
        lambda: module.gather(pairs, None, None, None, np.zeros((3, 2))),
        lambda: module.gather(pairs.astype("f2"), None, None, None, np.zeros((4, 2))),
        lambda: module.gather(pairs, None, None, None, np.zeros((4, 2), "f2")),
        lambda: module.gather(pairs[:, ::-1], None, None, None, np.zeros((4, 2))),
        lambda: module.gather(some, None, None, None, np.zeros((4, 2))),
        lambda: module.row_products(some.view("f4"), some.view("f4")[:8], np.zeros(2)),
        lambda: module.row_products(some, some, np.zeros(2)),
        lambda: module.row_products(some.view("f4"), some.view("f4"), np.zeros(3)),
        lambda: module.combine((1.0, 2.0, 3.0), (some,), 8, 0, some),
        lambda: module.combine((1.0, 1.0), (some[:4],), 8, 0, some),
        lambda: module.combine((1.0, 1.0), (some.view("f4"),), 8, 0, some),
        lambda: module.combine((), (), 8, 0, some),
        lambda: module.combine((1.0,) * 10, (some,) * 5, 8, 0, some),
        lambda: module.combine((1.0, 1.0), (np.zeros((4, 4))[:, 0],), 4, 0, np.zeros(4)),
        *[
            partial(module.combine, (1.0, 1.0), (some,), *pair, some)
            for pair in ((3, 0), (0, 0), (8, 9), (8, -1), (-8, -8))
        ],
        lambda: module.first_distinct(whole.view("u8"), whole[:2], 2, 4, 4, rows[:1], whole[:2].copy()),
        lambda: module.alias_level(whole, False, np.zeros(3, "u4"), 0, 0, True, whole.copy(), whole.copy()),
        lambda: module.alias_level(whole, False, np.zeros(4, "u4"), 0, 0, True, whole.copy(), whole[:2].copy()),
        lambda: module.residuals(some.copy(), 2, 4, whole[:2], some[:3]),
        lambda: module.residuals(some.copy(), 3, 4, whole[:3], some[:3]),
        lambda: module.noisy(some, 1.0, 1.0, False, whole[:7], 1.0, some.copy()),
        lambda: module.noisy(some.astype("f2"), 1.0, 1.0, False, whole, 1.0, some.copy()),
    ):
        with pytest.raises((ValueError, BufferError)):
            call()
    with pytest.raises(TypeError):
        module.combine(("x", 1.0), (some,), 8, 0, some)
    for label in (-1, 4):
        with pytest.raises(IndexError, match=f"class {label} of 4"):
            module.residuals(some.copy(), 2, 4, np.array([0, label]), some[:2])
