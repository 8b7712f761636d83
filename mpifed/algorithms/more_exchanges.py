"""Exchanges of a few local methods, before the one of changes, and after it: the hooks `prepare` and `hear`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, Field, Method
from mpifed.core.record import Record, as_before, map_leaves, read_only
from mpifed.maths.problem import Weighted

if TYPE_CHECKING:
    from mpifed.core.round import Round
    from mpifed.data.block import Block


def preparation(method: Method) -> Exchange:
    """Clients send what `prepare` gives, before local steps; the server keeps what `prepared` makes of the mean."""
    one = method.guard.fields(method.zeros, np.int64(1))

    def ask(server: Method, now: Round) -> Method:
        return method.ask(server, now)._replace(memory=())

    def note(server: Method, total: Weighted, now: Round) -> Method:
        mean = method.guard.arrive(total, method.step_of(int(server.steps) + 1), now)
        return server._replace(memory=method.prepared(server.memory, mean.astype(server.model.dtype, copy=False)))

    return Exchange("preparation", one, ask, partial(tell, method), note)


def tell(method: Method, own: Record, sent: Method, block: Block, now: Round) -> tuple[Record, Weighted]:
    """What `prepare` gives, weighted."""
    local = method.local(block, now, float(sent.step))
    given = method.prepare(own, map_leaves(read_only, sent), local)
    if type(given) is not tuple or len(given) != 2:
        raise UsageError(
            f"{type(method).__name__}.prepare: expected a pair of what clients keep and [n, d] what they send"
        )
    kept, each = given
    kept = map_leaves(as_before, kept, own)
    return kept, method.guard.weighted(each, block.clients, kept)


def outcome(method: Method) -> Exchange:
    """Clients are sent the server's memory after the round, and answer nothing."""

    def conclude(own: Record, memory: Record, block: Block, now: Round) -> tuple[Record, tuple[()]]:
        local = method.local(method.guard.shown(block), now, method.step_of(int(now.index) + 1))
        return map_leaves(as_before, method.hear(own, map_leaves(read_only, memory), local), own), ()

    return Exchange("outcome", (), lambda server, now: server.memory, conclude, lambda server, *_: server)


def with_others(method: Method, fields: Weighted, changes: Exchange) -> tuple[Exchange, ...]:
    """The exchange of changes as `[compression]` and `[asynchrony]` have it, and those before and after it."""
    compression = method.problem.compression
    if compression is not None and isinstance(fields.value, Field):  # others are refused
        bits = compression.bits(method.layout.size, 8 * method.zeros.itemsize)
        fields = fields._replace(value=replace(fields.value, coded=-(-bits // 8)))
        changes = replace(changes, fields=fields)
    if method.problem.versions:
        from mpifed.algorithms.asynchronous import in_virtual_time  # which few jobs have

        return (in_virtual_time(method, fields),)
    before = [preparation(method)] if method.prepare is not None else []
    return (*before, changes, *([outcome(method)] if method.hear is not None else []))
