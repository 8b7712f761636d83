"""How many clients hold each cell, a pair of a row and a column: a byte per cell, over pieces of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.protocols import Piece
from mpifed.data.partition import Partition
from mpifed.data.samples import empty, stack_rows

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
    without = None
    for first, count in _counts(partition, samples, features):
        if count.max() > 1:
            row, column = divmod(first * features + int(count.argmax()), features)
            parts = map(partition.of, range(partition.clients))
            holders = [holder_of(n) for n, (rows, columns) in enumerate(parts) if row in rows and column in columns]
            raise DataError(f"{cell_of(row, column)} is held by {' and '.join(holders)}; leave it to one of them")
        if without is None and not count.all():
            without = divmod(first * features + int(count.argmin()), features)
    number = samples * features - int(partition.counts @ partition.widths)
    if without and missing != "zero":
        remedy = f"give it one, or --missing zero to let all {number} such cells be zero"
        raise DataError(f"{cell_of(*without)} is held by no client; {remedy}")
    return partition._replace(missing=number)


def only_held(partition: Partition, X: Piece) -> Piece:
    """The rows X [s, p], dense or CSR, with zeros in cells that no client holds."""
    counts = _counts(partition, *X.shape)
    if isinstance(X, np.ndarray):
        out = empty(X.shape, X.dtype)
        for start, count in counts:
            out[start : start + len(count)] = np.where(count, X[start : start + len(count)], X.dtype.type(0))
        return out
    held = stack_rows([X[start : start + len(count)].multiply(count > 0).tocsr() for start, count in counts])
    held.eliminate_zeros()
    return held


def _counts(partition: Partition, samples: int, features: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(first row, [b, features] number of clients that hold each cell, 2 for more) of pieces of the rows."""
    size = max(1, _PIECE // features)
    lowest, highest = np.array([group[[0, -1]] for group in partition.rows])[partition.holds[:, 0]].T
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        count = np.zeros((stop - start, features), np.uint8)
        for client in np.flatnonzero((lowest < stop) & (highest >= start)).tolist():
            rows, columns = partition.of(client)
            among = np.zeros(columns[-1] + 1 - columns[0], np.uint8)
            among[columns - columns[0]] = 1
            held = rows[slice(*np.searchsorted(rows, [start, stop]))] - start, slice(columns[0], columns[-1] + 1)
            count[held] = np.minimum(count[held] + among, 2)
        yield start, count
