"""Sums of answers on a device: what clients answer there is added there, and one message crosses to memory.

The integers are those of the sums in memory, so all the rest, channels and reductions, is the same. Whether a value is
within its bound is looked at on the device as well; the outcome travels behind the message, in the same copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.places import Place, out_of_bounds, total_out_of_bounds
from mpifed.comm.sums import ExactSum, FloatSum, Sum, reduce_in_place
from mpifed.core.device import Device, any_on_device
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Placed
from mpifed.core.record import Array, Record, bare_leaves, index, namespace
from mpifed.maths.kernels_sums import add_encoded, add_floats, encoded, note_worst

_WORD = 8
_NOTE = 2 * _WORD  # bytes behind the message for each field: 1 + the client outside the bound, and its value


class DeviceSum:
    """A `Sum` whose answers may be on a device; `own` is that of the same exchange in memory."""

    def __init__(self, own: ExactSum | FloatSum, device: Device) -> None:
        self._own, self._device, self._exact = own, device, isinstance(own, ExactSum)
        self.places, self.message = own.places, own.message
        self._length, self.aware = own.places[-1].stop, device.aware
        self._behind = -(-own.message.nbytes // _WORD) * _WORD  # where the notes begin
        nbytes = self._behind + _NOTE * len(own.places)
        self._staged: NDArray[np.uint8] = device.pinned(nbytes, np.uint8)
        self._buffer = device.record(np.zeros(nbytes, np.uint8))
        self._sums = self._buffer[: own.message.nbytes].view(own.message.dtype)  # the last number as in the message
        self._worst = self._buffer[self._behind :].view(np.float64).reshape(-1, 2)
        self._clients = 0
        self._pending = False  # whether there is anything in the device's buffer
        self._who: tuple[bytes, Array] = b"", None
        self._blocks: dict[int, NDArray[np.int64]] = {}  # whose answers were summed first, by the first of them

    @property
    def nbytes(self) -> int:
        """Of the sum, as a deployment would send it."""
        return self._own.nbytes

    def nbytes_of(self, values: Callable[[Place], NDArray[np.int64]]) -> NDArray[np.int64]:
        """[N] bytes of what each client sends or is told."""
        return self._own.nbytes_of(values)

    def begin(self, clients: int) -> None:
        """Start over, for the answers of `clients` clients."""
        self._own.begin(0)
        self._clients, self._pending = clients, False
        self._blocks.clear()

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Add the answers [n, ...] of `clients` [n], on the device if any part of them is there."""
        if self._stays(answer):
            self._own.add(answer, clients)
            return
        self._touch()
        if self._who[0] != clients.tobytes():
            self._who = clients.tobytes(), self._device.record(clients)
        for number, (place, leaf) in enumerate(zip(self.places, bare_leaves(answer), strict=True)):
            worst = self._worst[number]
            if place.field.in_parts:
                self._put(place, leaf, clients, worst)
                continue
            rows = self._rows(place, leaf, len(clients))
            limbs = self._limbs(place)
            if self._exact:
                note_worst(rows, self._who[1], place.form.bound, worst)
                add_encoded(rows, place.form, limbs)
            else:
                add_floats(rows, limbs[0])

    def add_total(self, total: Record, clients: NDArray[np.int64]) -> None:
        """Add the sum of the answers of `clients`, rounded to the grid on the device if any part of it is there."""
        assert isinstance(self._own, ExactSum)
        if self._stays(total):
            self._own.add_total(total, clients)
            return
        self._touch()
        self._blocks[int(clients[0])] = clients
        first = self._device.record(clients[:1])
        for number, (place, leaf) in enumerate(zip(self.places, bare_leaves(total), strict=True)):
            rows = self._rows(place, leaf[None] if any_on_device(leaf) else np.asarray(leaf)[None], 1)
            note_worst(rows, first, place.form.bound * len(clients), self._worst[number])
            add_encoded(rows, place.form, self._limbs(place))

    def _stays(self, record: Record) -> bool:
        """Whether all of an answer is in memory; then so are all that will come."""
        if any_on_device(record):
            return False
        if self._clients:
            self._own.begin(self._clients)
            self._clients = 0
        return True

    def _touch(self) -> None:
        if not self._pending:
            self._buffer.fill(0)
            self._pending = True

    def _limbs(self, place: Place) -> list[Array]:
        """[size] of each limb."""
        size = place.field.size
        return [self._sums[start : start + size] for start in range(place.start, place.stop, size)] if size else []

    def _rows(self, place: Place, leaf: Any, clients: int) -> Array:
        """The leaf [n, ...] as contiguous [n, size] floats on the device."""
        if leaf.shape != (clients, *place.field.shape):
            raise UsageError(
                f"{place.name}: the answer of {clients} clients has shape {leaf.shape}, its field declares "
                f"({clients}, {', '.join(map(str, place.field.shape))}); the leading axis is clients"
            )
        array = self._device.record(leaf)
        array = array if array.dtype.kind == "f" else array.astype(np.float64)
        return namespace(array).ascontiguousarray(array.reshape(clients, -1))

    def _put(self, place: Place, leaf: Any, clients: NDArray[np.int64], worst: Array) -> None:
        """Add what clients have of a field that they fill in parts."""
        wholes = [one.reshape(place.field.shape) for one in self._limbs(place)]
        for i, values, at in self._parts(place, leaf, clients):
            if self._exact:
                note_worst(values.reshape(1, -1), self._who[1][i : i + 1], place.form.bound, worst)
                coded = list(encoded(values.reshape(-1), place.form).reshape(-1, *values.shape))
            else:
                coded = [values]
            for whole, part in zip(wholes, coded, strict=True):
                scattered = at is not ... and not isinstance(at[-1], slice)
                if scattered:
                    whole[at] = whole[at] + part
                else:
                    target = whole[at]
                    target += part

    def _parts(self, place: Place, leaf: Any, clients: NDArray[np.int64]) -> Iterator[tuple[int, Array, Any]]:
        """(number among these, its values, where they go) of each client who has any."""
        if not isinstance(leaf, Placed):
            rows = self._rows(place, leaf, len(clients))
            for i in np.flatnonzero(clients == place.field.sender).tolist():
                yield i, rows[i].reshape(place.field.shape), ...
            return
        there = leaf.moved(self._device.record)
        for i, (_, values, at) in enumerate(place.parts(there, clients)):
            own = tuple(index(values, one) for one in at)
            yield i, namespace(values).ascontiguousarray(values), own

    def set_fused(self, total: Record) -> None:
        """Begin with a sum of answers, and end with it."""
        self._own.begin(0)
        if not any_on_device(total):
            assert isinstance(self._own, FloatSum)
            self._own.set_fused(total)
            return
        self._touch()
        for place, leaf in zip(self.places, bare_leaves(total), strict=True):
            flat = leaf.reshape(-1) if any_on_device(leaf) else self._device.record(np.reshape(leaf, -1))
            self._sums[place.start : place.stop] = flat

    def numbers(self, answer: Record, client: int) -> NDArray[Any]:
        """What the answer [1, ...] of one client, in memory, puts into its own places of the message."""
        return self._own.numbers(answer, client)

    def check(self, clients: NDArray[np.int64]) -> None:
        """Bring what was added on the device to the message; refuse it where a value was out of bounds."""
        if not self._pending:
            self._own.check(clients)
            return
        if self.aware:
            if self._exact:
                self._look(self._worst.get())
            elif not bool(namespace(self._sums).isfinite(self._sums[:-1]).all()):
                self._buffer.get(out=self._staged)
                self.message[:] = self._staged[: self.message.nbytes].view(self.message.dtype)
                self._own.check(clients)
            return
        self._buffer.get(out=self._staged)
        self._pending = False
        self._look(self._staged[self._behind :].view(np.float64).reshape(-1, 2))
        self.message[:-1] += self._staged[: self._length * self.message.itemsize].view(self.message.dtype)
        self._own.check(clients)

    def _look(self, worst: NDArray[np.float64]) -> None:
        """NumericalError where a value was out of bounds; [fields, 2] as `note_worst` has left it."""
        for place, (client, largest) in zip(self.places, worst.tolist(), strict=True):
            if client:
                block = self._blocks.get(int(client) - 1)
                if block is not None:
                    raise total_out_of_bounds(place, block, largest)
                raise out_of_bounds(place, int(client) - 1, largest)

    def reduce(self, transport: Any, everywhere: bool) -> NDArray[Any] | None:
        """Taken from the devices by MPI where it is aware of them."""
        if not self.aware:
            return self._own.reduce(transport, everywhere)
        xp = namespace(self._sums)
        if self._pending:
            self._sums[-1:] = self._device.record(self.message[-1:])
            self._pending = False
        else:
            self._sums[:] = self._device.record(self.message)
        xp.cuda.get_current_stream().synchronize()  # MPI does not wait for kernels
        if not reduce_in_place(transport, [self._sums], everywhere, transport.direct):
            return None
        self._sums.get(out=self.message)
        return self.message

    def total(self, message: NDArray[Any]) -> Record:
        """The sum that a reduced message stands for."""
        return self._own.total(message)


def on_device(own: Any, device: Device) -> Sum:
    """The sum for answers of that device: `own` itself where it is the processor."""
    return own if device.on_host else DeviceSum(own, device)
