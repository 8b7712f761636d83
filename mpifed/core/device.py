"""Where arithmetic is done: the processor, which is what everything is made for, or a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mpifed.core.exchange import Block
from mpifed.core.holdings import Placed
from mpifed.core.record import AnyRecord, Array, map_leaves, on_host


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


def host_record(record: AnyRecord) -> AnyRecord:
    """The record in memory."""

    def to_host(leaf: Array) -> Array:
        if not isinstance(leaf, Placed):
            return on_host(leaf)
        return replace(leaf, values=[on_host(values) for values in leaf.values])

    return map_leaves(to_host, record)
