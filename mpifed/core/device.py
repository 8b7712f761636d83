"""Where arithmetic is done: the processor, which is what everything is made for, or a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.exchange import Block, Placed
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, map_leaves, namespace, on_host


class Device:
    """The processor, where nothing needs to be moved; the base class of other devices. Of this rank."""

    name = "cpu"
    versions: Mapping[str, str] = MappingProxyType({})  # of the libraries that are its own
    on_host = True  # whether it is the processor

    def block(self, block: Block) -> Block:
        """The same clients, their rows on the device."""
        return block

    def record(self, record: AnyRecord) -> AnyRecord:
        """The record on the device, but for fields that stay in host memory (`record.in_memory`)."""
        return record

    def states(self, states: AnyRecord) -> AnyRecord:
        """Client states as they are kept between exchanges: there, if there is room for all of them."""
        return states

    def pinned(self, size: int, dtype: DTypeLike) -> Array:
        """[size] zeros in memory, from and to which copies are fast."""
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
