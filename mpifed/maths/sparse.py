"""Sparse rows on a device.

cupyx stores and indexes them. Products are kernels of our own, with a thread for each element of the result: those of
cuSPARSE may add atomically, so that their bits differ from run to run. X'd is computed with X transposed, which is done
once, by a stable sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from mpifed.core.protocols import CsrRows
from mpifed.core.record import Array, ArrayModule, beside, namespace
from mpifed.maths.kernels import KernelSource, launch

PRODUCT = KernelSource(
    "sparse_product", "raw D values, raw int32 indices, raw int32 indptr, raw T weights, int64 width", "T out", """
    const long long row = i / width, column = i % width;
    T sum = 0;
    for (long long k = indptr[row]; k < indptr[row + 1]; ++k)
        sum += (T)values[k] * weights[indices[k] * width + column];
    out = sum;
    """,
)  # fmt: skip

SQUARES = KernelSource("sparse_squares", "raw D values, raw int32 indptr", "float64 out", """
    double sum = 0;
    for (long long k = indptr[i]; k < indptr[i + 1]; ++k) sum += (double)values[k] * (double)values[k];
    out = sum;
""")  # fmt: skip


class DeviceRows:
    """A CSR matrix [s, p] on a device, with the operations that mpifed needs."""

    def __init__(self, matrix: Any) -> None:  # of cupyx, which has no types
        self._matrix = matrix
        self.data, self.indices, self.indptr = matrix.data, matrix.indices, matrix.indptr
        self.shape: tuple[int, int] = matrix.shape
        self.dtype = matrix.dtype

    @classmethod
    def of(cls, host: CsrRows, xp: ArrayModule) -> DeviceRows:
        """A copy of a SciPy CSR matrix on the device, by CuPy `xp`."""
        host = summed(host)
        parts = xp.asarray(host.data), xp.asarray(host.indices, dtype="i4"), xp.asarray(host.indptr, dtype="i4")
        return cls(_csr(parts, host.shape))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes on the device."""
        return int(self.data.nbytes + self.indices.nbytes + self.indptr.nbytes)

    def __getitem__(self, at: slice | Array) -> DeviceRows:
        """The rows of a slice, or of an array of indices."""
        return DeviceRows(self._matrix[at if isinstance(at, slice) else beside(self.data, at)])

    def __matmul__(self, weights: Array) -> Array:
        """[s] or [s, h], from [p] or [p, h], in the wider dtype of matrix and weights."""
        xp = namespace(self.data)
        dtype = xp.promote_types(self.dtype, weights.dtype)
        weights = xp.ascontiguousarray(weights, dtype=dtype)
        result = xp.empty((self.shape[0], *weights.shape[1:]), dtype)
        width = result.size // max(1, self.shape[0])
        launch(PRODUCT, self.data, self.data, self.indices, self.indptr, weights, max(1, width), result)
        return result

    @cached_property
    def T(self) -> DeviceRows:
        """[p, s] the transpose; the entries of each of its rows in the order of the original rows."""
        xp = namespace(self.data)
        order = xp.argsort(self.indices, kind="stable")
        rows = xp.searchsorted(self.indptr, xp.arange(len(self.indices), dtype="i4"), side="right") - 1
        starts = xp.searchsorted(self.indices[order], xp.arange(self.shape[1] + 1, dtype="i4"), side="left")
        parts = self.data[order], rows[order].astype("i4"), starts.astype("i4")
        return DeviceRows(_csr(parts, self.shape[::-1]))

    def toarray(self) -> Array:
        """[s, p] on the device."""
        dense: Array = self._matrix.toarray()
        return dense

    def squares(self) -> Array:
        """[s] squared norms of the rows, in float64."""
        xp = namespace(self.data)
        norms = xp.empty(self.shape[0])
        launch(SQUARES, self.data, self.data, self.indptr, norms)
        return norms

    @staticmethod
    def stacked(parts: Sequence[DeviceRows]) -> DeviceRows:
        """The rows of several matrices, one below the other."""
        from cupyx.scipy.sparse import vstack

        return DeviceRows(vstack([part._matrix for part in parts], format="csr"))


def _csr(parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> Any:  # of cupyx, as above
    from cupyx.scipy.sparse import csr_matrix

    return csr_matrix(parts, shape=shape)


def emptied(rows: CsrRows, filled: Array) -> CsrRows:
    """CSR rows [s, p], SciPy's or `DeviceRows`, with zeros in the rows where `there` [s] is false."""
    xp = namespace(rows.data)
    row = xp.searchsorted(rows.indptr, xp.arange(len(rows.indices), dtype="i4"), side="right") - 1
    return _rebuilt(rows, (xp.where(filled[row], rows.data, 0), rows.indices, rows.indptr), rows.shape)


def summed(rows: CsrRows) -> CsrRows:
    """CSR rows [s, p] with one value in a cell: SciPy's matrices may hold several, whose sum counts.

    Those of a device are copies of such. No bit of a row depends on the others.
    """
    if isinstance(rows, DeviceRows) or rows.has_canonical_format:  # type: ignore[attr-defined]  # SciPy's has it
        return rows
    from scipy.sparse import csr_matrix

    copied = csr_matrix(rows, copy=True)
    copied.has_sorted_indices = False  # rows in order are sorted too, which may put equal columns into another order
    copied.sum_duplicates()
    result: CsrRows = copied
    return result


def renumbered(rows: CsrRows, place: Array, features: int) -> CsrRows:
    """CSR rows [s, p], SciPy's or `DeviceRows`, whose column j becomes column `place[j]` of `features`."""
    parts = rows.data, place[rows.indices], rows.indptr
    return _rebuilt(rows, parts, (len(rows.indptr) - 1, features))


def _rebuilt(rows: CsrRows, parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> CsrRows:
    if isinstance(rows, DeviceRows):
        return DeviceRows(_csr(parts, shape))
    from scipy.sparse import csr_matrix

    rebuilt: CsrRows = csr_matrix(parts, shape=shape)
    return rebuilt
