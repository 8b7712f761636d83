"""Who holds which rows and which columns: public, and the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array


@dataclass(frozen=True, eq=False)
class Holdings:
    """Who holds which part of one axis."""

    length: int  # of the axis: all rows, or all columns
    groups: NDArray[np.int64]  # [N] each client's group
    members: tuple[slice | NDArray[np.int64], ...]  # the places of each group, ascending

    @classmethod
    def all(cls, clients: int, length: int) -> Holdings:
        """Everybody holds everything."""
        return cls(length, np.zeros(clients, dtype=np.int64), (slice(0, length),))

    def of(self, client: int) -> slice | NDArray[np.int64]:
        """What one client holds."""
        return self.members[int(self.groups[client])]

    @cached_property
    def widths(self) -> NDArray[np.int64]:
        """[N] how much each client holds."""
        return np.array([size(at, self.length) for at in self.members], dtype=np.int64)[self.groups]

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """[length] how many clients hold each."""
        return self.held_by(np.ones(len(self.groups), dtype=bool))

    def held_by(self, who: NDArray[np.bool_]) -> NDArray[np.int64]:
        """[length] how many of the clients `who` [N] hold each."""
        found = np.zeros(self.length, dtype=np.int64)
        many = np.bincount(self.groups[who], minlength=len(self.members))
        for at, count in zip(self.members, many.tolist(), strict=True):
            found[at] += count
        return found

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """[length] the lowest client who holds each; -1 where nobody does."""
        found = np.full(self.length, -1, dtype=np.int64)
        groups, clients = np.unique(self.groups, return_index=True)
        for group, client in sorted(zip(groups.tolist(), clients.tolist(), strict=True), key=lambda pair: -pair[1]):
            found[self.members[group]] = client
        return found

    @cached_property
    def apart(self) -> bool:
        """Whether no place is in two groups."""
        held = np.zeros(self.length, dtype=np.int64)
        for at in self.members:
            held[at] += 1
        return bool((held <= 1).all())


    @property
    def shared(self) -> list[tuple[NDArray[np.bool_], slice | NDArray[np.int64]]]:
        """(who [N], places) for places that have the same holders, all of them together; held places only."""
        if self.apart:
            return [(self.groups == group, at) for group, at in enumerate(self.members) if size(at, self.length)]
        held = np.zeros((len(self.members), self.length), dtype=bool)
        for member, at in zip(held, self.members, strict=True):
            member[at] = True
        kinds, which = np.unique(np.packbits(held, axis=0), axis=1, return_inverse=True)
        order = np.argsort(which.ravel(), kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(which.ravel(), minlength=kinds.shape[1]))[:-1])
        return [(held[self.groups, at[0]], at) for at in parts if held[:, at[0]].any()]


class Cells(NamedTuple):
    """Who holds which rows and which columns."""

    rows: Holdings
    columns: Holdings

    def along(self, field: Any) -> Holdings | None:
        """Those of the axis along which clients fill a field in parts; None where each fills all of it."""
        if field.columns is not None:
            return self.columns
        return self.rows if field.rows is not None else None

    @classmethod
    def all(cls, clients: int) -> Cells:
        """Everybody holds everything, of which there is one."""
        return cls.of_columns(Holdings.all(clients, 1))

    @classmethod
    def of_columns(cls, columns: Holdings) -> Cells:
        """Everybody holds all rows, of which there is one."""
        return cls(Holdings.all(len(columns.groups), 1), columns)


def size(at: slice | Array, length: int) -> int:
    """How many of `length` places."""
    return len(range(*at.indices(length))) if isinstance(at, slice) else len(at)
