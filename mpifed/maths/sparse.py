"""Sparse rows on a device.

They are kept and gathered by cupyx. Products are kernels of our own, one thread for each number of the result: those of
cuSPARSE may add atomically, and so give other bits every time; X'd takes X transposed, once, by a stable sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mpifed.core.record import Array, beside, namespace
from mpifed.maths.kernels import Source, launch

PRODUCT = Source(
    "sparse_product", "raw D values, raw int32 indices, raw int32 indptr, raw T weights, int64 width", "T out", """
    const long long row = i / width, column = i % width;
    T found = 0;
    for (long long k = indptr[row]; k < indptr[row + 1]; ++k)
        found += (T)values[k] * weights[indices[k] * width + column];
    out = found;
    """,
)  # fmt: skip

SQUARES = Source("sparse_squares", "raw D values, raw int32 indptr", "float64 out", """
    double found = 0;
    for (long long k = indptr[i]; k < indptr[i + 1]; ++k) found += (double)values[k] * (double)values[k];
    out = found;
""")  # fmt: skip


class DeviceRows:
    """Rows [s, p] as a CSR matrix on a device, with what is asked of a matrix here."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.data, self.indices, self.indptr = matrix.data, matrix.indices, matrix.indptr
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = matrix.dtype

    @classmethod
    def of(cls, host: Any, xp: Any) -> DeviceRows:
        """A SciPy CSR matrix, on the device of CuPy `xp`."""
        parts = xp.asarray(host.data), xp.asarray(host.indices, dtype="i4"), xp.asarray(host.indptr, dtype="i4")
        return cls(_csr(parts, host.shape))

    @property
    def nbytes(self) -> int:
        """On the device."""
        return int(self.data.nbytes + self.indices.nbytes + self.indptr.nbytes)

    def __getitem__(self, at: slice | Array) -> DeviceRows:
        """Some rows, by a slice or their numbers."""
        return DeviceRows(self._matrix[at if isinstance(at, slice) else beside(self.data, at)])

    def __matmul__(self, weights: Array) -> Array:
        """[s] or [s, h], from [p] or [p, h]; in the dtype of the weights, if that is not the smaller one."""
        xp = namespace(self.data)
        dtype = xp.promote_types(self.dtype, weights.dtype)
        weights = xp.ascontiguousarray(weights, dtype=dtype)
        found = xp.empty((self.shape[0], *weights.shape[1:]), dtype)
        width = found.size // max(1, self.shape[0])
        launch(PRODUCT, self.data, self.data, self.indices, self.indptr, weights, max(1, width), found)
        return found

    @cached_property
    def T(self) -> DeviceRows:
        """Transposed: the columns as rows, what stands in each in the order of the rows."""
        xp = namespace(self.data)
        order = xp.argsort(self.indices, kind="stable")
        rows = xp.searchsorted(self.indptr, xp.arange(len(self.indices), dtype="i4"), side="right") - 1
        starts = xp.searchsorted(self.indices[order], xp.arange(self.shape[1] + 1, dtype="i4"), side="left")
        parts = self.data[order], rows[order].astype("i4"), starts.astype("i4")
        return DeviceRows(_csr(parts, self.shape[::-1]))

    def squares(self) -> Array:
        """[s] squared norms, in float64."""
        xp = namespace(self.data)
        found = xp.empty(self.shape[0])
        launch(SQUARES, self.data, self.data, self.indptr, found)
        return found

    @staticmethod
    def stacked(parts: Sequence[DeviceRows]) -> DeviceRows:
        """All the rows of several matrices."""
        from cupyx.scipy.sparse import vstack

        return DeviceRows(vstack([one._matrix for one in parts], format="csr"))


def _csr(parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> Any:
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(parts, shape=shape)


def emptied(rows: Any, there: Array) -> Any:
    """CSR rows [s, p], of either kind, with zeros in place of those that are not `there` [s]."""
    xp = namespace(rows.data)
    row = xp.searchsorted(rows.indptr, xp.arange(len(rows.indices), dtype="i4"), side="right") - 1
    return _rebuilt(rows, (xp.where(there[row], rows.data, 0), rows.indices, rows.indptr), rows.shape)


def renumbered(rows: Any, place: Array, features: int) -> Any:
    """CSR rows [s, p], of either kind, whose column j becomes `place[j]` of `features`."""
    parts = rows.data, place[rows.indices], rows.indptr
    return _rebuilt(rows, parts, (len(rows.indptr) - 1, features))


def _rebuilt(rows: Any, parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> Any:
    if isinstance(rows, DeviceRows):
        return DeviceRows(_csr(parts, shape))
    from scipy.sparse import csr_matrix

    return csr_matrix(parts, shape=shape)
