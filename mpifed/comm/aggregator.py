"""Aggregation over MPI: broadcasts, uploads of the participating clients, their sums, and the bytes they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mpifed.comm.accumulate import make_sum
from mpifed.comm.accumulate_gpu import on_device
from mpifed.comm.channel import Channel, ChannelSetting, Protection, Recorder
from mpifed.comm.cost_accounts import gathered
from mpifed.comm.exchange_plan import ExchangePlan, StaleAnswers
from mpifed.comm.local_clients import LocalClients
from mpifed.comm.message_layout import names_field
from mpifed.comm.minimum_group import check_groups, check_rounds
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, ServerRecord, States, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Record
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round

LastAnswers: TypeAlias = dict[int, dict[str, np.ndarray]]  # by client and `Exchange.stale`


class Request:
    """Whether this rank was asked, by a signal, to end the run at the next round."""

    asked = False


class Aggregator:
    """The `Summation` of this rank; see `mpifed.core.exchange`.

    Parameters
    ----------
    blocks : the blocks that this rank hosts; those of a roster are opened when they are needed
    clients : N, on all ranks
    dtype : of the job
    bounds : by "exchange.field" or a record of fields; they override those that the algorithm declares
    target_scale : of the problem; other grids are multiplied by its powers
    summed : by exchange, the largest number of clients that answer; all where it is missing
    by_blocks : whether a block's answers are summed in floats before they are rounded, if possible
    cells : which clients hold which rows and columns; by default each holds all of them
    protection : security of aggregation; plain by default
    device : where this rank's clients compute; the CPU by default
    drawn : number, or mean number, of participating clients per round, where participation is secret; else None
    """

    def __init__(
        self,
        transport: Transport,
        blocks: Sequence[Block],
        clients: int,
        *,
        dtype: str = "float32",
        bounds: Mapping[str, float] | None = None,
        target_scale: float = 1.0,
        cells: Cells | None = None,
        protection: Protection | None = None,
        device: Device | None = None,
        summed: Mapping[str, int] | None = None,
        by_blocks: bool = False,
        drawn: int | None = None,
    ) -> None:
        self.local_clients = LocalClients(Roster.of(blocks), device or Device())
        self.transport, self.clients = transport, clients
        self._bounds = dict(bounds or {})
        self._make_sum = partial(make_sum, dtype=dtype, bounds=self._bounds, target_scale=target_scale)
        self._by_blocks, self._summed, self._drawn = by_blocks, dict(summed or {}), drawn
        self.cells = cells or Cells.all(clients)
        self.protection = protection or Protection()
        setting = ChannelSetting(transport, self.blocks.clients, clients, self.cells, self.protection)
        self.channel = make_channel(setting)
        self._clear = Channel(setting)  # for exchanges that are not private
        self._plans: dict[str, ExchangePlan] = {}
        self._stale: dict[str, StaleAnswers] = {}
        self.order = 0  # from the server: 0, or the exit code with which the run ends here
        self.request = Request()  # of this rank
        self.requested = False  # server only: whether any rank was asked to end the run
        self.up_bytes = self.down_bytes = 0  # as in a deployment, server only

    @property
    def serves(self) -> bool:
        """Whether this is rank 0."""
        return self.transport.rank == 0

    @property
    def blocks(self) -> Roster:
        return self.local_clients.blocks

    @property
    def device(self) -> Device:
        return self.local_clients.device

    @property
    def halted(self) -> bool:
        return self.order != 0

    def make_ready(self, exchanges: Sequence[Exchange]) -> None:
        """Allocate buffers for `exchanges`, and check that they can be summed as the job wants.

        Raises UsageError when a bound or `allow` names none of their fields; when a bound and scale fit no
        grid; when sums would be over fewer clients than the job allows.
        """
        plans = [self._plan(exchange) for exchange in exchanges]
        known = [place.name for plan in plans for place in plan.sum.places]
        named = {"[aggregation.bounds]": self._bounds, "[aggregation] allow:": self.protection.allow}
        for table, names in named.items():
            for name in names:
                if not any(names_field(name, field) for field in known):
                    raise UsageError(f'{table} "{name}": no such field; known are {", ".join(known)}')
        if self.channel.name != "plain":
            check_groups([plan for plan in plans if plan.exchange.private], self.cells, self.protection)

    def check_rounds(self, exchanges: Sequence[Exchange], rounds: Iterable[Round]) -> None:
        """UsageError, naming fields and rounds, where a sum would be over fewer clients than the job allows."""
        if self.channel.name != "plain":
            private = [self._plan(exchange) for exchange in exchanges if exchange.private]
            check_rounds(private, self.cells, self.protection, rounds)

    def agree_on_keys(self) -> None:
        """Prepare the channel, once, before the first exchange. Collective."""
        self.channel.prepare([plan for plan in self._plans.values() if plan.exchange.private])
        self.up_bytes += self.channel.keys.up_bytes
        self.down_bytes += self.channel.keys.down_bytes

    def accounts(self, before: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Costs of the key agreement and of each exchange, added to `before`; complete on rank 0. Collective.

        Bytes are those that a deployment would send; seconds are combined as `CostAccount` says; measures are left out.
        """
        plans = [plan for plan in self._plans.values() if not plan.exchange.off_clock and plan.account.played]
        by_name = {plan.exchange.name: plan.account for plan in plans}
        return gathered(self.transport, {"keys": self.channel.keys, **by_name}, before)

    def record(self, recorder: Recorder | None) -> None:
        """Record every message from now on, or none; UsageError unless sums are of single clients."""
        if recorder is not None and self._by_blocks:
            raise UsageError(
                '[aggregation] arithmetic = "exact-blocks": sums of blocks are not recorded; set arithmetic = "exact"'
            )
        self.channel.recorder = self._clear.recorder = recorder

    def last_answers(self) -> LastAnswers:
        """Last answers of this rank's clients, where later sums still include them; for a checkpoint."""
        answers: LastAnswers = {}
        for name, stale in self._stale.items():
            for client, numbers in stale.last.items():
                answers.setdefault(client, {})[name] = numbers
        return answers

    def restore(self, last_answers: LastAnswers) -> None:
        """Continue from the last answers of this rank's clients. Collective."""
        for client, answers in last_answers.items():
            for name, numbers in answers.items():
                self._stale[name].last[client] = numbers
        for plan in self._plans.values():
            stale = plan.stale
            if stale is None or stale.answered.any() or plan.exchange.silent:
                continue
            answered_here = np.zeros(self.clients, dtype=np.int64)
            answered_here[list(stale.last)] = 1
            answered = np.empty_like(answered_here)
            self.transport.reduce_all(answered_here, answered)
            stale.answered[:] = answered > 0
            if stale.answered.any():
                self._channel(plan.exchange).resend(plan, Round(SETUP, 0, stale.answered.copy()))

    def _channel(self, exchange: Exchange) -> Channel:
        return self.channel if exchange.private else self._clear

    def _plan(self, exchange: Exchange) -> ExchangePlan:
        plan = self._plans.get(exchange.name)
        if plan is None:
            name, most = exchange.stale, self._summed.get(exchange.name, self.clients)
            stale = self._stale.setdefault(name, StaleAnswers(self.clients)) if name else None
            # a partial instead of a lambda, which would hold this aggregator and its blocks in a reference cycle
            plan = ExchangePlan(exchange, partial(self._make_sum, exchange, most), self.cells, stale)
            plan.sum = on_device(plan.sum, self.device)
            self._plans[exchange.name] = plan
        return plan

    # of the algorithm's own state
    def serve(self, exchange: Exchange, method: Callable[..., Any], *arguments: Any) -> Any:
        """Result of the server's part of an exchange, which is timed; None on other ranks than 0."""
        if not self.serves:
            return None
        start = time.perf_counter()
        result = method(*arguments)
        self._plan(exchange).account.server_s += time.perf_counter() - start
        return result

    def tell(self, exchange: Exchange, question: ServerRecord) -> ServerRecord:
        """Broadcast the server's question and order; the views returned hold until its next broadcast."""
        if self.transport.size == 1:
            return question
        plan = self._plan(exchange)
        self.order, question, seconds = plan.broadcast.send(self.transport, self.order, question)
        plan.account.tell_s += seconds
        return question

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, ServerRecord]:
        """Answers of the participating clients, summed over all ranks; no sum where too many have left. Collective."""
        plan, channel = self._plan(exchange), self._channel(exchange)
        if channel.recorder is not None:
            channel.recorder.question(plan, now, question)
        fused, start = exchange.fused, time.perf_counter()
        if fused is not None and self._by_blocks and channel.name == "plain" and plan.stale is None:
            self.local_clients.answer_by_blocks(plan, fused, question, now)
        elif exchange.in_turn is not None and self._in_turn(plan, channel):
            self.local_clients.answer_in_turn(plan, exchange.in_turn, question, now)
        else:
            clients = self.local_clients.answer_each(plan, channel, clients, question, now)
        plan.account.work_s += time.perf_counter() - start
        self._count(exchange, plan, question, now)
        if now.void:
            return clients, None
        plan.sum.message[-1] = self.request.asked
        start = time.perf_counter()
        receives = channel.collect(plan, now)
        plan.account.sum_s += time.perf_counter() - start
        if self.serves:
            self.requested = bool(plan.reduced[-1])
        if not receives:
            return clients, None
        total = plan.sum.total(plan.reduced)
        if channel.recorder is not None:
            channel.recorder.opened(plan, now, total)
        return clients, total

    def _in_turn(self, plan: ExchangePlan, channel: Channel) -> bool:
        """Whether nobody but the sum has to see an answer, so that the next one may take its place."""
        alone = channel.name == "plain" and channel.recorder is None and plan.stale is None
        return alone and self.device.on_host

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """The states, after `absorb` on those clients who receive the sum."""
        return self.local_clients.hear(self._plan(exchange), clients, total, now)

    def _count(self, exchange: Exchange, plan: ExchangePlan, question: Record, now: Round) -> None:
        account = plan.account
        account.played += 1
        if not self.serves or exchange.off_clock:
            return
        now = self._in_public(now)
        # follows from participation alone, unless clients leave, or stale answers count as well
        who = now.present.tobytes() if now.leaving is None and plan.stale is None else None
        if who is None or who != plan.counted_for:
            plan.spent, plan.counted_for = self._channel(exchange).spent(plan, question, now), who
        account.add(plan.spent)
        self.up_bytes += plan.spent.up_bytes
        self.down_bytes += plan.spent.down_bytes

    def _in_public(self, now: Round) -> Round:
        """The round as the accounts may show it: where participation is secret, the first clients replace those drawn.

        So bytes and counts reveal neither who participated, nor how many, nor who left.
        """
        if self._drawn is None or now.index == SETUP:
            return now
        return now._replace(present=np.arange(self.clients) < self._drawn, leaving=None)


def make_channel(setting: ChannelSetting) -> Channel:
    """The channel that the setting names; its libraries are imported here."""
    if setting.protection.channel == "masked":
        from mpifed.comm.masking.channel import Masked

        return Masked(setting)
    if setting.protection.channel == "encrypted":
        from mpifed.comm.encryption.channel import Encrypted

        return Encrypted(setting)
    return Channel(setting)
