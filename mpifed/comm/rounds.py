"""Rounds over MPI: the only loop over exchanges, and what a rank does in it for the clients that it hosts.

Broadcasts, uploads of the participating clients, their sums, and the bytes that these cost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from mpifed.comm.channels import make_channel
from mpifed.comm.channels.base import (
    Channel,
    ChannelSetting,
    Kept,
    Plan,
    Protection,
    refuse_small,
)
from mpifed.comm.costs import of_all_ranks
from mpifed.comm.mpi import Comm
from mpifed.comm.states import put
from mpifed.comm.sums import Arithmetic, Message, names_field, note_steps
from mpifed.core.device import Device, host_record
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, ServerRecord, States, answering, hearing
from mpifed.core.holdings import Holdings
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, Integers, Record, take
from mpifed.core.round import SETUP, Round
from mpifed.data.block import Block
from mpifed.data.roster import Roster

LastAnswers: TypeAlias = Mapping[str, Mapping[int, Array]]  # by `Exchange.keeps`, of each client


class Request:
    """Whether this rank was asked, by a signal, to end the run at the next round."""

    asked = False


class Ranks:
    """This rank among others: its clients on its device, how their uploads are summed, and what that costs.

    Parameters
    ----------
    blocks : the blocks that this rank hosts; those of a roster are opened when they are needed
    clients : N, on all ranks
    arithmetic : of sums
    protection : security of aggregation; plain by default
    columns : which clients hold which; by default each holds all of them
    device : where this rank's clients compute; the CPU by default
    drawn : number, or mean number, of participating clients per round, where participation is secret; else None
    """

    def __init__(
        self,
        comm: Comm,
        blocks: Sequence[Block],
        clients: int,
        arithmetic: Arithmetic = Arithmetic(),  # noqa: B008
        protection: Protection = Protection(),  # noqa: B008
        *,
        columns: Holdings | None = None,
        device: Device | None = None,
        drawn: int | None = None,
    ) -> None:
        self.comm, self.clients, self.protection = comm, clients, protection
        self.serves = comm.rank == 0
        self.blocks, self.device = Roster.of(blocks), device or Device()
        self._arithmetic, self._columns, self._drawn = arithmetic, columns or Holdings.all(clients, 1), drawn
        setting = ChannelSetting(comm, self.blocks.clients, clients, protection)
        self.channel = make_channel(setting)
        self._clear = Channel(setting)  # for exchanges in the clear
        self._plans: dict[str, Plan] = {}
        self._kept: dict[str, Kept] = {}
        self.steps = defaultdict[str, float](float)  # by field, of the largest value so far; see `note_steps`
        self.order = 0  # from the server: 0, or how the run ends here: an exit code, or -1, normally
        self.request = Request()  # of this rank
        self.requested = False  # server only: whether any rank was asked to end the run
        self.up_bytes = self.down_bytes = 0  # as in a deployment, server only

    # --- before the first round ---------------------------------------------------------------------------------------

    def make_ready(self, exchanges: Sequence[Exchange]) -> None:
        """Allocate buffers for `exchanges`, and check that they can be summed as the job wants.

        Raises UsageError when a bound or `allow` names none of their fields; when a bound and scale fit no
        grid; when sums would be over fewer clients than the job allows.
        """
        known = [place.name for exchange in exchanges for place in self.plan(exchange).message.places]
        named = {"[aggregation.bounds]": self._arithmetic.bounds, "[aggregation] allow:": self.protection.allow}
        for table, names in named.items():
            for name in names:
                if not any(names_field(name, field) for field in known):
                    raise UsageError(f'{table} "{name}": no such field; known are {", ".join(known)}')
        self.check_rounds(exchanges, ())

    def check_rounds(self, exchanges: Sequence[Exchange], rounds: Iterable[Round]) -> None:
        """UsageError, naming fields, where a sum of all clients or of a round's would be over fewer than allowed."""
        plans = [plan for plan in map(self.plan, exchanges) if plan.channel.name != "plain"]
        partial = any(place.held is not None for plan in plans for place in plan.message.places)
        # all who participate fill every entry elsewhere
        every = chain([Round(SETUP, 0, np.ones(self.clients, dtype=bool))], rounds if partial else ())
        sums = ((plan.message, plan.exchange.at(now, 0)) for now in every for plan in plans)
        refuse_small(sums, self.protection, UsageError)

    def agree_on_keys(self) -> None:
        """Prepare the channel, once, before the first exchange. Collective."""
        self.channel.prepare([plan for plan in self._plans.values() if not plan.exchange.clear])
        self.up_bytes += int(self.channel.keys.costs["up_bytes"])
        self.down_bytes += int(self.channel.keys.costs["down_bytes"])

    def plan(self, exchange: Exchange) -> Plan:
        """What the exchange reuses whenever it is played."""
        plan = self._plans.get(exchange.name)
        if plan is None:
            kept = self._kept.setdefault(exchange.keeps, Kept(self.clients)) if exchange.keeps else None
            channel = self._clear if exchange.clear else self.channel
            message = Message(exchange, self.clients, self._arithmetic)
            plan = self._plans[exchange.name] = Plan(message, channel, kept)
        plan.exchange = exchange  # whose functions may be others
        return plan

    # --- absent clients who go on counting ----------------------------------------------------------------------------

    def last_answers(self) -> LastAnswers:
        """What this rank's clients have sent, where absent clients go on counting; for a checkpoint."""
        return {name: kept.sent for name, kept in self._kept.items()}

    def restore(self, last_answers: LastAnswers) -> None:
        """Continue from what this rank's clients have sent. Collective."""
        for name, sent in last_answers.items():
            self._kept[name].sent.update(sent)
        for plan in self._plans.values():
            plan.channel.restore(plan)

    # --- costs --------------------------------------------------------------------------------------------------------

    def accounts(self, before: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Costs of the key agreement and of each exchange, added to `before`; complete on rank 0. Collective.

        Bytes are those that a deployment would send; measures are left out.
        """
        played = {name: plan.account.costs for name, plan in self._plans.items() if plan.account.costs["played"]}
        return of_all_ranks(self.comm, {"keys": self.channel.keys.costs, **played}, before)

    def _count(self, plan: Plan, question: Record, now: Round) -> None:
        """Count the bytes of an exchange, on rank 0.

        Where participation is secret, of the first clients in place of those drawn: so they reveal neither who
        participated, nor how many, nor who left.
        """
        plan.account.costs["played"] += 1
        if not self.serves:
            return
        if self._drawn is not None and now.index != SETUP:
            now = now.only(np.arange(self.clients) < self._drawn)._replace(leaving=None)
        # follows from participation alone, unless clients leave or are late, or last answers count as well
        who = now.ids.tobytes() if now.leaving is None and now.arrivals is None and plan.kept is None else None
        if who is None or who != plan.counted_for:
            plan.spent, plan.counted_for = plan.channel.spent(plan, question, self._columns, now), who
        plan.account.add(plan.spent)
        self.up_bytes += plan.spent.up_bytes
        self.down_bytes += plan.spent.down_bytes

    # --- an exchange --------------------------------------------------------------------------------------------------

    def serve(self, plan: Plan, method: Callable[..., Any], *arguments: Any) -> Any:  # of the algorithm's own state
        """Result of the server's part of an exchange, which is timed; None on other ranks than 0."""
        if not self.serves:
            return None
        with plan.account.timed("server_s"):
            return method(*arguments)

    def sum(self, plan: Plan, states: States, question: Record, now: Round, measured: bool) -> ServerRecord:
        """The answers of the participating clients, summed over all ranks; None where this rank does not receive the
        sum, or too many have left. Collective."""
        answer, channel, broadcast = plan.exchange.answer, plan.channel, self.device.record(question)
        add = channel.add if plan.kept is None else channel.add_one_by_one
        in_place = type(channel) is Channel and plan.kept is None  # where they are computed, and as sums of blocks

        def answer_block(state: Record, block: Block) -> Record:
            assert answer is not None
            after, upload = answer(state, broadcast, block, now)
            # positions, and records of the algorithm's own
            parts: Iterable[tuple[Any, ...]] = [(slice(None), upload)]
            if isinstance(upload, Lazy):
                if in_place and self._arithmetic.by_blocks and upload.total is not None:
                    parts = [(slice(None), upload.total(), None, True)]
                else:  # until all fields are noted as they are
                    parts = ((in_place and plan.noted and upload.apart) or upload.parts)()
            for few, part, *more in parts:
                part = part if in_place or self.device.on_host else host_record(part)
                plan.noted = plan.noted or note_steps(self.steps, plan.message.places, part)
                add(plan, part, block.clients[few], now, *more)
            return after

        channel.begin(plan, now)
        self._renew(plan, answering(plan.exchange, now), states, now, measured, answer_block)
        if not measured:
            self._count(plan, question, now)
        if now.void:
            return None
        plan.sum.numbers[-1] = self.request.asked
        with plan.account.timed("sum_s"):
            receives = channel.collect(plan, now)
        if self.serves:
            self.requested = bool(plan.reduced[-1])
        return plan.message.decode(plan.reduced) if receives else None

    def hear(self, plan: Plan, states: States, total: Record, now: Round, measured: bool) -> None:
        """Have the clients who are sent the sum hear it."""
        hear, total = plan.exchange.hear, self.device.record(total)
        assert hear is not None
        self._renew(
            plan, hearing(plan.exchange, now), states, now, measured, lambda own, block: hear(own, total, block, now)
        )

    def _renew(
        self, plan: Plan, chosen: Integers, states: States, now: Round, measured: bool,
        turn: Callable[[Record, Block], Record],
    ) -> None:  # fmt: skip
        """Renew the states of the `chosen` clients of this rank, block by block.

        In place, since copying the states of all clients for a few takes longer than computing those few. A measure may
        have started from the algorithm's states, and copies them, and so does a round that may be void.

        Parameters
        ----------
        turn : (states of a block's chosen clients, these clients) -> their new states
        """
        began, slowest, gradients, void = time.perf_counter(), 0.0, 0, now.leaving is not None
        for i, who in self.blocks.among(chosen):
            whole = self.device.block(self.blocks[i])
            state, block = self.device.record(states.take(i)), whole.only(who)
            before, gradients = state if block is whole else take(state, who), gradients - block.drawn[0]
            start = time.perf_counter()
            after = turn(before, block)
            slowest = max(slowest, (time.perf_counter() - start) / len(who))
            gradients += block.drawn[0]
            if after is not before:  # most clients have no state, or do not change it
                if block is not whole:
                    after = put(state, who, after, in_place=not (measured or void))
                states.put(i, after if self.device.on_host else host_record(after), void)
            if plan.kept is not None:
                states.changed.add(i)  # though its state is not
        if self._drawn is None:  # where participation is secret, so is how many have drawn
            plan.account.costs["gradients"] += gradients
        plan.account.costs["answer_s"] += slowest
        plan.account.costs["work_s"] += time.perf_counter() - began


def play(
    exchanges: Sequence[Exchange],
    server: ServerRecord,
    states: States,
    now: Round,
    ranks: Ranks,
    measured: bool = False,
) -> tuple[ServerRecord, States]:
    """One round: every exchange in turn. Collective.

    Parameters
    ----------
    server : the server's state on rank 0, None elsewhere
    states : those of the blocks that this rank hosts
    measured : whether this is no round, but what is measured off the clock: in no account, and of states of its own

    Returns
    -------
    The new (server, states); the old ones when the server halted the run with its first question, when so many clients
    left that the round is void, or where none was there.
    """
    if now.void and not now.present.any():  # nobody is there
        ranks.order = ranks.comm.bcast(ranks.order)
        return server, states
    before = server
    for number, exchange in enumerate(exchanges):
        here = exchange.at(now, number)
        if exchange.who is not None and not here.present.any():
            continue
        plan = ranks.plan(exchange)
        question = ranks.serve(plan, exchange.ask, server, here)
        ranks.order, question = ranks.comm.bcast((ranks.order, question))
        if ranks.order and not measured:
            break
        total = ranks.sum(plan, states, question, here, measured)
        if here.void:
            states.back()
            return before, states
        if exchange.hear is not None:
            ranks.hear(plan, states, total, here, measured)
        else:
            assert exchange.absorb is not None
            server = ranks.serve(plan, exchange.absorb, server, total, here)
    states.commit()
    return server, states
