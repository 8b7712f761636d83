"""Computation of this rank's clients: their answers (by blocks or each its own), and absorbing the sum."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Channel, answering, hearing
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.block import Block
from mpifed.core.device import Device, host_record
from mpifed.core.exchange import Exchange, SomeAnswers, States
from mpifed.core.record import ABSENT, Record, map_leaves, put, repeated, take
from mpifed.core.roster import Roster
from mpifed.core.round import Round
from mpifed.core.states import writable


class LocalClients:
    """The clients of this rank, on its device; the time they compute is added to the account of the exchange."""

    def __init__(self, blocks: Roster, device: Device) -> None:
        self.blocks, self.device = blocks, device

    def answer_by_blocks(self, plan: ExchangePlan, fused: Callable[..., Record], question: Record, now: Round) -> None:
        """One sum for each block; which clients form a block does not depend on the number of ranks."""
        slowest, device = 0.0, self.device
        broadcast, blocks = device.record(question), list(self.blocks.among(now.present))
        plan.sum.begin(bool(blocks))
        for i, who in blocks:
            start = time.perf_counter()
            block = device.block(self.blocks[i]).only(who)
            total = fused(broadcast, block, now)
            slowest = max(slowest, (time.perf_counter() - start) / len(who))
            plan.sum.add_total(total, block.clients)
        plan.account.answer_s += slowest

    def answer_in_turn(
        self, plan: ExchangePlan, in_turn: Callable[..., Iterator[SomeAnswers]], question: Record, now: Round
    ) -> None:
        """The answers of each client, a few at a time, added as soon as they are there."""
        slowest, blocks = 0.0, list(self.blocks.among(now.present))
        plan.sum.begin(bool(blocks))
        for i, who in blocks:
            start = time.perf_counter()
            block = self.blocks[i].only(who)
            for some in in_turn(question, block, now):
                plan.sum.add(some.answer, block.clients[some.who], some.public)
            slowest = max(slowest, (time.perf_counter() - start) / len(who))
        plan.account.answer_s += slowest

    def answer_each(
        self, plan: ExchangePlan, channel: Channel, clients: States, question: Record, now: Round
    ) -> States:
        """Add each client's answer to the channel; returns the states afterwards."""
        exchange, slowest, device = plan.exchange, 0.0, self.device
        channel.begin(plan, now)
        add = channel.add if channel.recorder is None else channel.add_one_by_one
        summed_on_device = channel.name == "plain" and channel.recorder is None and plan.stale is None
        stays = summed_on_device or device.on_host
        question = device.record(question)
        clients = writable(clients, None if exchange.off_clock else now.leaving)
        for i, who, whole in self._visited(exchange, answering(exchange, now)):
            state = device.record(clients[i])
            for some in who[:, None] if exchange.one_by_one else (who,):
                block = whole.only(some)
                before = state if block is whole else _taken(state, some, exchange.unread)
                start = time.perf_counter()
                states, answer = exchange.answer(before, question, block, now)
                slowest = max(slowest, (time.perf_counter() - start) / len(some))
                add(plan, answer if stays else host_record(answer), block.clients, now)
                if states is not before:  # most clients have no state, or do not change it
                    state = self._put(whole, state, some, states, exchange, now)
                    clients[i] = device.states(state)
            if plan.stale is not None and not isinstance(clients, list):
                clients.touch(i)
        plan.account.answer_s += slowest
        return clients

    def _visited(self, exchange: Exchange, chosen: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64], Block]]:
        """(index, positions of the chosen clients, block on the device) of each block that has any, block by block."""
        for i, who in self.blocks.among(chosen):
            block = self.blocks.visit(i, keep=not exchange.off_clock)  # a device may ask it for more rows
            yield i, who, self.device.block(block)

    def _put(
        self, block: Block, state: Record, who: NDArray[np.int64], new: Record, exchange: Exchange, now: Round
    ) -> Record:
        """The states of a block with those of clients `who` replaced; where these are all, shapes may change.

        Replaced in place, since copying the states of all clients for a few takes longer than computing those few. A
        measure may have started from the algorithm's states, and copies them, and so does a round that may be void.
        """
        if len(who) == len(block.clients):
            return new
        return put(state, who, new, in_place=not (exchange.off_clock or now.leaving is not None))

    def hear(self, plan: ExchangePlan, clients: States, total: Record, now: Round) -> States:
        """`absorb` on the clients who receive the sum: those that stay, or a single client."""
        exchange: Any = plan.exchange  # generic, of any states
        clients, alike, slowest = writable(clients, None if exchange.off_clock else now.leaving), None, 0.0
        began = time.perf_counter()
        device, total = self.device, self.device.record(total)
        for i, who, whole in self._visited(exchange, hearing(exchange, now)):
            state = device.record(clients[i])
            block = whole.only(who)
            start = time.perf_counter()
            if exchange.alike:
                if alike is None:
                    at = int(who[0])
                    first = map_leaves(lambda leaf, at=at: leaf[at : at + 1], state)
                    alike = exchange.absorb(first, total, block.first, now)
                    slowest = time.perf_counter() - start
                states = _repeated(alike, len(who))
            else:
                before = state if len(who) == len(whole.clients) else take(state, who)
                states = exchange.absorb(before, total, block, now)
                slowest = max(slowest, (time.perf_counter() - start) / len(who))
            clients[i] = device.states(self._put(whole, state, who, states, exchange, now))
        plan.account.answer_s += slowest
        plan.account.work_s += time.perf_counter() - began
        return clients


def _taken(state: Any, who: NDArray[np.int64], unread: tuple[str, ...]) -> Record:  # of any class
    """`take` without the fields that nobody reads, in whose place nothing is copied."""
    taken: Record = take(state._replace(**dict.fromkeys(unread, ABSENT)) if unread else state, who)
    return taken


def _repeated(state: Record, clients: int) -> Record:
    """The state [1, ...] of a client, repeated for `clients` clients without copies."""
    return map_leaves(lambda leaf: repeated(leaf[0, ...], clients), state)
