"""Where arithmetic is done: the processor, which is what everything is made for, or a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from mpifed.core.exchange import Block, Placed
from mpifed.core.record import AnyRecord, Array, beside, map_leaves, on_host


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
    """The record in memory."""

    def to_host(leaf: Array) -> Array:
        if not isinstance(leaf, Placed):
            return on_host(leaf)
        return replace(leaf, values=[on_host(values) for values in leaf.values])

    return map_leaves(to_host, record)
