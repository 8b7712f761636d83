"""Aggregation over MPI: broadcasts, uploads of the participating clients, their sums, and the bytes they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accounts import Spent, gathered
from mpifed.comm.channel import Channel, Protection, Recorder, Setting, answering, hearing, make_channel
from mpifed.comm.device import on_device
from mpifed.comm.groups import check_groups, check_rounds
from mpifed.comm.line import Line, Memory
from mpifed.comm.local_clients import LocalClients
from mpifed.comm.places import names_field
from mpifed.comm.sums import make_sum
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.device import Device, Host
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, ServerRecord, States, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Layout, Record, leaves, nbytes
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round

_HEADER = 8  # bytes before a broadcast: the server's order


LastAnswers: TypeAlias = dict[int, dict[str, NDArray[Any]]]  # by client and memory


class Request:
    """Whether this rank was asked, by a signal, to end the run at the next round."""

    asked = False


class Aggregator:
    """The `Summation` of this rank; see `mpifed.core.exchange`.

    Parameters
    ----------
    blocks : the blocks that this rank hosts; those of a roster are opened when they are needed
    clients : N, on all ranks
    exact : exact sums, or sums in `dtype`
    bounds, scales : by "exchange.field" or a record of fields; they override those that the algorithm declares
    target_scale : of the problem; other grids are multiplied by its powers
    summed : by exchange, the largest number of clients that answer; all where it is missing
    by_blocks : exact sums alone: whether the answers of a block's clients are summed in floats before they are rounded,
        in the plain channel and where an exchange offers it, or each client's are rounded
    cells : which clients hold which rows and columns; by default each holds all of them
    protection : security of aggregation; plain by default
    rehearsed : whether clients of other ranks are not simulated, since only costs are of interest
    device : where this rank's clients compute; the CPU by default
    drawn : number, or mean number, of participating clients per round, where participation is secret; else None
    """

    def __init__(
        self,
        transport: Transport,
        blocks: Sequence[Block],
        clients: int,
        *,
        exact: bool = True,
        dtype: str = "float32",
        bounds: Mapping[str, float] | None = None,
        scales: Mapping[str, float] | None = None,
        target_scale: float = 1.0,
        cells: Cells | None = None,
        protection: Protection | None = None,
        rehearsed: bool = False,
        device: Device | None = None,
        summed: Mapping[str, int] | None = None,
        by_blocks: bool = False,
        drawn: int | None = None,
    ) -> None:
        self.local_clients = LocalClients(Roster.of(blocks), device or Host())
        self.transport, self.clients = transport, clients
        self._settings: dict[str, Any] = {
            "exact": exact, "dtype": dtype, "bounds": dict(bounds or {}), "scales": dict(scales or {}),
            "target_scale": target_scale,
        }  # fmt: skip
        self._by_blocks = exact and by_blocks
        self._summed = dict(summed or {})
        self._drawn = drawn
        self.cells = cells or Cells.all(clients)
        self.protection = protection or Protection()
        setting = Setting(transport, self.blocks.clients, clients, self.cells, self.protection, rehearsed)
        self.channel = make_channel(setting)
        self._clear = Channel(setting)  # for exchanges that are not private
        self._lines: dict[str, Line] = {}
        self._memories: dict[str, Memory] = {}
        self._widths = self.cells.columns.widths
        self.order = 0  # from the server: 0, or the exit code with which the run ends here
        self.request = Request()  # of this rank
        self.requested = False  # server only: whether any rank was asked to end the run
        self.up_bytes = 0  # as in a deployment, server only
        self.down_bytes = 0

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
        """Whether the server has ended the run."""
        return self.order != 0

    def make_ready(self, exchanges: Sequence[Exchange]) -> None:
        """Allocate buffers for `exchanges`, and check that they can be summed as the job wants.

        Raises
        ------
        UsageError
            when a bound, a scale or `allow` names none of their fields; when a bound and scale fit no grid; when sums
            would be over fewer clients than the job allows.
        """
        lines = [self._line(exchange) for exchange in exchanges]
        known = [place.name for line in lines for place in line.sum.places]
        named = {"[aggregation.bounds]": self._settings["bounds"], "[aggregation.scales]": self._settings["scales"]}
        for table, names in {**named, "[aggregation] allow:": self.protection.allow}.items():
            for name in names:
                if not any(names_field(name, field) for field in known):
                    raise UsageError(f'{table} "{name}": no such field; known are {", ".join(known)}')
        if self.channel.name != "plain":
            check_groups([line for line in lines if line.exchange.private], self.cells, self.protection)

    def check_rounds(self, exchanges: Sequence[Exchange], rounds: Iterable[Round]) -> None:
        """Check that in none of these rounds a sum would be over fewer clients than the job allows.

        Raises
        ------
        UsageError
            naming the fields and their first such rounds.
        """
        if self.channel.name != "plain":
            lines = [self._line(exchange) for exchange in exchanges if exchange.private]
            check_rounds(lines, self.cells, self.protection, rounds)

    def agree_on_keys(self) -> None:
        """Prepare the channel, once, before the first exchange. Collective."""
        self.channel.prepare([line for line in self._lines.values() if line.exchange.private])
        self.up_bytes += self.channel.keys.up_bytes
        self.down_bytes += self.channel.keys.down_bytes

    def accounts(self, before: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Costs of the key agreement and of each exchange, added to `before`; complete on rank 0. Collective.

        Bytes are those that a deployment would send; seconds are combined as `Account` says; measures are left out.
        """
        lines = [line for line in self._lines.values() if not line.exchange.off_clock and line.account.played]
        accounts = {"keys": self.channel.keys, **{line.exchange.name: line.account for line in lines}}
        return gathered(self.transport, accounts, before)

    def record(self, recorder: Recorder | None) -> None:
        """Record every message from now on; with None, stop recording.

        Raises
        ------
        UsageError
            where sums are in floats, or of blocks: then clients have no uploads of their own.
        """
        if recorder is not None and self._by_blocks:
            raise UsageError(
                '[aggregation] arithmetic = "exact-blocks": sums of blocks are not recorded; set arithmetic = "exact"'
            )
        if recorder is not None and not self._settings["exact"]:
            raise UsageError(
                '[aggregation] arithmetic = "float": only exact sums can be recorded; set arithmetic = "exact"'
            )
        self.channel.recorder = self._clear.recorder = recorder

    def last_answers(self) -> LastAnswers:
        """Last answers of this rank's clients, where later sums still include them; for a checkpoint."""
        answers: LastAnswers = {}
        for name, memory in self._memories.items():
            for client, numbers in memory.last.items():
                answers.setdefault(client, {})[name] = numbers
        return answers

    def restore(self, last_answers: LastAnswers) -> None:
        """Continue from the last answers of this rank's clients. Collective."""
        for client, answers in last_answers.items():
            for name, numbers in answers.items():
                self._memories[name].last[client] = numbers
        for line in self._lines.values():
            memory = line.memory
            if memory is None or memory.answered.any() or line.exchange.silent:
                continue
            answered_here = np.zeros(self.clients, dtype=np.int64)
            answered_here[list(memory.last)] = 1
            answered = np.empty_like(answered_here)
            self.transport.reduce_all(answered_here, answered)
            memory.answered[:] = answered > 0
            if memory.answered.any():
                self._channel(line.exchange).resend(line, Round(SETUP, 0, memory.answered.copy()))

    def _channel(self, exchange: Exchange) -> Channel:
        return self.channel if exchange.private else self._clear

    def _line(self, exchange: Exchange) -> Line:
        line = self._lines.get(exchange.name)
        if line is None:
            memory = None
            if exchange.stale:
                memory = self._memories.setdefault(exchange.stale, Memory(self.clients))
            # a partial instead of a lambda, which would hold this aggregator and its blocks in a reference cycle
            most = self._summed.get(exchange.name, self.clients)
            line = Line(exchange, partial(make_sum, exchange, most, **self._settings), self.cells, memory)
            line.sum = on_device(line.sum, self.device)
            self._lines[exchange.name] = line
        return line

    def serve(self, exchange: Exchange, method: Callable[..., Any], *arguments: Any) -> Any:
        """Result of the server's part of an exchange, which is timed; None on other ranks than 0."""
        if not self.serves:
            return None
        start = time.perf_counter()
        result = method(*arguments)
        self._line(exchange).account.server_s += time.perf_counter() - start
        return result

    def tell(self, exchange: Exchange, question: ServerRecord) -> ServerRecord:
        """Broadcast the server's question and order; the views returned hold until its next broadcast."""
        if self.transport.size == 1:
            return question
        line = self._line(exchange)
        if line.layout is None:
            line.layout = self.transport.share(Layout(question) if self.serves else None)
            line.buffer = np.zeros(_HEADER + line.layout.nbytes, dtype=np.uint8)
        order, packed = line.buffer[:_HEADER].view(np.int64), line.buffer[_HEADER:]
        if self.serves:
            order[0] = self.order
            long = line.layout.pack(question, packed, to_send=True)
        else:
            long = line.layout.long(packed)
        start = time.perf_counter()
        for part in (line.buffer[: _HEADER + line.layout.short], *long):
            self.transport.broadcast(part)
        line.account.tell_s += time.perf_counter() - start
        self.order = int(order[0])
        return question if self.serves else line.layout.unpack(line.buffer[_HEADER:])

    def tally(self, exchange: Exchange, clients: States, question: Record, now: Round) -> tuple[States, ServerRecord]:
        """Answers of the participating clients, summed over all ranks; no sum where too many have left. Collective."""
        line, channel = self._line(exchange), self._channel(exchange)
        if channel.recorder is not None:
            channel.recorder.question(line, now, question)
        fused, start = exchange.fused, time.perf_counter()
        if fused is not None and self._by_blocks and channel.name == "plain" and line.memory is None:
            self.local_clients.answer_by_blocks(line, fused, question, now)
        elif fused is not None and not self._settings["exact"]:
            self.local_clients.answer_together(line, fused, question, now)
        else:
            clients = self._answer(line, clients, question, now)
        line.account.work_s += time.perf_counter() - start
        self._count(exchange, line, question, now)
        if now.void:
            return clients, None
        line.sum.message[-1] = self.request.asked
        start = time.perf_counter()
        receives = channel.collect(line, now)
        line.account.sum_s += time.perf_counter() - start
        if self.serves:
            self.requested = bool(line.reduced[-1])
        if not receives:
            return clients, None
        total = line.sum.total(line.reduced)
        if channel.recorder is not None:
            channel.recorder.opened(line, now, total)
        return clients, total

    def _answer(self, line: Line, clients: States, question: Record, now: Round) -> States:
        return self.local_clients.answer_each(line, self._channel(line.exchange), clients, question, now)

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """The states, after `absorb` on those clients who receive the sum."""
        return self.local_clients.hear(self._line(exchange), clients, total, now)

    def _count(self, exchange: Exchange, line: Line, question: Record, now: Round) -> None:
        account = line.account
        account.played += 1
        if not self.serves or exchange.off_clock:
            return
        now = self._in_public(now)
        # follows from participation alone, unless clients leave, or stale answers count as well
        who = now.present.tobytes() if now.leaving is None and line.memory is None else None
        if who is None or who != line.counted_for:
            line.spent, line.counted_for = self._spent(exchange, line, question, now), who
        account.add(line.spent)
        self.up_bytes += line.spent.up_bytes
        self.down_bytes += line.spent.down_bytes

    def _in_public(self, now: Round) -> Round:
        """The round as the accounts may show it: where participation is secret, the first clients replace those drawn.

        So bytes and counts reveal neither who participated, nor how many, nor who left.
        """
        if self._drawn is None or now.index == SETUP:
            return now
        return now._replace(present=np.arange(self.clients) < self._drawn, leaving=None)

    def _spent(self, exchange: Exchange, line: Line, question: Record, now: Round) -> Spent:
        """Cost of running an exchange once, as in a deployment."""
        asked, participating, receiving = now.asked, answering(exchange, now), hearing(exchange, now)
        up, down = self._channel(exchange).traffic(line, now)
        by_columns = sum(nbytes(leaf) for name, leaf in leaves(question) if name in exchange.told_by_columns)
        clear = np.where(asked, nbytes(question) - by_columns, 0)
        clear += by_columns // self.cells.columns.length * np.where(asked, self._widths, 0)
        down, to_clients = down + clear, isinstance(exchange, ToClients)
        opened = (line.values_received * receiving).max() if to_clients else line.values
        return Spent(
            up_bytes=int(up.sum()),
            down_bytes=int(down.sum()),
            up_most=int(up.max()),
            down_most=int(down.max()),
            sealed_most=int((line.values_sent * participating).max()) if exchange.private else 0,
            opened_most=int(opened) if exchange.private else 0,
            up_clear=line.sum.nbytes if exchange.private and not to_clients else 0,
            down_clear=int(clear.max()),
            added=int(line.values_sent @ participating),
        )
