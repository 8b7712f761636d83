"""Sparse rows: SciPy's CSR matrices, in memory."""

from __future__ import annotations

import numpy as np

from mpifed.core.protocols import CsrRows
from mpifed.core.record import Array


def emptied(rows: CsrRows, filled: Array) -> CsrRows:
    """CSR rows [s, p] with zeros in the rows where `filled` [s] is false."""
    row = np.searchsorted(rows.indptr, np.arange(len(rows.indices), dtype="i4"), side="right") - 1
    return _rebuilt((np.where(filled[row], rows.data, 0), rows.indices, rows.indptr), rows.shape)


def summed(rows: CsrRows) -> CsrRows:
    """CSR rows [s, p] with one value in a cell: SciPy's matrices may hold several, whose sum counts.

    No bit of a row depends on the others.
    """
    if rows.has_canonical_format:  # type: ignore[attr-defined]  # SciPy's has it
        return rows
    from scipy.sparse import csr_matrix

    copied = csr_matrix(rows, copy=True)
    copied.has_sorted_indices = False  # rows in order are sorted too, which may put equal columns into another order
    copied.sum_duplicates()
    result: CsrRows = copied
    return result


def renumbered(rows: CsrRows, place: Array, features: int) -> CsrRows:
    """CSR rows [s, p], whose column j becomes column `place[j]` of `features`."""
    return _rebuilt((rows.data, place[rows.indices], rows.indptr), (len(rows.indptr) - 1, features))


def _rebuilt(parts: tuple[Array, Array, Array], shape: tuple[int, int]) -> CsrRows:
    from scipy.sparse import csr_matrix

    rebuilt: CsrRows = csr_matrix(parts, shape=shape)
    return rebuilt
