"""Masks along the sparsest graph from which drop-outs are recovered, among fewer clients than a job has one for."""

from __future__ import annotations

from mpifed.comm.channels.masked import Masked


def sparsest(channel: Masked, clients: int) -> int:
    """In place of `Masked.neighbours`."""
    return 2 * channel.setting.protection.max_dropouts + 2
