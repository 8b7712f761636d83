"""Partitions of rows and columns among clients: pure functions of labels, options and a seed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array, Flags, Integers
from mpifed.data.partitioners import deal

Split: TypeAlias = Literal["rows", "columns", "grid"]


class Partition(NamedTuple):
    """Groups of rows, groups of columns, and each client's group of either."""

    split: Split
    rows: list[Integers]  # R groups [s_r] of global row indices, ascending
    columns: list[Integers]  # C groups [p_c] of global column indices, ascending
    holds: Integers  # [N, 2] group of rows and group of columns of each client

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.holds)

    @property
    def counts(self) -> Integers:
        """[N] rows held by each client."""
        return np.array(list(map(len, self.rows)), np.int64)[self.holds[:, 0]]

    @property
    def widths(self) -> Integers:
        """[N] columns held by each client."""
        return np.array(list(map(len, self.columns)), np.int64)[self.holds[:, 1]]

    def of(self, client: int) -> tuple[Integers, Integers]:
        """(rows [s], columns [p]) of a client."""
        row_group, column_group = self.holds[client]
        return self.rows[row_group], self.columns[column_group]


def by_rectangles(held: Iterable[tuple[Integers, Integers]]) -> Partition:
    """A partition of the ascending rows [s] and columns [p] that each client holds; equal ones are stored once."""
    places: tuple[dict[bytes, int], dict[bytes, int]] = {}, {}
    holds = [
        [
            place.setdefault(np.asarray(members, np.int64).tobytes(), len(place))
            for place, members in zip(places, pair, strict=True)
        ]
        for pair in held
    ]
    rows, columns = ([np.frombuffer(members, np.int64) for members in place] for place in places)
    split: Split = "rows" if len(columns) == 1 else "columns" if len(rows) == 1 else "grid"
    return Partition(split, rows, columns, np.array(holds))


def check_partition(partition: Partition, samples: int, features: int) -> None:
    """Raise DataError unless one client holds each cell, a pair of one of the rows and one of the columns."""
    holders = np.zeros((samples, features), np.uint8)  # of each cell: none, one, or more
    for client, members in enumerate(map(partition.of, range(partition.clients))):
        for group, size in zip(members, holders.shape, strict=True):
            if not len(group) or group[0] < 0 or group[-1] >= size or (np.diff(group) <= 0).any():
                raise DataError(f"partition: client {client}: expected indices from 0 to {size - 1}, ascending")
        holders[np.ix_(*members)] += holders[np.ix_(*members)] < 2
    for row, column in np.argwhere(holders != 1)[:1].tolist():
        who = "several clients" if holders[row, column] else "no client"
        raise DataError(f"partition: row {row} and column {column} are held by {who}; expected each with one")


def training_rows(partition: Partition, keep: Flags) -> Partition:
    """The partition of the rows where `keep` [s] is True, numbered anew; DataError when a client has none of them."""
    number = np.cumsum(keep) - 1
    groups = [number[group[keep[group]]] for group in partition.rows]
    for client, group in enumerate(partition.holds[:, 0]):
        if not len(groups[group]):
            raise DataError(f"client {client}: all its rows are test rows; keep one to train on")
    return partition._replace(rows=groups)


def by_grid(
    split: Split,
    y: Array,
    features: int,
    shape: tuple[int, int],
    how: str = "iid",
    skew: str | float | None = None,
    seed: int = 0,
) -> Partition:
    """R groups of rows times C groups of columns; client r * C + c holds group r of rows, c of columns.

    Parameters
    ----------
    split : "rows" where C is 1, "columns" where R is 1
    y : [s] classes from 0, or real targets (then only `how` = "iid" is possible)
    features : total number of columns, of which each group has a contiguous block; the first ones are larger by a
        column: 784 columns in 10 blocks are 4 of 79 and 6 of 78
    shape : (R, C), at most s and `features`
    how : "iid"; "dirichlet:A", where each class is divided in proportions drawn from a symmetric Dirichlet
        distribution with parameter A; "classes:K", where each group has rows of (at most) K classes, and classes
        have equally many groups; "shards:K", where the rows in the order of their classes are cut into K R equal runs,
        and each group has K at random (McMahan et al., AISTATS 2017, with K = 2)
    skew : how the groups' sizes are drawn, up to a factor: "dirichlet:A", or A alone, from a symmetric Dirichlet
        distribution; "power:A", the numbers k^-A for k = 1, ..., R at random; None for equal sizes
    seed : of all random numbers

    Raises
    ------
    UsageError : when there are too few rows, columns or classes for the partition.
    """
    rows, parts = deal(y, shape[0], how, skew, seed), shape[1]
    if not 1 <= parts <= features:
        raise UsageError(f"{parts} clients for {features} columns: every client needs one; give 1 to {features}")
    holds = np.stack(np.divmod(np.arange(len(rows) * parts), parts), axis=1)
    return Partition(split, rows, np.array_split(np.arange(features), parts), holds)
