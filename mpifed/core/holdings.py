"""Who holds which rows and which columns, public and the same on every rank; and what each sends of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.record import Array, Class, Flags, InPlaceOfArray, Integers, Record

Positions: TypeAlias = "slice | Integers"  # ascending: a slice of step 1, or an array


class Members:
    """The positions held by each group, in one array that is loaded on first use."""

    def __init__(self, bounds: Integers, load: Callable[[], Integers]) -> None:
        """Group g has the places from bounds[g] to bounds[g + 1] of `load()` [places of all groups], ascending."""
        self.bounds, self._load = bounds, load
        self.of = cache(lambda g: span(self.flat[bounds[g] : bounds[g + 1]]))  # the places of a group

    @cached_property
    def flat(self) -> Integers:
        """The positions of all groups, concatenated."""
        return self._load()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[Positions]:
        return map(self.of, range(len(self)))


class Holdings:
    """Which client holds which positions of one axis.

    Parameters
    ----------
    length : of the axis: all rows, or all columns
    groups : [N] each client's group
    members : the places of each group, ascending
    """

    def __init__(self, length: int, groups: Integers, members: Members | Sequence[Positions]) -> None:
        if not isinstance(members, Members):
            parts = [np.arange(length)[at] for at in members]
            members = Members(np.cumsum([0, *map(len, parts)]), partial(np.concatenate, parts))
        self.length, self.groups, self.members = length, groups, members

    @classmethod
    def all(cls, clients: int, length: int) -> Holdings:
        """Every client holds the whole axis."""
        return cls(length, np.zeros(clients, dtype=np.int64), (slice(0, length),))

    @classmethod
    def of_one(cls, clients: int, client: int, length: int) -> Holdings:
        """One client holds the whole axis, and the others nothing."""
        return cls(length, (np.arange(clients) != client).astype(np.int64), (slice(0, length), slice(0, 0)))

    def of(self, client: int) -> Positions:
        """The positions of one client."""
        return self.members.of(int(self.groups[client]))

    def widths(self, clients: Integers) -> Integers:
        """[n] number of positions of each of `clients` [n]."""
        return self._sizes[self.groups[clients]].astype(np.int64)

    @cached_property
    def _sizes(self) -> Integers:
        """[groups] number of positions of each."""
        return np.diff(self.members.bounds)

    @cached_property
    def holders(self) -> Integers:
        """[length] number of holders of each position."""
        return self.held_by(np.ones(len(self.groups), dtype=bool))

    def held_by(self, who: Flags) -> Integers:
        """[length] how many of the clients `who` [N] hold each position."""
        return self.summed(who).astype(np.int64)

    def summed(self, weights: Array) -> Array:
        """[length] float64: the sum of `weights` [N] over the holders of each position."""
        of_groups = np.bincount(self.groups, weights, minlength=len(self.members))
        return np.bincount(self.members.flat, np.repeat(of_groups, self._sizes), self.length)

    @cached_property
    def first(self) -> Integers:
        """[length] the lowest client who holds each position; -1 where nobody does."""
        first = np.full(self.length, -1)
        groups, lowest = np.unique(self.groups, return_index=True)
        for i in np.argsort(-lowest).tolist():
            first[self.members.of(int(groups[i]))] = lowest[i]
        return first

    @cached_property
    def shared(self) -> list[tuple[Flags, Positions]]:
        """(who [N], places) for places that have the same holders, all of them together; held places only."""
        if (np.bincount(self.members.flat, minlength=self.length) <= 1).all():  # the groups are disjoint
            return [(self.groups == group, self.members.of(group)) for group in np.flatnonzero(self._sizes).tolist()]
        held = np.zeros((len(self.members), self.length), dtype=bool)
        for member, at in zip(held, self.members, strict=True):
            member[at] = True
        kinds, kind = np.unique(np.packbits(held, axis=0), axis=1, return_inverse=True)
        order = np.argsort(kind.ravel(), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(kind.ravel(), minlength=kinds.shape[1]))[:-1])
        return [(held[self.groups, at[0]], at) for at in parts if held[:, at[0]].any()]


def narrow(numbers: Array) -> Array:
    """Integers that are at least 0 in 32 bits, if they are that small."""
    return numbers.astype("<i4") if numbers.max(initial=0) < 2**31 else numbers


def span(numbers: Array) -> Positions:
    """A slice in place of ascending numbers without a gap: indexing with it makes no copy."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def size(at: Positions, length: int) -> int:
    """How many of `length` positions `at` selects."""
    return len(range(*at.indices(length))) if isinstance(at, slice) else len(at)


@dataclass(eq=False)
class Placed(InPlaceOfArray):
    """The answers of n clients to a field of which each fills its own places along an axis.

    (A class of its own and no NamedTuple, because it stands at the leaf of a record.)

    Parameters
    ----------
    values : n arrays, of each client's own places
    at : n positions along the axis, in arrays or slices
    size : of the whole axis
    axis : its number, counted without that of the clients
    """

    values: Sequence[Array]  # n arrays [..., p_i, ...]
    at: Sequence[Array | slice]
    size: int  # type: ignore[override]
    axis: int = 0

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, who: slice) -> Placed:  # type: ignore[override]
        """The answers of some clients."""
        return replace(self, values=self.values[who], at=self.at[who])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:  # type: ignore[override]
        """[n, ...] with zeros in all other places."""
        shape = list(self.values[0].shape)
        shape[self.axis] = self.size
        whole: Array = np.zeros((len(self), *shape), dtype or self.values[0].dtype)
        for out, values, at in zip(whole, self.values, self.at, strict=True):
            out[(slice(None),) * self.axis + (at,)] = values
        return whole


def by_columns(*names: str) -> Callable[[Class], Class]:
    """Marks leaves of a broadcast's class of which a client is sent its own columns alone, along axis 0."""

    def mark(kind: Class) -> Class:
        kind.by_columns = names  # type: ignore[attr-defined]
        return kind

    return mark


def of_columns(broadcast: Record) -> tuple[str, ...]:
    """The names of leaves that `by_columns` marks."""
    names: tuple[str, ...] = getattr(type(broadcast), "by_columns", ())
    return names
