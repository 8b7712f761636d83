"""Who holds which rows and which columns: public, and the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array


class Members(Sequence["slice | NDArray[np.int64]"]):
    """The positions held by each group, in one array that is loaded on first use."""

    def __init__(self, bounds: NDArray[np.int64], load: Callable[[], NDArray[np.int64]]) -> None:
        """Group g has the places from bounds[g] to bounds[g + 1] of `load()` [places of all groups]."""
        self.bounds, self._load = bounds, load
        self._found: dict[int, slice | NDArray[np.int64]] = {}

    @cached_property
    def flat(self) -> NDArray[np.int64]:
        """The positions of all groups, concatenated."""
        return self._load()

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, g: int) -> slice | NDArray[np.int64]: ...

    @overload
    def __getitem__(self, g: slice) -> list[slice | NDArray[np.int64]]: ...

    def __getitem__(self, g: int | slice) -> slice | NDArray[np.int64] | list[slice | NDArray[np.int64]]:
        if isinstance(g, slice):
            return [self[i] for i in range(*g.indices(len(self)))]
        if not 0 <= g < len(self):
            raise IndexError(f"group {g} of {len(self)}")
        places = self._found.get(g)
        if places is None:
            places = self._found[g] = span(self.flat[self.bounds[g] : self.bounds[g + 1]])
        return places


@dataclass(frozen=True, eq=False)
class Holdings:
    """Which client holds which positions of one axis."""

    length: int  # of the axis: all rows, or all columns
    groups: NDArray[np.int64]  # [N] each client's group
    members: Sequence[slice | NDArray[np.int64]]  # the places of each group, ascending

    @classmethod
    def all(cls, clients: int, length: int) -> Holdings:
        """Every client holds the whole axis."""
        return cls(length, np.zeros(clients, dtype=np.int64), (slice(0, length),))

    @classmethod
    def of_one(cls, clients: int, client: int, length: int) -> Holdings:
        """One client holds the whole axis, and the others nothing."""
        return cls(length, (np.arange(clients) != client).astype(np.int64), (slice(0, length), slice(0, 0)))

    def of(self, client: int) -> slice | NDArray[np.int64]:
        """The positions of one client."""
        return self.members[int(self.groups[client])]

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """[N] number of positions of each client."""
        return self._sizes[self.groups]

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        """[groups] number of positions of each group."""
        if isinstance(self.members, Members):
            return np.diff(self.members.bounds)
        return np.array([size(at, self.length) for at in self.members], dtype=np.int64)

    @cached_property
    def _flat(self) -> NDArray[np.int64]:
        """The positions of all groups, concatenated."""
        if isinstance(self.members, Members):
            return self.members.flat
        return np.concatenate([np.arange(self.length)[at] for at in self.members])

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """[length] number of holders of each position."""
        return self.held_by(np.ones(len(self.groups), dtype=bool))

    def held_by(self, who: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[length] how many of the clients `who` [N] hold each position."""
        return self.summed(who).astype(np.int64)

    def summed(self, weights: Array) -> Array:
        """[length] float64: the sum of `weights` [N] over the holders of each position."""
        of_groups = np.bincount(self.groups, weights, minlength=len(self.members))
        return np.bincount(self._flat, np.repeat(of_groups, self._sizes), self.length)

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """[length] the lowest client who holds each position; -1 where nobody does."""
        clients = len(self.groups)
        lowest = np.full(len(self.members), clients)
        groups, lowest_of_these = np.unique(self.groups, return_index=True)
        lowest[groups] = lowest_of_these
        first = np.full(self.length, clients, dtype=np.int64)
        np.minimum.at(first, self._flat, np.repeat(lowest, self._sizes))
        return np.where(first == clients, -1, first)

    @cached_property
    def apart(self) -> bool:
        """Whether the groups are disjoint."""
        return bool((np.bincount(self._flat, minlength=self.length) <= 1).all())

    @cached_property
    def shared(self) -> list[tuple[NDArray[np.bool_], slice | NDArray[np.int64]]]:
        """(who [N], places) for places that have the same holders, all of them together; held places only."""
        if self.apart:
            return [(self.groups == group, at) for group, at in enumerate(self.members) if size(at, self.length)]
        held = np.zeros((len(self.members), self.length), dtype=bool)
        for member, at in zip(held, self.members, strict=True):
            member[at] = True
        kinds, kind = np.unique(np.packbits(held, axis=0), axis=1, return_inverse=True)
        order = np.argsort(kind.ravel(), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(kind.ravel(), minlength=kinds.shape[1]))[:-1])
        return [(held[self.groups, at[0]], at) for at in parts if held[:, at[0]].any()]


def span(numbers: Array) -> Array | slice:
    """A slice in place of ascending numbers without a gap: indexing with it makes no copy."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1:
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def size(at: slice | Array, length: int) -> int:
    """How many of `length` positions `at` selects."""
    return len(range(*at.indices(length))) if isinstance(at, slice) else len(at)
