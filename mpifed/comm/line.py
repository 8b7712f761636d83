"""What one exchange needs again every time it is played, and where each client's numbers lie in its message."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accounts import Account, Spent
from mpifed.comm.places import Place
from mpifed.comm.sums import ExactSum
from mpifed.core.exchange import Exchange, Placed
from mpifed.core.holdings import Cells, size
from mpifed.core.record import Layout, Record, map_leaves


class Memory:
    """What clients last answered, where that goes on counting; of this rank. A channel may keep more of its own."""

    def __init__(self, clients: int) -> None:
        self.last: dict[int, NDArray[Any]] = {}  # by client of this rank: its numbers, those of its own places alone
        self.answered = np.zeros(clients, dtype=bool)  # [N] who ever has; alike on all ranks
        self.sealed: Any = None  # what the server carries, as the channel keeps it


class Line:
    """What one exchange needs again every time it is played: its sums, and the buffers of its question."""

    def __init__(self, exchange: Exchange, make: Any, cells: Cells, memory: Memory | None = None) -> None:
        """`make` gives a new sum of the exchange's fields; `memory` is that of an exchange with stale answers."""
        self.exchange, self._make, self.cells, self.memory = exchange, make, cells, memory
        self.sum: Any = make()  # ExactSum or FloatSum
        self.reduced = np.empty_like(self.sum.message)  # the sum as it was opened, where this rank may use it
        self.layout: Layout | None = None
        self.buffer: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self.sent = self.sum.nbytes_of(partial(Place.sizes, cells=cells))  # [N] bytes of each client's integers
        self.told = self.sum.nbytes_of(partial(Place.told, cells=cells))  # [N] of what each is told of the sum
        self.values = sum(place.field.size for place in self.sum.places)
        self.values_sent = sum(place.sizes(cells) for place in self.sum.places)  # [N] of each client
        self.values_told = sum(place.told(cells) for place in self.sum.places)  # [N]
        self.account, self.spent = Account(), Spent()
        self.counted_for: bytes | None = None  # of whom `spent` is
        self._alone: ExactSum | None = None
        self._positions: dict[tuple[str, int], slice | NDArray[np.int64]] = {}

    @property
    def alone(self) -> Any:
        """A sum for the answer of one client at a time."""
        if self._alone is None:
            self._alone = self._make()
        return self._alone

    def integers(self, answer: Record, i: int, client: int) -> NDArray[np.signedinteger]:
        """[m] what the answer of the `i`-th of several clients is on the grids; overwritten by the next one.

        Raises
        ------
        NumericalError
            when a value is not a number or outside its field's bound.
        """
        self.alone.begin(1)
        self.alone.add(one_of(answer, i), np.array([client]))
        found: NDArray[np.signedinteger] = self.alone.message[:-1]
        return found

    def positions(self, place: Place, client: int) -> slice | NDArray[np.int64] | None:
        """Where in the message the client's values of a field lie; None where another client sends them."""
        field = place.field
        if field.sender is not None and field.sender != client:
            return None
        held = self.cells.along(field)
        if held is None:
            return slice(place.start, place.stop)
        group = int(held.groups[client])
        found = self._positions.get((place.name, group))
        if found is None:
            found = self._positions[place.name, group] = places(place, held.members[group])
        return found

    def own(self, client: int) -> list[slice | NDArray[np.int64]]:
        """Where the client's values lie, field by field."""
        found = [self.positions(place, client) for place in self.sum.places]
        return [at for at in found if at is not None]

    def pick(self, message: NDArray[Any], client: int) -> NDArray[Any]:
        """A client's numbers, from a message [m]."""
        return np.concatenate([message[:0], *(message[at] for at in self.own(client))])

    def put(self, message: NDArray[Any], client: int, numbers: NDArray[Any]) -> None:
        """Add a client's numbers to a message [m]."""
        start = 0
        for at in self.own(client):
            stop = start + size(at, len(message))
            message[at] += numbers[start:stop]
            start = stop

    def add_last(self) -> None:
        """Begin the message with what all clients of this rank have last answered."""
        assert self.memory is not None
        self.sum.message[:-1] = 0
        for client in sorted(self.memory.last):
            self.put(self.sum.message, client, self.memory.last[client])


def places(place: Place, at: slice | NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Where in a message the places `at` along a field's axis lie, in all its limbs."""
    whole = np.arange(place.start, place.stop).reshape(place.form.limbs, *place.field.shape)
    found: NDArray[np.int64] = whole[(slice(None),) * (int(place.field.axis or 0) + 1) + (at,)].ravel()
    if len(found) and found[-1] - found[0] == len(found) - 1 and (np.diff(found) == 1).all():
        return slice(int(found[0]), int(found[-1]) + 1)
    return found


def one_of(answer: Record, i: int) -> Record:
    """The answers [1, ...] of the `i`-th client."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Placed):
            return Placed(leaf.values[i : i + 1], leaf.at[i : i + 1], leaf.size, leaf.axis)
        return leaf[i : i + 1]

    return map_leaves(one, answer)
