"""Uploads that are made by who adds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed.core.record import Array, InPlaceOfArray, Record, map_leaves, namespace


@dataclass(eq=False)
class Lazy(InPlaceOfArray):
    """Uploads of a block's clients, made by who adds them: a few at a time, while they are in the cache, or as one sum.

    Who looks at one of its fields has all uploads, which are then what is added. (A class of its own and no NamedTuple,
    because it stands in place of a record.)

    Parameters
    ----------
    parts : () -> (positions of some clients in the block, their uploads, leaves [m, ...]), all of them in the end
    total : () -> the sum of all uploads, by fewer and larger products; where there is such a way
    apart : () -> as `parts`, or without what is common to all uploads, which is third; where that is quicker
    """

    parts: Callable[[], Iterator[tuple[Array, Record]]]
    total: Callable[[], Record] | None = None
    apart: Callable[[], Iterator[tuple[Any, ...]]] | None = None  # parts, or with a third

    def made(self) -> Record:
        """All the uploads, leaves [n, ...]."""
        who, parts = zip(*self.parts(), strict=True)
        order = np.argsort(np.concatenate(who))
        record: Record = map_leaves(lambda *some: namespace(some[0]).concatenate(some)[order], *parts)
        self.__init__(lambda: iter([(np.arange(len(order)), record)]))  # type: ignore[misc]  # neither total nor apart
        return record

    def __getattr__(self, name: str) -> Any:  # what the record has
        if name.startswith("__"):  # of Python's own protocols there are none
            raise AttributeError(name)
        return getattr(self.made(), name)
