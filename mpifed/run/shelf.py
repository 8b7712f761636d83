"""Data that several runs in one process need: opened and verified once, and not again for every point of a sweep."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

Thing = TypeVar("Thing")


class Shelf:
    """What the last run has opened, for the next one; of this rank, no call is collective.

    Runs can share blocks because nobody writes to them: what a shard keeps between two calls is scratch.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._things: dict[str, Any] = {}

    def keep(self, key: Any) -> None:
        """Keep what is here if `key`, all that it depends on, is that of the last time; otherwise let go of it.

        It is let go before anything else is opened, so that memory never holds the data of two keys.
        """
        if key != self._key and self._things:
            self._things.clear()
            gc.collect()  # the traceback of a run that failed may hold them, in a cycle
        self._key = key

    def take(self, name: str, make: Callable[[], Thing]) -> Thing:
        """The thing of that name; made now if it is not here. One whose making fails is not kept."""
        if name not in self._things:
            self._things[name] = make()
        thing: Thing = self._things[name]
        return thing
