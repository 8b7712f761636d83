"""Data that several runs in a process share: opened and verified once, and not again for every point of a sweep."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")


class DataCache:
    """What the last run has opened, for the next one; of this rank, no call is collective.

    Runs can share blocks because nobody writes to them: what a shard keeps between two calls is scratch.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._values: dict[str, tuple[object, Any]] = {}  # the key of each, and the value

    def use_key(self, key: object) -> None:
        """Keep the values if `key`, all that they depend on, is that of the last time; otherwise drop them.

        They are dropped before anything else is opened, so that memory never holds the data of two keys.
        """
        if key != self._key and self._values:
            self._values.clear()
            gc.collect()  # the traceback of a run that failed may hold them, in a cycle
        self._key = key

    def get(self, name: str, make: Callable[[], Value], key: object = None) -> Value:
        """The value of that name, made unless it is in the cache with this key. If `make` fails, nothing is stored."""
        if name not in self._values or self._values[name][0] != key:
            self._values.pop(name, None)
            self._values[name] = key, make()
        value: Value = self._values[name][1]
        return value
