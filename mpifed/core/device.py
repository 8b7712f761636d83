"""Where arithmetic is done: the processor, which is what everything is made for, or a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, cast

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.block import Block
from mpifed.core.exchange import Placed
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, map_leaves, namespace, on_host


class Device(Protocol):
    """What a run needs from the device that its clients compute on. Of this rank."""

    name: str
    versions: Mapping[str, str]  # of the libraries that are its own
    aware: bool  # whether MPI takes arrays from there
    on_host: bool  # whether it is the processor, and nothing need be moved

    def block(self, block: Block) -> Block:
        """The same clients, their rows on the device."""

    def record(self, record: AnyRecord) -> AnyRecord:
        """The record on the device, but for fields that stay in host memory (`record.in_memory`)."""

    def states(self, states: AnyRecord) -> AnyRecord:
        """Client states as they are kept between exchanges: there, if there is room for all of them."""

    def pinned(self, size: int, dtype: DTypeLike) -> Array:
        """[size] zeros in memory, from and to which copies are fast."""


class Host:
    """The CPU, where nothing needs to be moved."""

    name, aware, on_host = "cpu", False, True
    versions: Mapping[str, str] = MappingProxyType({})

    def block(self, block: Block) -> Block:
        return block

    def record(self, record: AnyRecord) -> AnyRecord:
        return record

    def states(self, states: AnyRecord) -> AnyRecord:
        return states

    def pinned(self, size: int, dtype: DTypeLike) -> Array:
        return np.zeros(size, dtype)


def beside_record(like: Array, record: AnyRecord) -> AnyRecord:
    """A record's arrays where the array `like` is, but for single numbers and what its class keeps `in_memory`."""
    if not isinstance(record, tuple):
        return cast("AnyRecord", beside(like, record)) if getattr(record, "ndim", 0) else record
    in_memory = getattr(type(record), "in_memory", ())
    values = [
        value if name in in_memory else beside_record(like, value)
        for name, value in zip(getattr(record, "_fields", ()), record, strict=True)
    ]
    return cast("Callable[..., AnyRecord]", type(record))(*values) if record else record  # as in `map_leaves`


def host_record(record: AnyRecord) -> AnyRecord:
    return map_leaves(_moved, record)


def any_on_device(record: Record) -> bool:
    arrays = (leaf.values[0] if isinstance(leaf, Placed) else leaf for leaf in bare_leaves(record))
    return any(namespace(array) is not np for array in arrays)


def _moved(leaf: Array) -> Array:
    return leaf.moved(on_host) if isinstance(leaf, Placed) else on_host(leaf)
