"""Loops over memory: eight are compiled where they can be, by several calls of NumPy where not. The bits are the same.

`_loops.c` is compiled when mpifed is installed and there is a C compiler. It rounds each operation as NumPy does, so
that ranks with and without it agree. Sums of integers have their NumPy version in `mpifed.maths.fixedpoint`, products
in `mpifed.maths.arrays`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from mpifed.core.record import Array, namespace

_VERSION = 14  # of the arguments of what is compiled
_MOST_TERMS = 4
_FEW_TIES = 2**10  # of so many words all may be ties; of more, 64 times as many as there are on average
_FLOATS = (np.dtype("f4"), np.dtype("f8"))
_RAW = (np.dtype("u1"), *_FLOATS)


def _loaded() -> Any:  # a module in C, or None
    """The compiled module; None where there is none, or it was built from other sources."""
    try:
        module = import_module("mpifed.core._loops")
    except ImportError:
        return None
    return module if module.VERSION == _VERSION else None


compiled = _loaded()


def scale_columns(raw: Array, scale: Array | None, shift: Array | None, out: Array, at: Array | None = None) -> None:
    """Put raw[at] * scale + shift into `out`.

    Parameters
    ----------
    raw : [s, p]
    scale, shift : of the dtype of `out`, [] or [p]; None changes nothing
    out : [b, p], each row contiguous; it may be `raw`, without `at`
    at : [b] rows of `raw`, from 0 to s - 1; all of them by default

    Raises
    ------
    IndexError
        when there are fewer rows.
    """
    in_rows = all(
        x.shape[1] <= 1 or x.strides[1] == x.itemsize for x in (raw, out)
    )  # each row's numbers are neighbours
    if compiled is not None and in_rows and raw.dtype in _RAW and out.dtype in _FLOATS:
        rows = None if at is None else np.ascontiguousarray(at, np.int64)
        compiled.gather(raw, rows, scale, shift, out)
        return
    out[...] = raw if at is None else raw.take(at, axis=0)
    if scale is not None:
        out *= scale
    if shift is not None:
        out += shift


def combination(
    factors: Sequence[float],
    arrays: Sequence[Array],
    out: Array | None = None,
    others: tuple[int, Sequence[float]] | None = None,
) -> Array:
    """factors[0] * arrays[0] + factors[1] * arrays[1] + ..., added from left to right, in the dtype of the first.

    Parameters
    ----------
    arrays : [n, ...] of one shape, of NumPy or of CuPy; all but the first may also be [...], common to all rows
    out : where it goes, which may be one of `arrays`; by default a new array
    others : (column, factors), of arrays with two axes at most: the factors from this column on
    """
    first, xp = arrays[0], namespace(arrays[0])
    if out is None:
        out = xp.empty_like(first)
    supported = compiled is not None and len(arrays) <= _MOST_TERMS and out.dtype in _FLOATS
    if supported and xp is np and all(a.flags.c_contiguous and a.dtype == out.dtype for a in (out, *arrays)):
        width = first.shape[-1] if others is not None else min(array.size for array in arrays)
        at, rest = others or (width, factors)
        compiled.combine((*factors, *rest), tuple(arrays), width, at, out)
        return out
    if others is not None:
        at, rest = others
        for columns, part in ((slice(at), factors), (slice(at, None), rest)):
            combination(part, [array[..., columns] for array in arrays], out[..., columns])
        return out
    total = first * first.dtype.type(factors[0])
    for factor, array in zip(factors[1:], arrays[1:], strict=True):
        total += array * array.dtype.type(factor)
    out[...] = total
    return out


def softmax_residuals(power: Array, y: Array, weights: Array) -> None:
    """Make exponentials of logits the derivative of the weighted cross-entropy by these, in place.

    Parameters
    ----------
    power : [m, L] float32 or float64, contiguous
    y, weights : [m]
    """
    xp = namespace(power)
    if compiled is not None and xp is np and len(power) > 1:  # NumPy adds the numbers of a single row in another order
        y, weights = np.ascontiguousarray(y, np.int64), np.ascontiguousarray(weights, np.float64)
        compiled.residuals(power, *power.shape, y, weights)
        return
    power /= power.T.copy().sum(axis=0)[:, None]  # not along the last axis: in order
    power.reshape(-1)[xp.arange(0, power.size, power.shape[1]) + y] -= 1
    power *= weights.astype(power.dtype)[:, None]


def first_distinct(words: Array, sizes: Array, rows: Array) -> Array:
    """Put the first distinct random rows into `rows`: drawn in turn, without those drawn before.

    Parameters
    ----------
    words : [n, w] uint64, random; the upper 53 bits of each are a row
    sizes : [n] int64, how many rows there are
    rows : [n, count] int64

    Returns
    -------
    [n] how many rows were drawn, at most `count`: the words may contain fewer distinct rows.
    """
    n, count = rows.shape
    counts = np.empty(n, np.int64)
    if compiled is not None:
        words, sizes = np.ascontiguousarray(words), np.ascontiguousarray(sizes)
        compiled.first_distinct(words, sizes, *words.shape, count, rows, counts)
        return counts
    drawn = ((words >> np.uint64(11)) * 2.0**-53 * sizes[:, None]).astype(np.int64)
    for i, numbers in enumerate(drawn.tolist()):
        distinct = list(dict.fromkeys(numbers))[:count]
        counts[i] = len(distinct)
        rows[i, : len(distinct)] = distinct
    return counts


def alias_level(words: Array, upper: bool, table: Array, middle: int, shift: int, first: bool, out: Array) -> Array:
    """One level of discrete Gaussian numbers, see `mpifed.maths.privacy.discrete`, added to `out` or put there.

    Parameters
    ----------
    words : [m] uint64, random; the upper or lower half of each is read
    table : [2^bits] uint32, upper 16 bits of each place's threshold, and its alias
    out : [m] int64

    Returns
    -------
    [t] int64: where the word's upper 16 bits are those of the threshold, so that others must decide; there `out` has
    taken the alias.
    """
    if compiled is not None:
        ties = np.empty(len(words), np.int64)
        ties = ties[: compiled.alias_level(words, upper, table, middle, shift, first, out, ties)]
        if len(ties) > max(_FEW_TIES, len(words) // _FEW_TIES):
            raise AssertionError(f"{len(ties)} of {len(words)} random words are ties: they are not random")
        return ties
    half = (words >> np.uint64(32 * upper)).astype(np.uint32)
    place = half & np.uint32(len(table) - 1)
    entry, drawn = table[place], half >> np.uint32(16)
    threshold = entry >> np.uint32(16)
    chosen = np.where(drawn < threshold, place, entry & np.uint32(0xFFFF)).astype(np.int64)
    out[:] = (0 if first else out) + ((chosen - middle) << shift)
    return np.flatnonzero(drawn == threshold)


def noisy(values: Array, factor: float, most: float, truncate: bool, noise: Array, scale: float, out: Array) -> None:
    """Put (values * factor, within +-most, as integers, + noise) * scale into `out`; what is not a number counts as 0.

    Parameters
    ----------
    values : [m] float32 or float64
    most : below 2^50
    truncate : whether it is rounded towards zero, and not to the nearest integer
    noise : [m] int64, below 2^50 in absolute value
    out : [m] float32 or float64
    """
    if compiled is not None:
        compiled.noisy(values, factor, most, truncate, noise, scale, out)
        return
    steps = np.nan_to_num(values.astype(np.float64) * factor, nan=0.0, posinf=np.inf, neginf=-np.inf)
    steps = (np.trunc if truncate else np.rint)(np.clip(steps, -most, most))
    out[...] = (steps + noise) * scale
