"""Sums of answers on a GPU: answers are added where they were computed, and one message is copied to the host.

The integers are those of the sums on the host, so channels and reductions are the same. Bounds are checked on the
device as well; the result is appended to the message and copied with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.accumulate import ExactSum, Sum
from mpifed.comm.message_layout import Index, Place, out_of_bounds, total_out_of_bounds
from mpifed.comm.transport import Transport
from mpifed.core.device import Device, any_on_device
from mpifed.core.exchange import Placed
from mpifed.core.record import Array, Record, bare_leaves, index, namespace
from mpifed.maths.kernels_sums import add_encoded, encoded, note_worst

_WORD = 8
_CHECK = 2 * _WORD  # bytes behind the message for each field: 1 + the client outside the bound, and its value


class DeviceSum(Sum):
    """A `Sum` whose answers may be on a device; `host_sum` is the sum of the same exchange on the host."""

    def __init__(self, host_sum: ExactSum, device: Device) -> None:
        self._host_sum, self._device = host_sum, device
        self.places, self.message = host_sum.places, host_sum.message
        self._length = host_sum.places[-1].stop
        self._behind = -(-host_sum.message.nbytes // _WORD) * _WORD  # where the results of the bound checks begin
        nbytes = self._behind + _CHECK * len(host_sum.places)
        self._staged: NDArray[np.uint8] = device.pinned(nbytes, np.uint8)
        self._buffer: Any = device.record(np.zeros(nbytes, np.uint8))  # NumPy's or CuPy's: here `get` is called
        # as above; the last number as in the message
        self._sums: Any = self._buffer[: host_sum.message.nbytes].view(host_sum.message.dtype)
        self._worst: Any = self._buffer[self._behind :].view(np.float64).reshape(-1, 2)  # as above
        self._adds = False
        self._pending = False  # whether the device's buffer holds values not yet copied
        self._clients_there: tuple[bytes, Array] = b"", self._sums[:0]  # as bytes, on the device
        self._blocks: dict[int, NDArray[np.int64]] = {}  # clients of each block, by its first

    def begin(self, adds: bool) -> None:
        self._host_sum.begin(False)
        self._adds, self._pending = adds, False
        self._blocks.clear()

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Add the answers [n, ...] of `clients` [n], on the device if any of their arrays is there."""
        if self._on_host(answer):
            self._host_sum.add(answer, clients)
            return
        self._clear_once()
        if self._clients_there[0] != clients.tobytes():
            self._clients_there = clients.tobytes(), self._device.record(clients)
        for number, (place, leaf) in enumerate(zip(self.places, bare_leaves(answer), strict=True)):
            worst = self._worst[number]
            if place.field.in_parts:
                self._put(place, leaf, clients, worst)
                continue
            rows = self._rows(place, leaf, len(clients))
            note_worst(rows, self._clients_there[1], place.form.bound, worst)
            add_encoded(rows, place.form, self._limbs(place))

    def add_total(self, total: Record, clients: NDArray[np.int64]) -> None:
        """Add the sum of the answers of `clients`, rounded to the grid on the device if any of its arrays is there."""
        if self._on_host(total):
            self._host_sum.add_total(total, clients)
            return
        self._clear_once()
        self._blocks[int(clients[0])] = clients
        first = self._device.record(clients[:1])
        for number, (place, leaf) in enumerate(zip(self.places, bare_leaves(total), strict=True)):
            rows = self._rows(place, leaf[None] if any_on_device(leaf) else np.asarray(leaf)[None], 1)
            note_worst(rows, first, place.form.bound * len(clients), self._worst[number])
            add_encoded(rows, place.form, self._limbs(place))

    def _on_host(self, record: Record) -> bool:
        """Whether all arrays of an answer are on the host; then those of later answers are too."""
        if any_on_device(record):
            return False
        if self._adds:
            self._host_sum.begin(True)
            self._adds = False
        return True

    def _clear_once(self) -> None:
        if not self._pending:
            self._buffer.fill(0)
            self._pending = True

    def _limbs(self, place: Place) -> list[Array]:
        """Views [size] of the sum, one for each limb."""
        size = place.field.size
        return [self._sums[start : start + size] for start in range(place.start, place.stop, size)] if size else []

    def _rows(self, place: Place, leaf: Array, clients: int) -> Array:
        """The leaf [n, ...] as contiguous [n, size] floats on the device."""
        place.check(leaf.shape, clients)
        array = self._device.record(leaf)
        array = array if array.dtype.kind == "f" else array.astype(np.float64)
        return namespace(array).ascontiguousarray(array.reshape(clients, -1))

    def _put(self, place: Place, leaf: Array, clients: NDArray[np.int64], worst: Array) -> None:
        wholes = [limb.reshape(place.field.shape) for limb in self._limbs(place)]
        for i, values, at in self._parts(place, leaf, clients):
            note_worst(values.reshape(1, -1), self._clients_there[1][i : i + 1], place.form.bound, worst)
            coded = encoded(values.reshape(-1), place.form).reshape(-1, *values.shape)
            for whole, part in zip(wholes, coded, strict=True):
                scattered = at is not ... and not isinstance(at[-1], slice)
                if scattered:
                    whole[at] = whole[at] + part
                else:
                    target = whole[at]
                    target += part

    def _parts(self, place: Place, leaf: Array, clients: NDArray[np.int64]) -> Iterator[tuple[int, Array, Index]]:
        """(position in `clients`, values, index into the field) of each client who fills a part of the field."""
        if not isinstance(leaf, Placed):
            rows = self._rows(place, leaf, len(clients))
            for i in np.flatnonzero(clients == place.field.sender).tolist():
                yield i, rows[i].reshape(place.field.shape), ...
            return
        moved = leaf.moved(self._device.record)
        for i, (_, values, at) in enumerate(place.parts(moved, clients)):
            assert isinstance(at, tuple)
            yield i, namespace(values).ascontiguousarray(values), tuple(index(values, axis) for axis in at)

    def numbers(self, answer: Record, client: int) -> NDArray[np.signedinteger]:
        return self._host_sum.numbers(answer, client)

    def check(self) -> None:
        """Copy the sum on the device to the message; NumericalError where a value was out of bounds."""
        if not self._pending:
            return
        self._buffer.get(out=self._staged)
        self._pending = False
        self._check_bounds(self._staged[self._behind :].view(np.float64).reshape(-1, 2))
        self.message[:-1] += self._staged[: self._length * self.message.itemsize].view(self.message.dtype)

    def _check_bounds(self, worst: NDArray[np.float64]) -> None:
        """NumericalError where a value was out of bounds, by `worst` [fields, 2], the output of `note_worst`."""
        for place, (client, largest) in zip(self.places, worst.tolist(), strict=True):
            if client:
                block = self._blocks.get(int(client) - 1)
                if block is not None:
                    raise total_out_of_bounds(place, block, largest)
                raise out_of_bounds(place, int(client) - 1, largest)

    def reduce(self, transport: Transport, everywhere: bool) -> NDArray[np.signedinteger] | None:
        reduced = self._host_sum.reduce(transport, everywhere)
        self.message = self._host_sum.message  # it may have moved into memory that the ranks share
        return reduced

    def total(self, message: NDArray[np.signedinteger]) -> Record:
        return self._host_sum.total(message)


def on_device(host_sum: ExactSum, device: Device) -> Sum:
    """The sum for answers on that device: `host_sum` itself where it is the CPU."""
    return host_sum if device.on_host else DeviceSum(host_sum, device)
