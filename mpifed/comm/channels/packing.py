"""Packing the integers of a message into the slots of ciphertexts, and unpacking their sum.

A slot holds sums up to a capacity. Where the sum of N clients' largest integers does not fit, each integer is split
into balanced limbs: digits to the base 2^w between -2^(w-1) and 2^(w-1) - 1, which are added without carries. The
number of limbs follows from a field's grid and the number of clients alone, so the sum is exact, as in every channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.sums import Message, Place, Positions
from mpifed.core.errors import BrokenProtocol, NumericalError
from mpifed.core.holdings import span

Integers: TypeAlias = NDArray[np.signedinteger]


class Packing(NamedTuple):
    """Slots of a ciphertext, and the integers that they can hold."""

    slots: int  # of one ciphertext
    capacity: int  # the largest sum in a slot, in absolute value
    clients: int  # N, whose uploads are added

    @property
    def each(self) -> int:
        """The largest integer of one client in a slot."""
        return self.capacity // self.clients

    @property
    def width(self) -> int:
        """Bits of a limb."""
        return self.each.bit_length()

    def blocks(self, size: int) -> int:
        """Number of ciphertexts for `size` slots."""
        return -(-size // self.slots)

    def limbs(self, largest: int) -> tuple[int, ...]:
        """Largest value of each limb, lowest limb first, of integers up to `largest`."""
        largest_limbs = []
        while largest > self.each:
            largest_limbs.append(2 ** (self.width - 1))
            largest = (largest + 2 ** (self.width - 1)) >> self.width
        return (*largest_limbs, largest)


class Segment(NamedTuple):
    """Entries of a message that are packed alike."""

    name: str
    at: slice | NDArray[np.int64]  # in the message
    size: int
    largest: int  # integer of one client, in absolute value
    limbs: tuple[int, ...]  # largest value of each limb


class Vector:
    """Parts of a message that are encrypted together, and the clients that send them."""

    def __init__(
        self, segments: list[Segment], senders: NDArray[np.bool_], packing: Packing, first: int, own: bool = False
    ) -> None:
        """`own`: whether only its senders receive the sum."""
        self.segments, self.senders, self.packing = segments, senders, packing  # senders [N]
        self.hearers = senders if own else np.ones_like(senders)  # [N] clients that may receive the sum
        self.size = sum(segment.size * len(segment.limbs) for segment in segments)  # slots
        self.numbers = range(first, first + packing.blocks(self.size))  # of its ciphertexts in the exchange

    def pack(self, integers: Integers, client: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """(number, slots) of the client's integers [m], by ciphertext; NumericalError where one is out of range."""
        slots, start, width = np.empty(self.size, dtype=np.int64), 0, self.packing.width
        for name, at, size, largest, limbs in self.segments:
            part = integers[at]
            most = max(int(part.max(initial=0)), -int(part.min(initial=0)))
            if most > largest:
                raise NumericalError(
                    f"{name}: client {client} sends the integer {most} (absolute value), outside the {largest} that "
                    "its bound and scale allow; nothing was encrypted. Lower the step size, or raise the bound in "
                    "[aggregation.bounds]"
                )
            for _ in limbs[1:]:
                low = ((part.astype(np.int64) + 2 ** (width - 1)) & (2**width - 1)) - 2 ** (width - 1)
                slots[start : start + size] = low
                part, start = (part - low) >> width, start + size
            slots[start : start + size] = part
            start += size
        for number, begin in zip(self.numbers, range(0, self.size, self.packing.slots), strict=True):
            yield number, slots[begin : begin + self.packing.slots]

    def unpack(self, opened: dict[int, NDArray[np.int64]], answers: int, message: Integers) -> None:
        """Write decrypted sums of `answers` clients into `message` [m]; BrokenProtocol where they are no such sums."""
        if not self.size:
            return
        slots = np.concatenate([opened[number] for number in self.numbers])
        if slots[self.size :].any():
            raise BrokenProtocol(f"{self.segments[0].name}: {_BROKEN} (unused slots are not zero)")
        start, width = 0, self.packing.width
        for name, at, size, largest, limbs in self.segments:
            total = np.zeros(size, dtype=np.int64)
            for i, most in enumerate(limbs):
                part = slots[start : start + size]
                _check(name, part, answers * most)
                total += part << (width * i)
                start += size
            _check(name, total, answers * largest)
            message[at] = total


_BROKEN = "what was decrypted is no sum of integers within the bounds: ciphertexts were altered, or have other keys"


def _check(name: str, part: NDArray[np.int64], most: int) -> None:
    if part.size and (int(part.max()) > most or int(part.min()) < -most):
        raise BrokenProtocol(f"{name}: {_BROKEN}")


def vectors(message: Message, packing: Packing) -> list[Vector]:
    """Parts of a message that are encrypted together.

    Either every client sends all entries, with zeros at those of others, or entries of single clients or groups of
    clients are encrypted separately: whichever takes fewer ciphertexts, counting all uploads and the sum.
    """
    everybody = np.ones(packing.clients, dtype=bool)
    all_places = [(place, slice(place.start, place.stop)) for place in message.places]
    whole = [Vector(list(_segments(all_places, packing)), everybody, packing, 0)]
    apart: list[Vector] = []
    for unit in message.units:
        first = apart[-1].numbers.stop if apart else 0
        apart.append(Vector(list(_segments(unit.at, packing)), unit.who, packing, first, own=unit.to_holders))
    own = any(unit.to_holders for unit in message.units)  # which no other client may receive
    return apart if own or _cost(apart) < _cost(whole) else whole


def _cost(vectors: list[Vector]) -> int:
    return sum(len(vector.numbers) * (1 + int(vector.senders.sum())) for vector in vectors)


def _segments(parts: Iterable[tuple[Place, Positions]], packing: Packing) -> Iterator[Segment]:
    """Entries of fields, by the limbs of their grids."""
    for place, at in parts:
        positions = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        for part, most in zip(positions.reshape(place.form.limbs, -1), place.form.largest, strict=True):
            yield Segment(place.name, span(part), len(part), most, packing.limbs(most))
