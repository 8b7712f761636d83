"""How many clients hold each cell, a pair of a row and a column: four bytes per cell, over pieces of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.data.block import Piece
from mpifed.data.partition import Partition
from mpifed.data.samples import stack_rows

_PIECE = 2**25  # cells that are looked at at a time


def check_cells(
    partition: Partition, samples: int, features: int, missing: str, cell_of: Callable[[int, int], str],
    holder_of: Callable[[int], str],
) -> Partition:  # fmt: skip
    """The partition, with the number of cells that no client holds.

    Parameters
    ----------
    partition : of `samples` rows and `features` columns
    missing : "zero" where there may be such cells
    cell_of, holder_of : what messages call a cell by row and column, and a client

    Raises
    ------
    DataError : when a cell is held by several clients or, unless that is allowed, by none.
    """
    number = samples * features - int(partition.counts @ partition.widths)
    for first, count in _counts(partition, samples, features):
        for within, column in np.argwhere((count > 1) | (count < (missing != "zero")))[:1].tolist():
            row = first + within
            parts = map(partition.of, range(partition.clients))
            holders = [holder_of(n) for n, (rows, columns) in enumerate(parts) if row in rows and column in columns]
            if holders:
                raise DataError(f"{cell_of(row, column)} is held by {' and '.join(holders)}; leave it to one of them")
            remedy = f"give it one, or --missing zero to let all {number} such cells be zero"
            raise DataError(f"{cell_of(row, column)} is held by no client; {remedy}")
    return partition._replace(missing=number)


def only_held(partition: Partition, X: Piece) -> Piece:
    """The rows X [s, p], dense or CSR, with zeros in cells that no client holds."""
    counts = _counts(partition, *X.shape)
    if isinstance(X, np.ndarray):
        out = np.empty(X.shape, X.dtype)
        for start, count in counts:
            out[start : start + len(count)] = np.where(count, X[start : start + len(count)], X.dtype.type(0))
        return out
    held = stack_rows([X[start : start + len(count)].multiply(count > 0).tocsr() for start, count in counts])
    held.eliminate_zeros()
    return held


def _counts(partition: Partition, samples: int, features: int) -> Iterator[tuple[int, NDArray[np.int32]]]:
    """(first row, [b, features] number of clients that hold each cell) of pieces of the rows."""
    size = max(1, _PIECE // features)
    for start in range(0, samples, size):
        count = np.zeros((min(size, samples - start), features), np.int32)
        for rows, columns in map(partition.of, range(partition.clients)):
            within = rows[slice(*np.searchsorted(rows, [start, start + size]))] - start
            count[np.ix_(within, columns)] += 1
        yield start, count
