"""The federation at work: tells questions, collects answers of the clients present, adds them, counts bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import FloatSum, Sum, make_sum, names_field
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Exchange, States, ToClients
from mpifed.core.record import Layout, Record, leaves, map_leaves, nbytes, put, put_in_place, take
from mpifed.core.round import Round

_HEADER = 8  # bytes before a question: the server's order


class _Line:
    """What one exchange needs again every round: its sum, and the buffers of its question."""

    def __init__(self, adder: Sum, sent: NDArray[np.int64]) -> None:
        self.sum = adder
        self.sent = sent  # [N] bytes of each client's answer
        self.layout: Layout | None = None
        self.buffer: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.reduced = np.empty_like(adder.message)


def _repeated(state: Record, clients: int) -> Record:
    """The state [1, ...] of one client for so many, without copies."""
    return map_leaves(lambda leaf: np.broadcast_to(leaf[0], (clients, *leaf.shape[1:])), state)


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
    widths : [N] columns of each client, and `features` of all; for the account of bytes where data are split by columns
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
        widths: NDArray[np.int64] | None = None,
        features: int = 1,
    ) -> None:
        self.transport, self.blocks, self.clients = transport, list(blocks), clients
        self._settings: dict[str, Any] = {
            "exact": exact, "dtype": dtype, "bounds": dict(bounds or {}), "scales": dict(scales or {}),
        }  # fmt: skip
        self._widths = np.full(clients, features) if widths is None else widths
        self._features = features
        self._lines: dict[str, _Line] = {}
        self._all = Block(tuple(shard for block in blocks for shard in block.shards), dtype)
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

    def check_names(self, exchanges: Sequence[Exchange]) -> None:
        """Make ready for `exchanges`; UsageError when a bound or scale names none of their fields, or fits no grid."""
        known = [place.name for exchange in exchanges for place in self._line(exchange).sum.places]
        for table in ("bounds", "scales"):
            for name in self._settings[table]:
                if not any(names_field(name, field) for field in known):
                    raise UsageError(f'[sum.{table}] "{name}": no such field; known are {", ".join(known)}')

    def _line(self, exchange: Exchange) -> _Line:
        line = self._lines.get(exchange.name)
        if line is None:
            adder = make_sum(exchange, self.clients, **self._settings)
            line = _Line(adder, adder.sent(self._widths, self._features))
            self._lines[exchange.name] = line
        return line

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
        """Answers of the hosted clients who are present, summed over all ranks."""
        line = self._line(exchange)
        fused = getattr(exchange, "fused", None)
        if fused is not None and isinstance(line.sum, FloatSum):
            self._answer_fused(line.sum, fused, question, now)
        else:
            clients = self._answer(line.sum, exchange, clients, question, now)
        line.sum.message[-1] = self.request.asked
        self._count(exchange, line, question, now.present)
        if isinstance(exchange, ToClients):
            self.transport.reduce_all(line.sum.message, line.reduced)
        else:
            self.transport.reduce(line.sum.message, line.reduced if self.serves else None)
            if not self.serves:
                return clients, None
        self.requested = bool(line.reduced[-1])
        return clients, line.sum.total(line.reduced)

    def _answer_fused(self, adder: FloatSum, fused: object, question: Record, now: Round) -> None:
        who = np.flatnonzero(now.present[self._all.clients])
        if len(who):
            block = self._all.only(who)
            adder.set_fused(fused(question, block, now), block.clients)  # type: ignore[operator]
        else:
            adder.begin(0)

    def _answer(
        self, adder: Sum, exchange: Exchange, clients: States, question: Record, now: Round
    ) -> States:
        present = list(self._present(now))
        adder.begin(sum(len(who) for _, who, _ in present))
        clients = list(clients)
        for i, who, block in present:
            for some in np.arange(len(who))[:, None] if exchange.one_by_one else [np.arange(len(who))]:
                before = take(clients[i], who[some])
                states, answer = exchange.answer(before, question, block.only(some), now)
                adder.add(answer, block.clients[some])
                if states is not before:  # most clients keep nothing, or nothing new
                    clients[i] = self._put(i, clients[i], who[some], states, exchange)
        return clients

    def _put(self, i: int, state: Record, who: NDArray[np.int64], new: Record, exchange: Exchange) -> Record:
        """The states of block `i` with those of clients `who` renewed; where that is all, they may change shape.

        States of a round are this rank's own, and renewed where they lie: a copy of all for the sake of a few takes
        longer than the few take to compute. A measure may have begun with the algorithm's states, and copies them.
        """
        if len(who) == len(self.blocks[i].clients):
            return new
        return put(state, who, new) if exchange.off_clock else put_in_place(state, who, new)

    def _present(self, now: Round) -> Iterator[tuple[int, NDArray[np.int64], Block]]:
        """(number on this rank, positions of the clients present, their block) of each block with any."""
        if now.present.all():
            yield from ((i, np.arange(len(block.clients)), block) for i, block in enumerate(self.blocks))
            return
        for i, block in enumerate(self.blocks):
            who = np.flatnonzero(now.present[block.clients])
            if len(who):
                yield i, who, block.only(who)

    def hear(self, exchange: ToClients, clients: States, total: Record, now: Round) -> States:
        """Each block's present clients absorb the sum, or the one client who is told it."""
        clients, alike = list(clients), None
        for i, who, block in self._present(now):
            if exchange.hearer is not None:
                told = np.flatnonzero(block.clients == exchange.hearer)
                who, block = who[told], block.only(told)
                if not len(who):
                    continue
            if exchange.alike:
                first = np.arange(1)
                if alike is None:
                    alike = exchange.absorb(take(clients[i], who[first]), total, block.only(first), now)
                heard = _repeated(alike, len(who))
            else:
                heard = exchange.absorb(take(clients[i], who), total, block, now)
            clients[i] = self._put(i, clients[i], who, heard, exchange)
        return clients

    def _count(self, exchange: Exchange, line: _Line, question: Record, present: NDArray[np.bool_]) -> None:
        if not self.serves or exchange.off_clock:
            return
        self.up_bytes += int(line.sent[present].sum())
        own = sum(nbytes(leaf) for name, leaf in leaves(question) if name in exchange.told_by_columns)
        self.down_bytes += int(present.sum()) * (nbytes(question) - own)
        self.down_bytes += own // self._features * int(self._widths[present].sum())
        if isinstance(exchange, ToClients):
            hearers = present.sum() if exchange.hearer is None else present[exchange.hearer]
            self.down_bytes += int(hearers) * line.sum.nbytes
