"""Arithmetic on NumPy or CuPy arrays, dense, or sparse in memory, and on records of such arrays."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import partial, reduce
from typing import cast

import numpy as np

from mpifed.core import loops
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, map_leaves
from mpifed.core.record import namespace as namespace
from mpifed.data.block import CsrRows, Features

_ABREAST = 16  # sums of a row's products
_UNCOPIED = 10**6  # multiplications of a product for which OpenBLAS copies no factor: it takes a fifth less time
_ALIKE = 96  # columns that its kernels take by the same instructions, be they of a whole or of a part; one alone isn't


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)) without overflow, by the hyperbolic tangent (three times as fast as the exponential)."""
    half = z.dtype.type(0.5)
    result: Array = np.tanh(z * half)
    result *= half
    result += half
    return result


def product(X: Features, weights: Array, out: Array | None = None) -> Array:
    """X @ weights for every client.

    Parameters
    ----------
    X : [..., s, p], or a tuple of n CSR matrices [s, p]
    weights : [p, h], or [n, p, h] where each client has its own weights
    out : [..., s, h], contiguous: where it goes; a new array by default

    Returns
    -------
    [..., s, h]
    """
    if isinstance(X, tuple):
        each_weights = weights if weights.ndim == 3 else [weights] * len(X)
        return np.stack([x @ w for x, w in zip(X, each_weights, strict=True)], out=out)
    xp = namespace(X)
    if X.ndim == 2 or weights.ndim > 2:
        return xp.matmul(X, weights, out=out)
    # a single large product instead of n small ones
    there = None if out is None else out.reshape(-1, out.shape[-1])
    return xp.matmul(X.reshape(-1, X.shape[-1]), weights, out=there).reshape(*X.shape[:-1], weights.shape[-1])


def transposed_product(X: Features, slopes: Array, out: Array | None = None) -> Array:
    """X' @ slopes for every client: [..., p, h] from X as in `product` and slopes [..., s, h].

    Dense products are put into `out`, if given; of few samples in parts, whose bits are the same.
    """
    if isinstance(X, tuple):
        return np.stack([x.T @ d for x, d in zip(X, slopes, strict=True)])
    columns, p = X.swapaxes(-1, -2), X.shape[-1]
    if out is None or X.size * slopes.shape[-1] <= _UNCOPIED:
        return namespace(X).matmul(columns, slopes, out=out)
    width = _UNCOPIED // (slopes.shape[-2] * slopes.shape[-1]) // _ALIKE * _ALIKE
    if namespace(X) is not np or not 0 < width < p or p % width == 1:
        width = p
    for start in range(0, p, width):
        part = slice(start, start + width)
        namespace(X).matmul(columns[..., part, :], slopes, out=out[..., part, :])
    return out


def square_norms(X: Features) -> Array:
    """Squared norms along the last axis, in float64: [..., s] from X as in `product`."""
    if isinstance(X, tuple):
        return np.stack([_square_norms_sparse(x) for x in X])
    wide = X.astype("f8", copy=False)
    norms: Array = namespace(X).einsum("...p,...p->...", wide, wide)
    return norms


def _square_norms_sparse(x: CsrRows) -> Array:
    """[s] squared norms of the rows of a CSR matrix."""
    square = x.data.astype("f8") ** 2
    norms, occupied = np.zeros(x.shape[0]), np.diff(x.indptr) > 0
    if len(square):
        norms[occupied] = np.add.reduceat(square, x.indptr[:-1][occupied])
    return norms


def column(values: Array, like: Array) -> Array:
    """[n, 1, ...] from values [n], with the dtype, number of axes and device of `like`."""
    return beside(like, values, like.dtype).reshape(-1, *[1] * (like.ndim - 1))


def row_products(X: Array, Y: Array) -> Array:
    """Inner products [...] of rows X, Y [..., p] of float32 in NumPy, added in float64: sixteen sums side by side."""
    x, y = (np.ascontiguousarray(rows).reshape(-1, rows.shape[-1]) for rows in (X, Y))
    if loops.compiled is not None:
        products: Array = np.empty(X.shape[:-1])
        loops.compiled.row_products(x, y, products)
        return products
    width = x.shape[1]
    terms = -(-width // _ABREAST)  # of each sum; zeros fill the last ones
    parts = np.zeros((len(x), terms * _ABREAST))
    np.multiply(x, y, out=parts[:, :width], dtype=np.float64)
    sums: Array = parts.reshape(len(x), terms, _ABREAST).sum(axis=1, initial=0.0)  # in order: not along the last axis
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    products = sums.reshape(X.shape[:-1])
    return products


def index(like: Array, at: slice | Array) -> slice | Array:
    """The positions `at`, a slice or an array, as `like` can be indexed with."""
    return at if isinstance(at, slice) else beside(like, at)


def repeated(leaf: Array, times: int) -> Array:
    """[times, ...] the same array so many times, read-only and without copies."""
    if type(leaf) is not np.ndarray or not leaf.flags.c_contiguous:
        return namespace(leaf).broadcast_to(leaf, (times, *leaf.shape))
    view: Array = np.ndarray((times, *leaf.shape), leaf.dtype, leaf, 0, (0, *leaf.strides))  # a fifth of the time
    view.flags.writeable = False
    return view


def assign(out: tuple[Record, ...], values: tuple[Record, ...]) -> None:
    """Put the leaves of a record into those of another, where they are not there yet."""
    for there, leaf in zip(out, values, strict=True):
        if isinstance(there, tuple):
            assign(there, cast("tuple[Record, ...]", leaf))
        elif leaf is not there:
            cast("Array", there)[...] = leaf


def added(records: Iterable[AnyRecord]) -> AnyRecord:
    """The sum of records of one structure, in the arrays of the first; of one at least."""
    return reduce(partial(map_leaves, operator.iadd), records)


def flat(record: Record) -> Array:
    """[d] all leaves in float64, one after the other."""
    parts = [leaf.reshape(-1) for leaf in bare_leaves(record)]
    whole: Array = namespace(parts[0]).concatenate(parts, dtype=np.float64)
    return whole


def unflat(values: Array, like: AnyRecord) -> AnyRecord:
    """The record of which `values` [d] are the leaves one after the other, in the shapes of those of `like`."""
    start = 0

    def next_part(leaf: Array) -> Array:
        nonlocal start
        start += leaf.size
        part: Array = values[start - leaf.size : start].reshape(leaf.shape)
        return part

    return map_leaves(next_part, like)


def zeros(like: AnyRecord) -> AnyRecord:
    """Zeros in the shapes and dtypes of `like`."""
    return map_leaves(lambda leaf: namespace(leaf).zeros_like(leaf), like)


def power_of_two(value: float) -> float:
    """The smallest power of two that is at least `value` and at least 1."""
    return float(2.0 ** max(0, int(np.ceil(np.log2(value)))))
