"""What an exchange reuses whenever it runs, and which positions of its message each client fills."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accumulate import ExactSum
from mpifed.comm.cost_accounts import CostAccount, Spent
from mpifed.comm.message_layout import Place
from mpifed.comm.transport import Bytes, Transport
from mpifed.core.errors import NumericalError
from mpifed.core.exchange import Exchange, Placed
from mpifed.core.holdings import Cells, size
from mpifed.core.record import Array, PackedRecord, Record, map_leaves

_HEADER = 8  # bytes of a broadcast before the question: the server's order


class StaleAnswers:
    """Last answers of this rank's clients, where later sums still include them; a channel may store more."""

    def __init__(self, clients: int) -> None:
        self.last: dict[int, np.ndarray] = {}  # by client of this rank: the integers at its own positions
        self.answered = np.zeros(clients, dtype=bool)  # [N] whether each client ever has; alike on all ranks
        self.sealed: Any = None  # what the server stores, in the channel's own form


class Broadcast:
    """An exchange's broadcasts: order and question in one message, but for long fields; laid out by the first."""

    def __init__(self) -> None:
        self._layout: PackedRecord | None = None
        self._buffer: Bytes = np.zeros(0, dtype=np.uint8)

    def send(self, transport: Transport, order: int, question: Record) -> tuple[int, Record, float]:
        """(rank 0's order, its question, seconds until both are there); views until the next broadcast. Collective."""
        serves = transport.rank == 0
        if self._layout is None:
            self._layout = transport.share(PackedRecord(question) if serves else None)
            self._buffer = np.zeros(_HEADER + self._layout.nbytes, dtype=np.uint8)
        header, packed = self._buffer[:_HEADER].view(np.int64), self._buffer[_HEADER:]
        if serves:
            header[0] = order
            long = self._layout.pack(question, packed, to_send=True)
        else:
            long = self._layout.long(packed)
        start = time.perf_counter()
        for part in (self._buffer[: _HEADER + self._layout.short], *long):
            transport.broadcast(part)
        seconds = time.perf_counter() - start
        return int(header[0]), question if serves else self._layout.unpack(packed), seconds


class ExchangePlan:
    """What an exchange reuses whenever it runs: its sums, and its broadcast."""

    def __init__(
        self,
        exchange: Exchange,
        make: Callable[[], Any],  # any of the sums
        cells: Cells,
        stale: StaleAnswers | None = None,
    ) -> None:
        """`make` returns a new sum of the exchange's fields; `stale` is given for an exchange with stale answers."""
        self.exchange, self._make, self.cells, self.stale = exchange, make, cells, stale
        self.sum: Any = make()  # ExactSum or DeviceSum; `add` of the former takes more
        self.reduced = np.empty_like(self.sum.message)  # the opened sum, where this rank may use it
        self.broadcast = Broadcast()
        self.sent = self.sum.nbytes_of(partial(Place.sizes, cells=cells))  # [N] bytes that each client uploads
        self.received = self.sum.nbytes_of(partial(Place.received, cells=cells))  # [N] of the sum that each receives
        self.values = sum(place.field.size for place in self.sum.places)
        self.values_sent = sum(place.sizes(cells) for place in self.sum.places)  # [N] values that each client uploads
        self.values_received = sum(place.received(cells) for place in self.sum.places)  # [N] receives
        self.account, self.spent = CostAccount(), Spent()
        self.counted_for: bytes | None = None  # the participation for which `spent` holds
        self._alone: ExactSum | None = None
        self._positions: dict[tuple[str, int], slice | NDArray[np.int64]] = {}

    @property
    def alone(self) -> Any:  # as `sum`
        """A sum for the answer of a single client."""
        if self._alone is None:
            self._alone = self._make()
        return self._alone

    def integers(self, answer: Record, i: int, client: int) -> NDArray[np.signedinteger]:
        """[m] the `i`-th client's answer on the grids, until the next call; NumericalError if it is out of bounds."""
        self.alone.begin(True)
        self.alone.add(answer_of(answer, i), np.array([client]))
        message: NDArray[np.signedinteger] = self.alone.message[:-1]
        return message

    def positions(self, place: Place, client: int) -> slice | NDArray[np.int64] | None:
        """Positions in the message of the client's values of a field; None where another client sends them."""
        field = place.field
        if field.sender is not None and field.sender != client:
            return None
        held = self.cells.along(field)
        if held is None:
            return slice(place.start, place.stop)
        group = int(held.groups[client])
        positions = self._positions.get((place.name, group))
        if positions is None:
            positions = self._positions[place.name, group] = places(place, held.members[group])
        return positions

    def own(self, client: int) -> list[slice | NDArray[np.int64]]:
        """Positions of the client's values, field by field."""
        by_field = [self.positions(place, client) for place in self.sum.places]
        return [at for at in by_field if at is not None]

    def pick(self, message: np.ndarray, client: int) -> np.ndarray:
        """The entries of a message [m] that a client fills."""
        return np.concatenate([message[:0], *(message[at] for at in self.own(client))])

    def put(self, message: np.ndarray, client: int, numbers: np.ndarray) -> None:
        """Add `numbers` at the positions of a message [m] that a client fills."""
        start = 0
        for at in self.own(client):
            stop = start + size(at, len(message))
            message[at] += numbers[start:stop]
            start = stop

    def check_range(self, integers: NDArray[np.signedinteger], client: int) -> None:
        """NumericalError, naming field and client, where integers [m] encode no values within the bounds."""
        for place in self.sum.places:
            size = (place.stop - place.start) // place.form.limbs
            for limb, most in enumerate(place.form.largest):
                part = integers[place.start + limb * size : place.start + (limb + 1) * size]
                if part.max(initial=0) > most or part.min(initial=0) < -most:
                    raise NumericalError(
                        f"{place.name}: client {client} sends an integer outside +-{most}, which its bound "
                        f"{place.form.bound:g} and scale {place.form.scale:g} allow; it is not sealed"
                    )

    def add_last(self) -> None:
        """Set the message to the sum of the last answers of all clients of this rank."""
        assert self.stale is not None
        self.sum.message[:-1] = 0
        for client in sorted(self.stale.last):
            self.put(self.sum.message, client, self.stale.last[client])


def places(place: Place, at: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Positions in a message of the entries `at` along a field's axis, in all its limbs."""
    whole = np.arange(place.start, place.stop).reshape(place.form.limbs, *place.field.shape)
    positions: NDArray[np.int64] = whole[(slice(None),) * (int(place.field.axis or 0) + 1) + (at,)].ravel()
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1 and (np.diff(positions) == 1).all():
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions


def answer_of(answer: Record, i: int) -> Record:
    """The answer [1, ...] of the `i`-th client, out of the answers [n, ...] of several."""

    def row(leaf: Array | Placed) -> Array | Placed:
        if isinstance(leaf, Placed):
            return Placed(leaf.values[i : i + 1], leaf.at[i : i + 1], leaf.size, leaf.axis)
        return leaf[i : i + 1]

    return map_leaves(row, answer)
