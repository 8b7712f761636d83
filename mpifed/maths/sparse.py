"""Sparse rows: SciPy's CSR matrices, in memory."""

from __future__ import annotations

import numpy as np

from mpifed.core.record import Array
from mpifed.data.block import CsrRows


def emptied(rows: CsrRows, filled: Array) -> CsrRows:
    """CSR rows [s, p] with zeros in the rows where `filled` [s] is false."""
    from scipy.sparse import csr_matrix

    row = np.searchsorted(rows.indptr, np.arange(len(rows.indices), dtype="i4"), side="right") - 1
    result: CsrRows = csr_matrix((np.where(filled[row], rows.data, 0), rows.indices, rows.indptr), shape=rows.shape)
    return result


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
