"""Sums of answers on a device: added where they were computed; one message is copied to the host.

The integers are those of the sums on the host, so channels and reductions are the same. Bounds are checked on the
device as well; the outcome is copied with the message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.sums import Integers, Message, Place, out_of_bounds, total_out_of_bounds
from mpifed.core.device import Device
from mpifed.core.exchange import Placed
from mpifed.core.record import Array, index, namespace
from mpifed.maths.kernels_sums import add_encoded, encoded, note_worst

_WORD = 8


class DeviceSum:
    """What answers on the device add to a message."""

    def __init__(self, message: Message, device: Device) -> None:
        self._places, self._device = message.places, device
        self._behind = -(-message.nbytes // _WORD) * _WORD  # where the outcomes of the checks of bounds begin
        # NumPy's or CuPy's: here `get` is called
        self._buffer: Any = device.record(np.zeros(self._behind + 2 * _WORD * len(message.places), np.uint8))
        self._sums: Any = self._buffer[: message.nbytes].view(message.dtype)
        self._worst: Any = self._buffer[self._behind :].view(np.float64).reshape(-1, 2)  # as `note_worst` fills it
        self._pending = False  # whether the buffer holds values not yet copied
        self._clients: tuple[bytes, Array] = b"", self._sums[:0]  # as bytes, on the device
        self._blocks: dict[int, NDArray[np.int64]] = {}  # the clients of each sum over a block, by the first of them

    def begin(self) -> None:
        """Start a new sum."""
        self._pending = False
        self._blocks.clear()
        self._buffer.fill(0)

    def add(self, number: int, leaf: Array | Placed, clients: NDArray[np.int64]) -> None:
        """Add the answers [n, ...] of `clients` [n] to the field of that number."""
        place, self._pending = self._places[number], True
        if self._clients[0] != clients.tobytes():
            self._clients = clients.tobytes(), self._device.record(clients)
        if place.held is None:
            self._add(number, leaf, len(clients), self._clients[1], place.form.bound)
            return
        wholes = [limb.reshape(place.shape) for limb in self._limbs(place)]
        first = {client: i for i, client in enumerate(clients.tolist())}
        for client, values, at in place.parts(leaf, clients):
            values, i = namespace(values).ascontiguousarray(values), first[client]
            note_worst(values.reshape(1, -1), self._clients[1][i : i + 1], place.form.bound, self._worst[number])
            assert isinstance(at, tuple)
            where = tuple(index(values, axis) for axis in at)
            for whole, part in zip(wholes, encoded(values.reshape(-1), place.form), strict=True):
                whole[where] = whole[where] + part.reshape(values.shape)

    def add_total(self, number: int, leaf: Array, clients: NDArray[np.int64]) -> None:
        """Add the sum of the answers of `clients`, a block, to the field of that number."""
        place, self._pending = self._places[number], True
        self._blocks[int(clients[0])] = clients
        self._add(number, leaf[None], 1, self._device.record(clients[:1]), place.form.bound * len(clients))

    def _add(self, number: int, leaf: Array | Placed, rows: int, clients: Array, bound: float) -> None:
        place = self._places[number]
        values = place.rows(leaf, rows)
        values = namespace(values).ascontiguousarray(values)
        note_worst(values, clients, bound, self._worst[number])
        add_encoded(values, place.form, self._limbs(place))

    def _limbs(self, place: Place) -> list[Array]:
        """Views [size] of the sum, one for each limb."""
        size = place.field.size
        return [self._sums[start : start + size] for start in range(place.start, place.stop, size)] if size else []

    def add_to(self, numbers: Integers) -> None:
        """Add the sum to `numbers` [m] on the host; NumericalError where a value was out of bounds."""
        if not self._pending:
            return
        copied = self._buffer.get()
        for place, (client, largest) in zip(
            self._places, copied[self._behind :].view(np.float64).reshape(-1, 2), strict=True
        ):
            block = self._blocks.get(int(client) - 1)
            if client:
                raise (
                    total_out_of_bounds(place, block, largest)
                    if block is not None
                    else out_of_bounds(place, int(client) - 1, largest)
                )
        numbers += copied[: numbers.nbytes].view(numbers.dtype)
        self.begin()
