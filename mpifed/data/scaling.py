"""Affine scalings of the columns, stored besides the compact raw values and applied when rows are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.errors import UsageError
from mpifed.core.loops import scale_columns
from mpifed.core.record import Array
from mpifed.data.block import Piece


class Scaling(NamedTuple):
    """x = raw * scale + shift, each a scalar [] or a number per column [p]."""

    scale: Array
    shift: Array

    def part(self, columns: Array) -> Scaling:
        return Scaling(*(value[columns] if value.ndim else value for value in self))

    def to(self, dtype: DTypeLike) -> tuple[Array | None, Array | None]:
        """(scale, shift) in `dtype`, with None for a scale of 1 or a shift of 0."""
        scale = None if np.all(self.scale == 1) else self.scale.astype(dtype)
        shift = None if np.all(self.shift == 0) else self.shift.astype(dtype)
        return scale, shift

    def then(self, later: Scaling) -> Scaling:
        """The composition: this scaling, then `later`."""
        return Scaling(self.scale * later.scale, self.shift * later.scale + later.shift)

    def apply(self, X: Piece, dtype: DTypeLike) -> Piece:
        """The scaled rows X [s, p]; a shift is not allowed for CSR rows."""
        if not isinstance(X, np.ndarray):
            return scale_sparse(X, self.to(dtype)[0], dtype)
        out = np.empty(X.shape, dtype)
        scale_columns(X, *self.to(dtype), out)
        return out


IDENTITY = Scaling(np.array(1.0), np.array(0.0))


def scale_sparse(X: Piece, scale: Array | None, dtype: DTypeLike) -> Piece:
    """X [b, p] CSR with scaled columns, in `dtype`."""
    data = X.data.astype(dtype)
    if scale is not None:
        data *= scale[X.indices] if scale.ndim else scale
    return type(X)((data, X.indices, X.indptr), shape=X.shape)


def fit(kind: str, parts: Iterable[Piece], top: float | None) -> Scaling:
    """The scaling of columns for `--scale`, computed from the training rows only.

    Parameters
    ----------
    kind : "unit", which divides by `top`, or by the largest absolute value if that is None; "minmax", which maps each
        column to [0, 1]; "standard", which maps each column to mean 0 and variance 1. The latter two map constant
        columns to 0.
    parts : the rows [b, p] in float64, dense or CSR; read at most once
    top : the largest possible value of the source

    Raises
    ------
    UsageError : when a shift would fill a sparse matrix.
    """
    if kind == "unit":
        if top is None:
            top = max((float(abs(X).max()) for X in parts), default=0.0)
        return Scaling(np.array(1 / top if top else 1.0), np.array(0.0))
    low, high, count, mean, squares = np.array(np.inf), np.array(-np.inf), 0, np.zeros(()), np.zeros(())
    is_sparse = False
    for X in parts:
        is_sparse, size = not isinstance(X, np.ndarray), X.shape[0]
        low, high = np.minimum(low, _row(X.min(axis=0))), np.maximum(high, _row(X.max(axis=0)))
        its_mean = _row(X.mean(axis=0))
        its_squares = _row(X.multiply(X).sum(axis=0)) - size * its_mean**2 if is_sparse else X.var(axis=0) * size
        total = count + size  # updated piece by piece (Chan, Golub and LeVeque 1979)
        squares = squares + its_squares + (its_mean - mean) ** 2 * count * size / total
        mean = mean + (its_mean - mean) * size / total
        count = total
    center, spread = low, high - low
    if kind == "standard":
        varies, deviation = spread > 0, np.sqrt(np.maximum(squares, 0) / max(count, 1))
        center, spread = np.where(varies, mean, low), np.where(varies, deviation, 0.0)  # else rounding errors of sums
    if is_sparse and np.any(center != 0):
        raise UsageError(
            f"--scale {kind}: column {np.flatnonzero(center)[0]} would be shifted, which fills the zeros of sparse "
            "data; use --scale unit or --scale unit-rows, or store the data with --dense"
        )
    scale = 1 / np.where(spread > 0, spread, 1.0)
    return Scaling(scale, -center * scale)


def _row(values: object) -> Array:
    """[p] float64 from the result of a reduction of a dense or sparse matrix."""
    dense = values.toarray() if hasattr(values, "toarray") else np.asarray(values)
    return dense.ravel().astype(np.float64)


def unit_rows(X: Piece) -> Piece:
    """X [s, p], dense or CSR, with every row that is not zero divided by its Euclidean norm, in float32."""
    from sklearn.preprocessing import normalize

    if isinstance(X, np.ndarray):
        return normalize(X.astype(np.float64), copy=False).astype(np.float32)
    exact = normalize(type(X)((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape), copy=False)
    return type(X)((exact.data.astype(np.float32), X.indices, X.indptr), shape=X.shape)
