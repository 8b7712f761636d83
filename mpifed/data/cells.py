"""How many clients hold each cell, a pair of a row and a column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.data.partition import Partition


class Cover(NamedTuple):
    """The cells of a partition that no client, or more than one, holds."""

    missing: int  # number of cells that no client holds; counted only if none is held twice
    cell: tuple[int, int] | None  # (row, column) of a cell that is held twice, else of a missing cell
    holders: tuple[int, ...]  # the clients that hold that cell
    bare: tuple[str, int] | None  # ("row" or "column", index) without any held cell


def cover(partition: Partition, samples: int, features: int) -> Cover:
    """Whether each cell is held by exactly one client, without an array of the size of all cells.

    If no row is held over more columns than there are, two clients share a cell only if they share a row and a column:
    the pairs that share a row (or a column, if these are fewer) are listed, and tested for a common column (or row).

    Parameters
    ----------
    partition : of rows and columns among clients
    samples, features : total numbers of rows and columns
    """
    widths = _held(partition.rows, partition.holds[:, 0], partition.widths, samples)
    heights = _held(partition.columns, partition.holds[:, 1], partition.counts, features)
    cell = _crowded(partition, widths, heights, samples, features) or _shared(partition, samples, features)
    if cell:
        return Cover(0, cell, _holders(partition, *cell), None)
    missing = samples * features - int(partition.counts @ partition.widths)
    if not missing:
        return Cover(0, None, (), None)
    row = int(np.argmax(widths < features))
    bare = [("row", int(i)) for i in np.flatnonzero(widths == 0)[:1]]
    bare += [("column", int(j)) for j in np.flatnonzero(heights == 0)[:1]]
    column = int(np.argmin(_columns_of(partition, row, features)))
    return Cover(missing, (row, column), (), bare[0] if bare else None)


def only_held(partition: Partition, first: int, X: Piece) -> Piece:
    """The rows X [b, p], dense or CSR, with zeros in cells that no client holds; `first` is the index of X[0]."""
    if not isinstance(X, np.ndarray):
        return _only_held_sparse(partition, first, X)
    out = np.zeros_like(X)
    for rows, columns in _rectangles(partition, first, len(X)):
        at = np.ix_(rows, columns)
        out[at] = X[at]
    return out


def _only_held_sparse(partition: Partition, first: int, X: Piece) -> Piece:
    held, lengths = np.zeros(X.nnz, dtype=np.bool_), np.diff(X.indptr)
    for rows, columns in _rectangles(partition, first, X.shape[0]):
        in_rows, in_columns = (np.zeros(size, dtype=np.bool_) for size in X.shape)
        in_rows[rows], in_columns[columns] = True, True
        held |= np.repeat(in_rows, lengths) & in_columns[X.indices]
    out = type(X)((np.where(held, X.data, 0), X.indices.copy(), X.indptr.copy()), shape=X.shape)
    out.eliminate_zeros()
    return out


def _rectangles(partition: Partition, first: int, size: int) -> Iterator[tuple[Array, Array]]:
    """(rows, columns) of each client among the rows first to first + size - 1; rows are relative to `first`."""
    for client in range(partition.clients):
        rows, columns = partition.of(client)
        start, stop = np.searchsorted(rows, [first, first + size])
        if start < stop:
            yield rows[start:stop] - first, columns


def _held(groups: list[Array], group_of: Array, of_clients: Array, size: int) -> NDArray[np.int64]:
    """[size] sums of `of_clients` [N] over the clients that hold each index; client n holds group group_of[n]."""
    total = np.zeros(size, dtype=np.int64)
    for group, weight in zip(groups, np.bincount(group_of, of_clients, len(groups)).astype(np.int64), strict=True):
        total[group] += weight
    return total


def _crowded(
    partition: Partition, widths: Array, heights: Array, samples: int, features: int
) -> tuple[int, int] | None:
    """A cell held twice in a row that clients hold over more columns than there are, or in such a column."""
    if widths.max() > features:
        row = int(widths.argmax())
        return row, int(_columns_of(partition, row, features).argmax())
    if heights.max() > samples:
        column = int(heights.argmax())
        return int(_columns_of(_transposed(partition), column, samples).argmax()), column
    return None


def _columns_of(partition: Partition, row: int, features: int) -> NDArray[np.int64]:
    """[p] number of clients that hold each cell of a row."""
    among = np.array([_has(group, row) for group in partition.rows])
    group_of = partition.holds[among[partition.holds[:, 0]], 1]
    return _held(partition.columns, group_of, np.ones(len(group_of)), features)


def _holders(partition: Partition, row: int, column: int) -> tuple[int, ...]:
    in_rows = np.array([_has(group, row) for group in partition.rows])
    in_columns = np.array([_has(group, column) for group in partition.columns])
    return tuple(np.flatnonzero(in_rows[partition.holds[:, 0]] & in_columns[partition.holds[:, 1]]).tolist())


def _has(group: Array, number: int) -> bool:
    """Whether `number` is in `group`, which is ascending."""
    at = int(np.searchsorted(group, number))
    return at < len(group) and bool(group[at] == number)


def _shared(partition: Partition, samples: int, features: int) -> tuple[int, int] | None:
    """A cell that two clients hold; None if there is none."""
    by_row, by_column = partition.holds.T
    if _pairs(partition.rows, by_row, samples) <= _pairs(partition.columns, by_column, features):
        return _shared_of(partition, samples, features)
    cell = _shared_of(_transposed(partition), features, samples)
    return cell and (cell[1], cell[0])


def _transposed(partition: Partition) -> Partition:
    return Partition(partition.split, partition.columns, partition.rows, partition.holds[:, ::-1])


def _pairs(groups: list[Array], group_of: Array, size: int) -> int:
    """Approximate number of pairs of clients that share an index below `size`; client n holds group group_of[n]."""
    return int((_held(groups, group_of, np.ones(len(group_of)), size) ** 2).sum())


def _shared_of(partition: Partition, samples: int, features: int) -> tuple[int, int] | None:
    """A cell that two clients hold; efficient if each row has few clients."""
    a, b = _meeting(partition.rows, partition.holds[:, 0], samples)
    groups = np.sort(partition.holds[:, 1][np.stack([a, b])], axis=0)
    keys = groups[0] * len(partition.columns) + groups[1]
    for key, column in _common(partition.columns, np.unique(keys).tolist(), features):
        pair = int(np.argmax(keys == key))
        rows = np.intersect1d(partition.of(a[pair])[0], partition.of(b[pair])[0], assume_unique=True)
        return int(rows[0]), column
    return None


def _meeting(groups: list[Array], group_of: Array, size: int) -> tuple[Array, Array]:
    """The pairs of clients a < b whose groups have an index in common; client n holds group group_of[n]."""
    from scipy.sparse import csr_matrix

    ends = np.cumsum([0, *map(len, groups)])
    held = csr_matrix((np.ones(ends[-1], np.bool_), np.concatenate(groups), ends), shape=(len(groups), size))
    of = csr_matrix(
        (np.ones(len(group_of), np.bool_), group_of, np.arange(len(group_of) + 1)), shape=(len(group_of), len(groups))
    )
    pairs = (of @ (held @ held.T) @ of.T).tocoo()
    before = pairs.row < pairs.col
    return pairs.row[before], pairs.col[before]


def _common(groups: list[Array], keys: list[int], size: int) -> Iterator[tuple[int, int]]:
    """(key, first common index) for each of the ascending keys g * len(groups) + h whose groups g and h intersect."""
    inside, marked = np.zeros(size, dtype=np.bool_), groups[0]
    for key in keys:
        first, second = (groups[number] for number in divmod(key, len(groups)))
        if first is not marked:
            inside[marked] = False
        inside[first], marked = True, first
        if second[0] <= first[-1] and first[0] <= second[-1]:
            shared = inside[second]
            if shared.any():
                yield key, int(second[shared.argmax()])
