"""This rank's clients at work: they answer, together, by blocks or each by itself, and hear what was summed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Channel, answering, hearing
from mpifed.comm.line import Line
from mpifed.core.block import Block
from mpifed.core.device import Device, host_record
from mpifed.core.exchange import Exchange, States
from mpifed.core.record import Record, map_leaves, namespace, put, put_in_place, take
from mpifed.core.roster import Roster
from mpifed.core.round import Round
from mpifed.core.states import writable


class Hosted:
    """The clients of this rank, on its device; what they take to compute goes to the account of the exchange."""

    def __init__(self, blocks: Roster, device: Device) -> None:
        self.blocks, self.device = blocks, device

    def answer_together(self, line: Line, fused: Any, question: Record, now: Round) -> None:
        """All of their answers are one sum of floats."""
        block, start = self.blocks.together(now.present), time.perf_counter()
        if block is None:
            line.sum.begin(0)
            return
        line.sum.set_fused(fused(self.device.record(question), self.device.block(block), now))
        line.account.answer_s += (time.perf_counter() - start) / len(block.shards)

    def answer_by_blocks(self, line: Line, fused: Any, question: Record, now: Round) -> None:
        """Each block's sum is one addition; which clients form a block does not depend on the number of ranks."""
        slowest, device = 0.0, self.device
        there, found = device.record(question), list(self.blocks.among(now.present))
        line.sum.begin(len(found))
        for i, who in found:
            start = time.perf_counter()
            block = device.block(self.blocks[i]).only(who)
            total = fused(there, block, now)
            slowest = max(slowest, (time.perf_counter() - start) / len(who))
            line.sum.add_total(total, block.clients)
        line.account.answer_s += slowest

    def answer_each(self, line: Line, channel: Channel, clients: States, question: Record, now: Round) -> States:
        """Every client's answer goes into the channel; the states afterwards."""
        exchange, slowest, device = line.exchange, 0.0, self.device
        channel.begin(line, now)
        add = channel.add if channel.recorder is None else channel.add_one_by_one
        summed_there = channel.name == "plain" and channel.recorder is None and line.memory is None
        as_it_is = summed_there or device.on_host
        question = device.record(question)
        clients = writable(clients, None if exchange.off_clock else now.leaving)
        for i, who, whole in self._visited(exchange, answering(exchange, now)):
            state = device.record(clients[i])
            block = whole.only(who)
            for some in np.arange(len(who))[:, None] if exchange.one_by_one else [np.arange(len(who))]:
                before = state if len(some) == len(whole.clients) else take(state, who[some])
                start = time.perf_counter()
                states, answer = exchange.answer(before, question, block.only(some), now)
                slowest = max(slowest, (time.perf_counter() - start) / len(some))
                add(line, answer if as_it_is else host_record(answer), block.clients[some], now)
                if states is not before:  # most clients keep nothing, or nothing new
                    state = self._put(whole, state, who[some], states, exchange, now)
                    clients[i] = device.states(state)
            if line.memory is not None and not isinstance(clients, list):
                clients.touch(i)
        line.account.answer_s += slowest
        return clients

    def _visited(self, exchange: Exchange, chosen: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64], Block]]:
        """(number, positions of those chosen, block where it is computed) of each block with any, one at a time."""
        for i, who in self.blocks.among(chosen):
            here = self.blocks.visit(i, keep=not exchange.off_clock)  # a device may ask it for more rows
            yield i, who, self.device.block(here)

    def _put(
        self, block: Block, state: Record, who: NDArray[np.int64], new: Record, exchange: Exchange, now: Round
    ) -> Record:
        """The states of a block with those of clients `who` renewed; where that is all, they may change shape.

        States of a round are this rank's own, and renewed where they lie: a copy of all for the sake of a few takes
        longer than the few take to compute. A measure may have begun with the algorithm's states, and copies them; and
        a round that may turn out void leaves them as they were.
        """
        if len(who) == len(block.clients):
            return new
        keeps = exchange.off_clock or now.leaving is not None
        return put(state, who, new) if keeps else put_in_place(state, who, new)

    def hear(self, line: Line, clients: States, total: Record, now: Round) -> States:
        """Each block's clients who are still there absorb the sum, or the one client who is told it."""
        exchange: Any = line.exchange
        clients, alike, slowest = writable(clients, None if exchange.off_clock else now.leaving), None, 0.0
        began = time.perf_counter()
        device, total = self.device, self.device.record(total)
        for i, who, whole in self._visited(exchange, hearing(exchange, now)):
            state = device.record(clients[i])
            block = whole.only(who)
            start = time.perf_counter()
            if exchange.alike:
                first = np.arange(1)
                if alike is None:
                    alike = exchange.absorb(take(state, who[first]), total, block.only(first), now)
                    slowest = time.perf_counter() - start
                heard = _repeated(alike, len(who))
            else:
                before = state if len(who) == len(whole.clients) else take(state, who)
                heard = exchange.absorb(before, total, block, now)
                slowest = max(slowest, (time.perf_counter() - start) / len(who))
            clients[i] = device.states(self._put(whole, state, who, heard, exchange, now))
        line.account.answer_s += slowest
        line.account.work_s += time.perf_counter() - began
        return clients


def _repeated(state: Record, clients: int) -> Record:
    """The state [1, ...] of one client for so many, without copies."""
    return map_leaves(lambda leaf: namespace(leaf).broadcast_to(leaf[0], (clients, *leaf.shape[1:])), state)
