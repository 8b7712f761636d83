"""Where arithmetic is done: the processor, which is what everything is made for, or a device."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from mpifed.core.block import Block
from mpifed.core.exchange import Placed
from mpifed.core.record import Record, bare_leaves, beside, map_leaves, namespace, on_host


class Device(Protocol):
    """What a run needs from the device that its clients compute on. Of this rank."""

    name: str
    versions: Mapping[str, str]  # of the libraries that are its own
    aware: bool  # whether MPI takes arrays from there
    on_host: bool  # whether it is the processor, and nothing need be moved

    def block(self, block: Block) -> Block:
        """The same clients, their rows on the device."""

    def record(self, record: Record) -> Record:
        """The record on the device, but for fields that stay in host memory (`record.in_memory`)."""

    def states(self, states: Record) -> Record:
        """Client states as they are kept between exchanges: there, if there is room for all of them."""

    def pinned(self, size: int, dtype: Any) -> Any:
        """[size] zeros in memory, from and to which copies are fast."""


class Host:
    """The CPU, where nothing needs to be moved."""

    name, aware, on_host = "cpu", False, True
    versions: Mapping[str, str] = MappingProxyType({})

    def block(self, block: Block) -> Block:
        return block

    def record(self, record: Record) -> Record:
        return record

    def states(self, states: Record) -> Record:
        return states

    def pinned(self, size: int, dtype: Any) -> Any:
        return np.zeros(size, dtype)


def beside_record(like: Any, record: Record) -> Record:
    """A record's arrays where the array `like` is, but for single numbers and what its class keeps `in_memory`."""
    if not isinstance(record, tuple):
        return beside(like, record) if getattr(record, "ndim", 0) else record
    in_memory = getattr(type(record), "in_memory", ())
    values = [
        value if name in in_memory else beside_record(like, value)
        for name, value in zip(getattr(record, "_fields", ()), record, strict=True)
    ]
    return type(record)(*values) if record else record


def host_record(record: Record) -> Record:
    return map_leaves(_moved, record)


def any_on_device(record: Record) -> bool:
    arrays = (leaf.values[0] if isinstance(leaf, Placed) else leaf for leaf in bare_leaves(record))
    return any(namespace(array) is not np for array in arrays)


def _moved(leaf: Any) -> Any:
    return leaf.moved(on_host) if isinstance(leaf, Placed) else on_host(leaf)
