"""Who holds which rows and which columns: pure functions of labels, wishes and a seed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.shards.memory import check_memory

CLIENT_BYTES = 256  # that what is known of a client takes, about


class Partition(NamedTuple):
    """Groups of rows, groups of columns, and the one of each that every client holds."""

    split: str  # "rows", "columns" or "grid"
    rows: list[NDArray[np.int64]]  # R groups [s_r] of global sample numbers, ascending
    columns: list[NDArray[np.int64]]  # C groups [p_c] of global feature numbers, ascending
    holds: NDArray[np.int64]  # [N, 2] group of rows and group of columns of each client
    missing: int = 0  # cells that nobody holds, which count as zero

    @property
    def clients(self) -> int:
        """N."""
        return len(self.holds)

    @property
    def counts(self) -> NDArray[np.int64]:
        """[N] rows held by each client."""
        return np.array([len(group) for group in self.rows], dtype=np.int64)[self.holds[:, 0]]

    @property
    def widths(self) -> NDArray[np.int64]:
        """[N] columns held by each client."""
        return np.array([len(group) for group in self.columns], dtype=np.int64)[self.holds[:, 1]]

    def of(self, client: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows [s], columns [p]) of one client."""
        row_group, column_group = self.holds[client]
        return self.rows[row_group], self.columns[column_group]


class Groups:
    """Distinct groups of numbers, which clients refer to by their place."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self.nbytes = 0  # of all groups

    def place(self, members: NDArray[np.int64]) -> int:
        """Of a group [m] of ascending numbers, new or not."""
        place = self._places.setdefault(members.tobytes(), new := len(self._places))
        self.nbytes += members.nbytes if place == new else 0
        return place

    def members(self) -> list[NDArray[np.int64]]:
        """The numbers of each group."""
        return [np.frombuffer(key, np.int64) for key in self._places]


def by_rectangles(rows: Groups, columns: Groups, holds: list[tuple[int, int]]) -> Partition:
    """Any split: client n holds the rows of the group holds[n][0] and the columns of the group holds[n][1]."""
    row_groups, column_groups = rows.members(), columns.members()
    split = "rows" if len(column_groups) == 1 else "columns" if len(row_groups) == 1 else "grid"
    return Partition(split, row_groups, column_groups, np.array(holds, dtype=np.int64))


def kept(partition: Partition, keep: NDArray[np.bool_], features: int) -> Partition:
    """The partition of the rows that `keep` [s] is True for, numbered anew.

    Raises
    ------
    UsageError
        When a client has none of them.
    """
    number = np.cumsum(keep) - 1
    groups = [number[group[keep[group]]] for group in partition.rows]
    empty = [len(groups[group]) == 0 for group in partition.holds[:, 0]]
    if any(empty):
        raise UsageError(f"--test-fraction: all rows of client {empty.index(True)} are for testing; lower it")
    left = partition._replace(rows=groups)
    return left._replace(missing=int(keep.sum()) * features - int(left.counts @ left.widths))


def stream(seed: int, purpose: str, *index: int) -> Generator:
    """The random numbers of (seed, purpose, index) and of nothing else."""
    return np.random.default_rng([seed, crc32(purpose.encode()), *index])


def by_rows(
    y: Array, features: int, clients: int, how: str = "iid", skew: float | None = None, seed: int = 0
) -> Partition:
    """A horizontal split: every client holds all columns of its own rows.

    Parameters
    ----------
    y : [s] class numbers from 0, or real targets (then only `how` = "iid" is possible)
    features : columns in all
    clients : N, at most s
    how : "iid"; "dirichlet:A", where each class goes to the clients in proportions drawn from a symmetric Dirichlet
        distribution of parameter A; "classes:K", where each client holds rows of (at most) K classes
    skew : parameter of a symmetric Dirichlet distribution of the clients' sizes; None for equal sizes
    seed : of all draws

    Raises
    ------
    UsageError
        When there are too few rows or classes for what is asked.
    """
    groups = deal(y, clients, how, skew, seed)
    holds = np.stack([np.arange(clients), np.zeros(clients, dtype=np.int64)], axis=1)
    return Partition("rows", groups, [np.arange(features)], holds)


def by_columns(samples: int, features: int, clients: int) -> Partition:
    """A vertical split: every client holds some columns of all rows.

    Columns are cut contiguously, first the blocks that are one column larger: 784 over 10 clients are 4 blocks of
    79 columns and 6 of 78.

    Raises
    ------
    UsageError
        When there are more clients than columns.
    """
    columns = cut(features, clients)
    holds = np.stack([np.zeros(clients, dtype=np.int64), np.arange(clients)], axis=1)
    return Partition("columns", [np.arange(samples)], columns, holds)


def by_grid(
    y: Array, features: int, shape: tuple[int, int], how: str = "iid", skew: float | None = None, seed: int = 0
) -> Partition:
    """A hybrid split: R groups of rows times C groups of columns; client r * C + c holds group r of rows, c of columns.

    Parameters are those of `by_rows`, with `shape` = (R, C) in place of the number of clients.
    """
    rows, columns = deal(y, shape[0], how, skew, seed), cut(features, shape[1])
    check_memory(
        CLIENT_BYTES * shape[0] * shape[1], f"--grid {shape[0]}x{shape[1]}: {shape[0] * shape[1]} clients", "give fewer"
    )
    holds = np.stack(np.divmod(np.arange(shape[0] * shape[1]), shape[1]), axis=1)
    return Partition("grid", rows, columns, holds)


def cut(features: int, parts: int) -> list[NDArray[np.int64]]:
    """`parts` contiguous blocks [p_c] of the columns, sizes differing by one at most."""
    if not 1 <= parts <= features:
        raise UsageError(f"{parts} clients for {features} columns: every client needs one; give 1 to {features}")
    return np.array_split(np.arange(features), parts)


def deal(y: Array, clients: int, how: str, skew: float | None, seed: int) -> list[NDArray[np.int64]]:
    """Every row to one client: N ascending arrays [s_n] of row numbers, none of them empty (see `by_rows`)."""
    if not 1 <= clients <= len(y):
        raise UsageError(f"{clients} clients for {len(y)} rows: every client needs one; give 1 to {len(y)} clients")
    if skew is not None and not 0 < skew < np.inf:
        raise UsageError(f"--skew {skew:g}: the parameter of a Dirichlet distribution is a number above 0")
    rng = stream(seed, "rows")
    sizes = np.full(clients, 1.0) if skew is None else rng.dirichlet(np.full(clients, skew)) + np.finfo(float).tiny
    kind, shares = _shares(y, how, sizes, rng)
    owner = np.empty(len(y), dtype=np.int64)
    for members, share in zip(_by_kind(kind, len(shares)), shares, strict=True):
        members = rng.permutation(members)
        ends = np.rint(np.cumsum(share)[:-1] / share.sum() * len(members))
        owner[members] = np.searchsorted(ends, np.arange(len(members)), side="right")
    counts = _leave_nobody_out(owner, clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])


def _by_kind(kind: Array, kinds: int) -> Iterator[Array]:
    """The ascending rows of each kind in kind [s], from 0 to kinds - 1."""
    order, ends = np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind, minlength=kinds))
    for start, stop in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        yield order[start:stop]


def _shares(y: Array, how: str, sizes: Array, rng: Generator) -> tuple[Array, Array]:
    """The kind [s] of each row, and what every client gets [kinds, N] of each kind, up to a factor."""
    name, parameter = _parse(how)
    clients = len(sizes)
    if name == "iid":
        return np.zeros(len(y), dtype=np.int64), sizes[None]
    if not np.issubdtype(y.dtype, np.integer):
        raise UsageError(f"--partition {how}: the labels are real targets, not classes; use --partition iid")
    classes = int(y.max()) + 1
    check_memory(
        24 * classes * clients, f"--partition {how}: {classes} classes by {clients} groups",
        "give fewer clients, or --task regression if labels are no classes",
    )  # fmt: skip
    if name == "dirichlet":
        return y, (rng.dirichlet(np.full(clients, parameter), size=classes) + np.finfo(float).tiny) * sizes
    each = int(parameter)
    if each > classes or each * clients < classes:
        raise UsageError(
            f"--partition {how}: {clients} clients with {each} of {classes} classes each; every class needs a holder "
            f"and a client has at most {classes}: give K from {-(-classes // clients)} to {classes}"
        )
    # clients, in random order, take the next K classes of a circle in random order: equally many holders a class
    circle = np.arange(clients * each).reshape(clients, each) % classes
    holders = np.zeros((classes, clients))
    holders[rng.permutation(classes)[circle], rng.permutation(clients)[:, None]] = 1
    return y, holders * sizes


def _parse(how: str) -> tuple[str, float]:
    """Name and parameter of a partition."""
    name, _, text = how.partition(":")
    try:
        if how == "iid":
            return name, 0.0
        if name == "dirichlet" and 0 < float(text) < np.inf:
            return name, float(text)
        if name == "classes" and int(text) > 0:
            return name, int(text)
    except ValueError:
        pass
    raise UsageError(f"--partition {how[:40]}: expected iid, dirichlet:A with A > 0, or classes:K with K = 1, 2, ...")


def _leave_nobody_out(owner: Array, clients: int) -> NDArray[np.int64]:
    """Give every client without rows one row of the largest client, in `owner` [s]; the sizes [N] then."""
    counts = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return counts
    rows, first = np.argsort(owner, kind="stable"), np.cumsum(counts) - counts
    largest = [(-count, client) for client, count in enumerate(counts.tolist())]
    heapq.heapify(largest)
    for client in empty:
        count, giver = largest[0]
        heapq.heapreplace(largest, (count + 1, giver))
        owner[rows[first[giver]]] = client
        first[giver] += 1
        counts[giver] -= 1
        counts[client] = 1
    return counts


def held_out(y: Array, fraction: float, seed: int) -> NDArray[np.bool_]:
    """[s] True for the rows of a test set: a share of every class, or of all rows where y [s] is real.

    Raises
    ------
    UsageError
        When the fraction is outside (0, 1), or leaves no row to one of the two sets.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"--test-fraction {fraction:g}: expected a number above 0 and below 1, for example 0.2")
    rng = stream(seed, "test")
    classes, kind = np.unique(y if np.issubdtype(y.dtype, np.integer) else np.zeros(len(y)), return_inverse=True)
    out = np.zeros(len(y), dtype=np.bool_)
    for members in _by_kind(kind, len(classes)):
        out[rng.choice(members, round(fraction * len(members)), replace=False)] = True
    if out.all() or not out.any():
        raise UsageError(
            f"--test-fraction {fraction:g}: of {len(y)} rows, {out.sum()} would be for testing; both sets need one"
        )
    return out
