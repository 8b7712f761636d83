"""Sums of answers: integers on each field's grid, the same in every channel.

A sum has a single flat buffer for all fields of its exchange, so that an exchange needs a single reduction. See
`mpifed.comm.message_layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.allreduce import SharedArrays
from mpifed.comm.message_layout import (
    Index,
    Place,
    client_out_of_bounds,
    merged,
    places_of,
    total_out_of_bounds,
)  # fmt: skip
from mpifed.comm.rank_parts import Runs
from mpifed.comm.transport import Transport
from mpifed.core.exchange import Exchange, Placed
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.maths.fixedpoint import Encoder, decode, outside


class Sum(Protocol):
    """Sum of an exchange's answers on this rank, ready to be reduced over ranks."""

    places: list[Place]
    message: NDArray[np.signedinteger]  # what the ranks reduce
    by_rank: Mapping[str, Runs] | None = None  # fields that rank 0 gathers, by `rank_parts`; None: not asked

    @property
    def nbytes(self) -> int:
        """Bytes of the sum, as a deployment would send it."""
        return self.message.itemsize * self.places[-1].stop

    def nbytes_of(self, values: Callable[[Place], NDArray[np.int64]]) -> NDArray[np.int64]:
        """[N] bytes that each client uploads or receives, where `values` gives the number of values of a field."""
        return np.asarray(self.message.itemsize * sum(place.form.limbs * values(place) for place in self.places))

    def begin(self, adds: bool) -> None:
        """Start a new sum; `adds`: whether answers will be added, the first of which overwrites the last sum."""

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Add the answers [n, ...] of `clients` [n]; NumericalError where a value is not within its field's bound."""

    def add_total(self, total: Record, clients: NDArray[np.int64]) -> None:
        """Add a sum of answers, rounded to the grid; NumericalError outside the bound times the number of `clients`."""

    def numbers(self, answer: Record, client: int) -> NDArray[np.signedinteger]:
        """The answer [1, ...] of a client as it is added to its positions in the message, field by field."""

    def check(self) -> None:
        """NumericalError if a value was out of bounds that nobody has looked at; before the sum is reduced."""

    def reduce(self, transport: Transport, everywhere: bool) -> NDArray[np.signedinteger] | None:
        """The message summed over all ranks, on ranks that receive it; `message` is overwritten. Collective."""

    def total(self, message: NDArray[np.signedinteger]) -> Record:
        """The sum, decoded from a reduced message."""


class ExactSum(Sum):
    """Integers on each field's grid: the same bits in any order of addition and on any number of ranks."""

    def __init__(self, fields: Record, places: list[Place]) -> None:
        self._fields, self.places = fields, places
        self._encoders = [Encoder(place.form, place.field.size) for place in self.places]
        self._anew = False  # whether the next answers overwrite the accumulators
        self._move_message(np.zeros(places[-1].stop + 1, dtype=f"int{places[0].form.bits}"))
        self._parts: dict[tuple[str, int], tuple[Encoder, NDArray[np.signedinteger]]] = {}
        self._shared: SharedArrays | None = None
        self._reduced = False  # whether it has ever been; from then on `_shared` stays what it is

    def _move_message(self, message: NDArray[np.signedinteger]) -> None:
        self.message = message
        self._accumulators = [message[place.start : place.stop] for place in self.places]

    def begin(self, adds: bool) -> None:
        self._anew = adds
        for place, accumulator in zip(self.places, self._accumulators, strict=True):
            if not adds or place.field.in_parts:
                accumulator.fill(0)

    def add(
        self, answer: Record, clients: NDArray[np.int64], public: Sequence[tuple[Array, float] | None] = ()
    ) -> None:
        """Round each client's values to the grid, and add them; NumericalError where one is not within its bound.

        `public` as in `SomeAnswers`: it is added in the dtype of the leaf, before values are rounded.
        """
        parts = zip(self.places, self._encoders, self._accumulators, bare_leaves(answer), strict=True)
        for number, (place, encoder, accumulator, leaf) in enumerate(parts):
            if place.field.in_parts:
                self._put(place, accumulator, leaf, clients)
                continue
            rows, also = place.rows(leaf, len(clients)), public[number] if public else None
            common, factor = (None, 1.0) if also is None else (also[0].reshape(-1), also[1])
            if not encoder.add(rows, accumulator, self._anew, common, factor):
                if common is not None:
                    rows = rows + common * common.dtype.type(factor)
                i = next(i for i, row in enumerate(rows) if outside(row, place.form.bound))
                raise client_out_of_bounds(place, int(clients[i]), rows[i])
        self._anew = False

    def add_total(self, total: Record, clients: NDArray[np.int64]) -> None:
        parts = zip(self.places, self._encoders, self._accumulators, bare_leaves(total), strict=True)
        for place, encoder, accumulator, leaf in parts:
            whole = place.whole(leaf)
            if not encoder.add_total(whole.reshape(-1), accumulator, len(clients), self._anew):
                raise total_out_of_bounds(place, clients, float(np.abs(whole).max()))
        self._anew = False

    def _put(
        self, place: Place, accumulator: NDArray[np.signedinteger], leaf: Array | Placed, clients: NDArray[np.int64]
    ) -> None:
        whole = accumulator.reshape(place.form.limbs, *place.field.shape)
        for coded, at in merged(self._scattered(place, whole, place.parts(leaf, clients))):
            for limb, part in enumerate(coded):
                whole[limb, ...][at] += part  # [limb, ...] is a view even where the field is a scalar

    def _scattered(
        self, place: Place, whole: NDArray[np.signedinteger], parts: Iterator[tuple[int, NDArray[np.floating], Index]]
    ) -> Iterator[tuple[NDArray[np.signedinteger], Index]]:
        """(integers [limbs, ...], index) of each client with scattered entries; contiguous ones are added here."""
        for client, values, at in parts:
            alone = place.form.limbs == 1 and isinstance(at, tuple) and isinstance(at[-1], slice)
            target = whole[0, ...][at] if alone else None
            if target is not None and target.flags.c_contiguous:
                encoder, _ = self._encoder(place, values.size)
                if not encoder.add(values.reshape(1, -1), target.reshape(-1)):
                    raise client_out_of_bounds(place, client, values)
            else:
                yield self._coded(place, client, values), at

    def _encoder(self, place: Place, size: int) -> tuple[Encoder, NDArray[np.signedinteger]]:
        """Encoder of `size` values of one client, and a buffer for the integers."""
        if (place.name, size) not in self._parts:
            buffer = np.empty(place.form.limbs * size, dtype=self.message.dtype)
            self._parts[place.name, size] = Encoder(place.form, size), buffer
        return self._parts[place.name, size]

    def _coded(self, place: Place, client: int, values: NDArray[np.floating]) -> NDArray[np.signedinteger]:
        """[limbs, ...] values of a client on the grid; overwritten by the next call of the same size."""
        encoder, coded = self._encoder(place, values.size)
        if not encoder.add(values.reshape(1, -1), coded, anew=True):
            raise client_out_of_bounds(place, client, values)
        return coded.reshape(place.form.limbs, *values.shape)

    def check(self) -> None:
        """Nothing: every value was checked when it was added."""

    def reduce(self, transport: Transport, everywhere: bool) -> NDArray[np.signedinteger] | None:
        """As `Sum.reduce`; from the first time on the message stands where the ranks of a node can read it."""
        if not self._reduced:
            self._reduced, self._shared = True, transport.shared(len(self.message), self.message.dtype)
            if self._shared is not None:
                self._shared.mine[:] = self.message
                self._move_message(self._shared.mine)
        if self._shared is not None and everywhere:
            return self._shared.reduce_all()
        rest = list(self._not_joined(transport))
        if self._shared is None:
            return self.message if reduce_in_place(transport, [self.message[at] for at in rest], everywhere) else None
        for at in rest:
            self._shared.reduce(at)
        return None if transport.rank else self.message

    def _not_joined(self, transport: Transport) -> Iterator[slice]:
        """What is left of the message once rank 0 has gathered the fields that each rank fills apart. Collective."""
        start, by_rank = 0, self.by_rank or {}
        for place, accumulator in zip(self.places, self._accumulators, strict=True):
            if place.name in by_rank:
                join(transport, accumulator, by_rank[place.name])
                if start < place.start:
                    yield slice(start, place.start)
                start = place.stop
        yield slice(start, len(self.message))

    def numbers(self, answer: Record, client: int) -> NDArray[np.signedinteger]:
        """Integers at the client's own positions; NumericalError where a value is not within its field's bound."""
        integers = []
        for place, leaf in zip(self.places, bare_leaves(answer), strict=True):
            for _, values, _ in place.parts_of(leaf, client):
                integers.append(self._coded(place, client, values).flatten())
        return np.concatenate(integers)

    def total(self, message: NDArray[np.signedinteger]) -> Record:
        """The sum, decoded into the job's dtype; scalars into float64."""
        arrays = (
            decode(message[place.start : place.stop], place.form, place.dtype).reshape(place.field.shape)
            for place in self.places
        )
        return map_leaves(lambda _: next(arrays)[()], self._fields)


def join(transport: Transport, field: Array, runs: Runs) -> None:
    """Put each rank's parts of a field into the array of rank 0. Collective."""
    for parts in runs:
        transport.join(field, parts)


def reduce_in_place(transport: Transport, arrays: Iterable[Array], everywhere: bool) -> bool:
    """Replace each array by its sum over all ranks; whether this rank has the sum. Collective."""
    if transport.size == 1:
        return True
    add = transport.reduce_all if everywhere else transport.reduce
    for array in arrays:
        add(array, array)
    return everywhere or transport.rank == 0


def make_sum(
    exchange: Exchange,
    clients: int,
    *,
    dtype: str,
    bounds: Mapping[str, float] = MappingProxyType({}),
    target_scale: float = 1.0,
) -> ExactSum:
    """Sum of an exchange's answers, of up to `clients` clients.

    `bounds`: by "exchange.field" or a record of fields; they override those that the algorithm declares. Raises
    UsageError when a field's bound and scale fit no grid.
    """
    dtype = "float64" if exchange.off_clock else dtype
    return ExactSum(exchange.fields, places_of(exchange, clients, dtype, bounds, target_scale))
