"""The federation at work: tells questions, collects answers of the clients present, adds them, counts bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import (
    Channel,
    Line,
    Memory,
    Protection,
    Recorder,
    Setting,
    Spent,
    answering,
    hearing,
    make_channel,
)
from mpifed.comm.groups import check_groups
from mpifed.comm.sums import FloatSum, make_sum, names_field
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, States, ToClients
from mpifed.core.holdings import Cells
from mpifed.core.record import Layout, Record, leaves, map_leaves, nbytes, put, put_in_place, take
from mpifed.core.round import SETUP, Round

_HEADER = 8  # bytes before a question: the server's order


def _repeated(state: Record, clients: int) -> Record:
    """The state [1, ...] of one client for so many, without copies."""
    return map_leaves(lambda leaf: np.broadcast_to(leaf[0], (clients, *leaf.shape[1:])), state)


Kept: TypeAlias = dict[int, dict[str, NDArray[Any]]]  # last answers by client and memory


class Request:
    """Whether this rank was asked to end the run at the next round; set by signals."""

    asked = False


class Federation:
    """The `Summation` of this rank; see `mpifed.core.exchange`.

    Parameters
    ----------
    blocks : the blocks that this rank hosts
    clients : number of clients of the whole federation
    exact : exact sums, or sums in `dtype`
    bounds, scales : by "exchange.field" or a record of fields, instead of what the algorithm declares
    cells : who holds which rows and columns; everybody all of them when absent
    protection : how sums travel; plain when absent
    rehearsed : whether the clients of other ranks are not there at all, since only the cost counts
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
        cells: Cells | None = None,
        protection: Protection | None = None,
        rehearsed: bool = False,
    ) -> None:
        self.transport, self.blocks, self.clients = transport, list(blocks), clients
        self._settings: dict[str, Any] = {
            "exact": exact, "dtype": dtype, "bounds": dict(bounds or {}), "scales": dict(scales or {}),
        }  # fmt: skip
        self._all = Block(tuple(shard for block in blocks for shard in block.shards), dtype)
        self.cells = cells or Cells.all(clients)
        self.protection = protection or Protection()
        setting = Setting(transport, self._all.clients, clients, self.cells, self.protection, rehearsed)
        self.channel = make_channel(setting)
        self._clear = Channel(setting)  # of exchanges that are not private
        self._lines: dict[str, Line] = {}
        self._memories: dict[str, Memory] = {}
        self._widths = self.cells.columns.widths
        self.order = 0  # the server's word on how the run goes on: 0, or the exit code with which it ends here
        self.request = Request()  # of this rank
        self.requested = False  # on the server: whether any rank was asked to end
        self.up_bytes = 0  # logical, server only
        self.down_bytes = 0

    @property
    def serves(self) -> bool:
        """Whether this is rank 0."""
        return self.transport.rank == 0

    @property
    def halted(self) -> bool:
        """Whether the server has ended the run."""
        return self.order != 0

    def make_ready(self, exchanges: Sequence[Exchange]) -> None:
        """Buffers for `exchanges`, and a look at whether they can be summed as the job wants.

        Raises
        ------
        UsageError
            when a bound or scale names none of their fields, or fits no grid; when a name that is to be allowed is none
            of theirs; when sums would be of fewer clients than the job allows.
        """
        lines = [self._line(exchange) for exchange in exchanges]
        known = [place.name for line in lines for place in line.sum.places]
        named = {"[sum.bounds]": self._settings["bounds"], "[sum.scales]": self._settings["scales"]}
        for table, names in {**named, "[sum] allow:": self.protection.allow}.items():
            for name in names:
                if not any(names_field(name, field) for field in known):
                    raise UsageError(f'{table} "{name}": no such field; known are {", ".join(known)}')
        if self.channel.name != "plain":
            check_groups([line for line in lines if line.exchange.private], self.cells, self.protection)

    def agree_on_keys(self) -> None:
        """Whatever the channel needs before the first exchange. Collective."""
        self.channel.prepare([line for line in self._lines.values() if line.exchange.private])
        self.up_bytes += self.channel.keys.up_bytes
        self.down_bytes += self.channel.keys.down_bytes

    def accounts(self, before: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """What the agreement on keys and each exchange have cost, and `before`; whole on rank 0. Collective.

        Bytes are those that a deployment would send, `crypto_s` the seconds of all ranks together, `answer_s` those of
        the rank with the most; measuring is left out.
        """
        lines = [line for line in self._lines.values() if not line.exchange.off_clock and line.account.played]
        found = {"keys": self.channel.keys, **{line.exchange.name: line.account for line in lines}}
        gathered = self.transport.gather([(account.crypto_s, account.answer_s) for account in found.values()])
        seconds = np.array(gathered or np.zeros((1, len(found), 2)))  # [ranks, exchanges, 2]
        totals = {name: dict(cost) for name, cost in before.items()}
        for i, (name, account) in enumerate(found.items()):
            cost = account.numbers() | {
                "crypto_s": float(seconds[:, i, 0].sum()), "answer_s": float(seconds[:, i, 1].max()),
            }  # fmt: skip
            totals[name] = {key: value + totals.get(name, {}).get(key, 0) for key, value in cost.items()}
        return totals

    def record(self, recorder: Recorder | None) -> None:
        """Have every message taken down from now on, or no more.

        Raises
        ------
        UsageError
            where sums are in floats: then clients' answers are never messages of their own.
        """
        if recorder is not None and not self._settings["exact"]:
            raise UsageError('[sum] numbers = "float": only exact sums can be recorded; set [sum] numbers = "exact"')
        self.channel.recorder = self._clear.recorder = recorder

    def kept(self) -> Kept:
        """What clients of this rank have last answered, where that goes on counting; for a checkpoint."""
        found: Kept = {}
        for name, one in self._memories.items():
            for client, numbers in one.last.items():
                found.setdefault(client, {})[name] = numbers
        return found

    def restore(self, kept: Kept) -> None:
        """Go on with what clients of this rank have last answered, by client and memory. Collective."""
        for client, answers in kept.items():
            for name, numbers in answers.items():
                self._memories[name].last[client] = numbers
        for line in self._lines.values():
            memory = line.memory
            if memory is None or memory.answered.any() or getattr(line.exchange, "silent", False):
                continue
            here = np.zeros(self.clients, dtype=np.int64)
            here[list(memory.last)] = 1
            there = np.empty_like(here)
            self.transport.reduce_all(here, there)
            memory.answered[:] = there > 0
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
            # a partial and no lambda, which would hold this federation, and its blocks, in a cycle
            line = Line(exchange, partial(make_sum, exchange, self.clients, **self._settings), self.cells, memory)
            self._lines[exchange.name] = line
        return line

    def serve(self, exchange: Exchange, work: Callable[..., Any], *given: Any) -> Any:
        """What the server's part of an exchange gives, whose time is counted; None on ranks but 0."""
        if not self.serves:
            return None
        start = time.perf_counter()
        found = work(*given)
        self._line(exchange).account.server_s += time.perf_counter() - start
        return found

    def tell(self, exchange: Exchange, question: Record | None) -> Record:
        """The server's question and order, on every rank; views that hold until the same exchange's next one."""
        if self.transport.size == 1:
            return question
        line = self._line(exchange)
        if line.layout is None:
            line.layout = self.transport.share(Layout(question) if self.serves else None)
            line.buffer = np.zeros(_HEADER + line.layout.nbytes, dtype=np.uint8)
        order = line.buffer[:_HEADER].view(np.int64)
        if self.serves:
            order[0] = self.order
            line.layout.pack(question, line.buffer[_HEADER:])
        self.transport.broadcast(line.buffer)
        self.order = int(order[0])
        return question if self.serves else line.layout.unpack(line.buffer[_HEADER:])

    def tally(
        self, exchange: Exchange, clients: States, question: Record, now: Round
    ) -> tuple[States, Record]:
        """Answers of the hosted clients who are present, summed over all ranks; no sum where too many have left."""
        line, channel = self._line(exchange), self._channel(exchange)
        if channel.recorder is not None:
            channel.recorder.question(line, now, question)
        fused = getattr(exchange, "fused", None)
        if fused is not None and isinstance(line.sum, FloatSum):
            start = time.perf_counter()
            self._answer_fused(line.sum, fused, question, now)
            here = max(1, int(now.present[self._all.clients].sum()))
            line.account.answer_s += (time.perf_counter() - start) / here
        else:
            clients = self._answer(line, exchange, clients, question, now)
        self._count(exchange, line, question, now)
        if now.void:
            return clients, None
        line.sum.message[-1] = self.request.asked
        heard = channel.collect(line, now)
        if self.serves:
            self.requested = bool(line.reduced[-1])
        if not heard:
            return clients, None
        total = line.sum.total(line.reduced)
        if channel.recorder is not None:
            channel.recorder.opened(line, now, total)
        return clients, total

    def _answer_fused(self, adder: FloatSum, fused: object, question: Record, now: Round) -> None:
        who = np.flatnonzero(now.present[self._all.clients])
        if len(who):
            block = self._all.only(who)
            adder.set_fused(fused(question, block, now))  # type: ignore[operator]
        else:
            adder.begin(0)

    def _answer(
        self, line: Line, exchange: Exchange, clients: States, question: Record, now: Round
    ) -> States:
        channel, slowest = self._channel(exchange), 0.0
        channel.begin(line, now)
        add = channel.add if channel.recorder is None else channel.add_one_by_one
        clients = list(clients)
        for i, who, block in self._among(answering(exchange, now)):
            for some in np.arange(len(who))[:, None] if exchange.one_by_one else [np.arange(len(who))]:
                alone = len(some) == len(self.blocks[i].clients)
                before = clients[i] if alone else take(clients[i], who[some])
                start = time.perf_counter()
                states, answer = exchange.answer(before, question, block.only(some), now)
                slowest = max(slowest, (time.perf_counter() - start) / len(some))
                add(line, answer, block.clients[some], now)
                if states is not before:  # most clients keep nothing, or nothing new
                    clients[i] = self._put(i, clients[i], who[some], states, exchange, now)
        line.account.answer_s += slowest
        return clients

    def _put(
        self, i: int, state: Record, who: NDArray[np.int64], new: Record, exchange: Exchange, now: Round
    ) -> Record:
        """The states of block `i` with those of clients `who` renewed; where that is all, they may change shape.

        States of a round are this rank's own, and renewed where they lie: a copy of all for the sake of a few takes
        longer than the few take to compute. A measure may have begun with the algorithm's states, and copies them; and
        a round that may turn out void leaves them as they were.
        """
        if len(who) == len(self.blocks[i].clients):
            return new
        keeps = exchange.off_clock or now.leaving is not None
        return put(state, who, new) if keeps else put_in_place(state, who, new)

    def _among(self, chosen: NDArray[np.bool_]) -> Iterator[tuple[int, NDArray[np.int64], Block]]:
        """(number on this rank, positions of the clients chosen, their block) of each block with any."""
        if chosen.all():
            yield from ((i, np.arange(len(block.clients)), block) for i, block in enumerate(self.blocks))
            return
        for i, block in enumerate(self.blocks):
            who = np.flatnonzero(chosen[block.clients])
            if len(who):
                yield i, who, block.only(who)

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """Each block's clients who are still there absorb the sum, or the one client who is told it."""
        clients, alike, slowest = list(clients), None, 0.0
        for i, who, block in self._among(hearing(exchange, now)):
            start = time.perf_counter()
            if exchange.alike:
                first = np.arange(1)
                if alike is None:
                    alike = exchange.absorb(take(clients[i], who[first]), total, block.only(first), now)
                    slowest = time.perf_counter() - start
                heard = _repeated(alike, len(who))
            else:
                before = clients[i] if len(who) == len(self.blocks[i].clients) else take(clients[i], who)
                heard = exchange.absorb(before, total, block, now)
                slowest = max(slowest, (time.perf_counter() - start) / len(who))
            clients[i] = self._put(i, clients[i], who, heard, exchange, now)
        self._line(exchange).account.answer_s += slowest
        return clients

    def _count(self, exchange: Exchange, line: Line, question: Record, now: Round) -> None:
        account = line.account
        account.played += 1
        if not self.serves or exchange.off_clock:
            return
        # who takes part decides on all of it, but for clients who leave, and for answers of those who were here before
        who = now.present.tobytes() if now.leaving is None and line.memory is None else None
        if who is None or who != line.counted_for:
            line.spent, line.counted_for = self._spent(exchange, line, question, now), who
        account.add(line.spent)
        self.up_bytes += line.spent.up_bytes
        self.down_bytes += line.spent.down_bytes

    def _spent(self, exchange: Exchange, line: Line, question: Record, now: Round) -> Spent:
        """What one play of an exchange costs, as a deployment would have it."""
        asked, there, told = now.asked, answering(exchange, now), hearing(exchange, now)
        up, down = self._channel(exchange).traffic(line, now)
        own = sum(nbytes(leaf) for name, leaf in leaves(question) if name in exchange.told_by_columns)
        down = down + np.where(asked, nbytes(question) - own, 0)
        down += own // self.cells.columns.length * np.where(asked, self._widths, 0)
        opened = (line.values_told * told).max() if isinstance(exchange, ToClients) else line.values
        return Spent(
            up_bytes=int(up.sum()),
            down_bytes=int(down.sum()),
            up_most=int(up.max()),
            down_most=int(down.max()),
            sealed_most=int((line.values_sent * there).max()) if exchange.private else 0,
            opened_most=int(opened) if exchange.private else 0,
            added=int(line.values_sent @ there),
        )
