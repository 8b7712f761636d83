"""Sums of answers: integers on each field's grid, the same in every channel, or floats.

A sum has one flat buffer for all fields of its exchange, so that an exchange is one reduction. The last number of
the buffer is the system's own: how many ranks ask for the run to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Exchange, Field, Placed
from mpifed.core.holdings import Cells
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.maths.fixedpoint import Encoder, Grid, decode, grid, outside


class Place:
    """One field's place in the message, which is in `message_dtype` for float sums; its sum is in `dtype`."""

    def __init__(self, name: str, field: Field, form: Grid, start: int, dtype: str) -> None:
        self.name, self.field, self.form, self.start = name, field, form, start
        self.stop = start + form.limbs * field.size
        self.message_dtype = dtype
        self.dtype = dtype if field.shape else "float64"

    def rows(self, leaf: Any, clients: int) -> NDArray[np.floating]:
        """The leaf [n, ...] as [n, size] floats."""
        array = np.asarray(leaf)
        if array.shape != (clients, *self.field.shape):
            raise UsageError(
                f"{self.name}: the answer of {clients} clients has shape {array.shape}, its field declares "
                f"({clients}, {', '.join(map(str, self.field.shape))}); the leading axis is clients"
            )
        return _floats(array).reshape(clients, -1)

    def whole(self, leaf: Any) -> NDArray[np.floating]:
        """A sum of answers, of the field's shape."""
        array = np.asarray(leaf)
        if array.shape != self.field.shape:
            raise UsageError(f"{self.name}: the sum has shape {array.shape}, its field declares {self.field.shape}")
        return _floats(array)

    def parts(self, leaf: Any, clients: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.floating], Any]]:
        """Of a field that is filled in parts: (client, its values, where they go) for each who has any.

        The place is an index into an array of the field's shape.
        """
        if not isinstance(leaf, Placed):
            for client, values in zip(clients.tolist(), self.rows(leaf, len(clients)), strict=True):
                if client == self.field.sender:
                    yield client, values.reshape(self.field.shape), ...
            return
        axis = self.field.axis or 0
        for client, values, at in zip(clients.tolist(), leaf.values, leaf.at, strict=True):
            shape = list(self.field.shape)
            shape[axis] = len(range(*at.indices(shape[axis]))) if isinstance(at, slice) else len(at)
            if values.shape != tuple(shape):
                raise UsageError(
                    f"{self.name}: client {client} answers with shape {values.shape} for {shape[axis]} places of its "
                    f"own, its field declares {tuple(shape)}"
                )
            yield client, _floats(values), (slice(None),) * axis + (at,)

    def parts_of(self, leaf: Any, client: int) -> Iterator[tuple[int, NDArray[np.floating], Any]]:
        """`parts` of the answer [1, ...] of one client, of any field."""
        if self.field.in_parts:
            yield from self.parts(leaf, np.array([client]))
        else:
            yield client, self.rows(leaf, 1).reshape(self.field.shape), ...

    def sizes(self, cells: Cells) -> NDArray[np.int64]:
        """[N] values that each client fills."""
        held = cells.along(self.field)
        if held is not None:
            return self.field.size // held.length * held.widths
        everybody = np.full(len(cells.rows.groups), self.field.size)
        if self.field.sender is not None:
            everybody[np.arange(len(everybody)) != self.field.sender] = 0
        return everybody

    def told(self, cells: Cells) -> NDArray[np.int64]:
        """[N] values that each client is told, if it hears the sum."""
        if self.field.rows is not None:
            return self.sizes(cells)
        return np.full(len(cells.rows.groups), self.field.size)


def _floats(array: NDArray[Any]) -> NDArray[np.floating]:
    return array if array.dtype.kind == "f" else array.astype(np.float64)


class Sum(Protocol):
    """The sum of one exchange's answers on this rank, ready to be reduced over the ranks."""

    places: list[Place]
    message: NDArray[Any]  # what travels between ranks

    @property
    def nbytes(self) -> int:
        """Of the sum, as a deployment would send it."""

    def nbytes_of(self, values: Callable[[Place], NDArray[np.int64]]) -> NDArray[np.int64]:
        """[N] bytes of what each client sends or is told, of which `values` says how many values it is of a field."""

    def begin(self, clients: int) -> None:
        """Start over, for the answers of `clients` clients."""

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Add the answers [n, ...] of `clients` [n]."""

    def numbers(self, answer: Record, client: int) -> NDArray[Any]:
        """What the answer [1, ...] of one client puts into its own places of the message, field by field."""

    def check(self, clients: NDArray[np.int64]) -> None:
        """Refuse, with NumericalError, a sum of the answers of `clients` that is none; before it is reduced."""

    def total(self, message: NDArray[Any]) -> Record:
        """The sum that a reduced message stands for."""


def _places(
    exchange: Exchange, clients: int, dtype: str, exact: bool, bounds: Mapping[str, float], scales: Mapping[str, float]
) -> list[Place]:
    found: list[tuple[str, Field]] = []
    forms: list[Grid] = []
    for leaf, field in leaves(exchange.fields):
        name = f"{exchange.name}.{leaf}".rstrip(".")
        bound, scale = named(bounds, name) or field.bound, named(scales, name) or field.scale
        try:
            forms.append(grid(scale, bound, clients, dtype) if exact else Grid(scale, bound, 1))
        except ValueError as error:
            raise UsageError(f"[sum] {name}: {error}; lower the bound or raise the scale of this field") from error
        found.append((name, field))
    if any(form.bits == 64 for form in forms):
        forms = [form.wide() for form in forms]  # a message has one kind of number
    places: list[Place] = []
    start = 0
    for (name, field), form in zip(found, forms, strict=True):
        places.append(Place(name, field, form, start, dtype))
        start = places[-1].stop
    return places


def names_field(name: str, field: str) -> bool:
    """Whether `name` is that of the field, or of a record that it is in."""
    return f"{field}.".startswith(f"{name}.")


def named(settings: Mapping[str, float], field: str) -> float | None:
    """The setting of a field by its name, or by the longest name of a record that it is in."""
    names = [name for name in settings if names_field(name, field)]
    return settings[max(names, key=len)] if names else None


class _Message:
    """The flat buffer of a sum, and its size."""

    places: list[Place]
    message: NDArray[Any]

    @property
    def nbytes(self) -> int:
        """Of the sum."""
        return self.message.itemsize * self.places[-1].stop

    def nbytes_of(self, values: Callable[[Place], NDArray[np.int64]]) -> NDArray[np.int64]:
        """[N] bytes."""
        return np.asarray(self.message.itemsize * sum(place.form.limbs * values(place) for place in self.places))


def _added_first(parts: Iterable[tuple[NDArray[Any], Any]]) -> Iterator[tuple[NDArray[Any], Any]]:
    """(values, where they go): those that go to the same scattered places one after the other, in one sum.

    Adding at an array of positions takes several times as long as adding what lies side by side.
    """
    kept: NDArray[Any] | None = None
    where: Any = None
    for values, at in parts:
        scattered = at[-1] if isinstance(at, tuple) and isinstance(at[-1], np.ndarray) else None
        if scattered is None:
            yield values, at
        elif kept is not None and scattered is where[-1]:
            kept += values
        else:
            if kept is not None:
                yield kept, where
            kept, where = values.copy(), at
    if kept is not None:
        yield kept, where


class ExactSum(_Message):
    """Integers on each field's grid: the same bits in whatever order and on whatever ranks they are added."""

    def __init__(self, fields: Record, places: list[Place]) -> None:
        self._fields, self.places = fields, places
        self._encoders = [Encoder(place.form, place.field.size) for place in self.places]
        self._clients, self._begun = 0, False
        self.message = np.zeros(places[-1].stop + 1, dtype=f"int{places[0].form.bits}")
        self._accumulators = [self.message[place.start : place.stop] for place in places]
        self._parts: dict[tuple[str, int], tuple[Encoder, NDArray[np.signedinteger]]] = {}

    def begin(self, clients: int) -> None:
        """Make ready for `clients` additions."""
        self._clients, self._begun = clients, False
        for place, accumulator in zip(self.places, self._accumulators, strict=True):
            if not clients or place.field.in_parts:
                accumulator.fill(0)

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Round each client's values to the grid, and add.

        Raises
        ------
        NumericalError
            when a value is not a number or outside its field's bound.
        """
        parts = zip(self.places, self._encoders, self._accumulators, leaves(answer), strict=True)
        for place, encoder, accumulator, (_, leaf) in parts:
            if place.field.in_parts:
                self._put(place, accumulator, leaf, clients)
                continue
            values, together = place.rows(leaf, len(clients)), encoder.together
            for start in range(0, len(values), together):  # each is still in the cache when it is encoded
                some = values[start : start + together]
                if outside(some, place.form.bound):
                    i = next(i for i, one in enumerate(some) if outside(one, place.form.bound))
                    raise _out_of_bounds(place, int(clients[start + i]), some[i])
                encoder.add(some, accumulator, 0 if self._begun or start else self._clients)
        self._begun = True

    def add_total(self, total: Record, clients: NDArray[np.int64]) -> None:
        """Round the sum of the answers of `clients` to the grid, as a whole, and add it; it counts as one addition.

        Raises
        ------
        NumericalError
            when a value of it is not a number, or outside its field's bound times the number of `clients`.
        """
        parts = zip(self.places, self._encoders, self._accumulators, leaves(total), strict=True)
        for place, encoder, accumulator, (_, leaf) in parts:
            values = place.whole(leaf)
            if outside(values, place.form.bound * len(clients)):
                raise total_out_of_bounds(place, clients, float(np.abs(values).max()))
            encoder.add_total(values.reshape(-1), accumulator, 0 if self._begun else self._clients)
        self._begun = True

    def _put(
        self, place: Place, accumulator: NDArray[np.signedinteger], leaf: Any, clients: NDArray[np.int64]
    ) -> None:
        """Add what clients have of a field that they fill in parts."""
        whole = accumulator.reshape(place.form.limbs, *place.field.shape)
        for coded, at in _added_first(self._scattered(place, whole, place.parts(leaf, clients))):
            for limb, part in enumerate(coded):
                whole[limb, ...][at] += part  # a view even of a single number

    def _scattered(
        self, place: Place, whole: NDArray[np.signedinteger], parts: Iterator[tuple[int, NDArray[np.floating], Any]]
    ) -> Iterator[tuple[NDArray[np.signedinteger], Any]]:
        """(integers [limbs, ...], where they go) of each client; but those that lie side by side are added at once."""
        for client, values, at in parts:
            target = whole[0, ...][at] if place.form.limbs == 1 and isinstance(at, tuple) else None
            if target is not None and isinstance(at[-1], slice) and target.flags.c_contiguous:
                encoder, _ = self._encoder(place, client, values.reshape(1, -1))
                encoder.add_piecewise(values.reshape(-1), target.reshape(-1))
            else:
                yield self._coded(place, client, values), at

    def _encoder(
        self, place: Place, client: int, flat: NDArray[np.floating]
    ) -> tuple[Encoder, NDArray[np.signedinteger]]:
        """What encodes the values [1, m] of one client, if they are within the bound, and room for the integers."""
        if outside(flat, place.form.bound):
            raise _out_of_bounds(place, client, flat[0])
        if (place.name, flat.size) not in self._parts:
            buffer = np.empty(place.form.limbs * flat.size, dtype=self.message.dtype)
            self._parts[place.name, flat.size] = Encoder(place.form, flat.size), buffer
        return self._parts[place.name, flat.size]

    def _coded(self, place: Place, client: int, values: NDArray[np.floating]) -> NDArray[np.signedinteger]:
        """[limbs, ...] the values of one client on the grid; the next ones of that size overwrite them."""
        encoder, coded = self._encoder(place, client, flat := values.reshape(1, -1))
        encoder.add(flat, coded, 1)
        return coded.reshape(place.form.limbs, *values.shape)

    def check(self, clients: NDArray[np.int64]) -> None:
        """Every value has been."""

    def numbers(self, answer: Record, client: int) -> NDArray[np.signedinteger]:
        """Integers.

        Raises
        ------
        NumericalError
            when a value is not a number or outside its field's bound.
        """
        found = []
        for place, (_, leaf) in zip(self.places, leaves(answer), strict=True):
            for _, values, _ in place.parts_of(leaf, client):
                found.append(self._coded(place, client, values).flatten())
        return np.concatenate(found)

    def total(self, message: NDArray[np.signedinteger]) -> Record:
        """Decoded, in the job's dtype; single numbers in float64."""
        arrays = (
            decode(message[place.start : place.stop], place.form, place.dtype).reshape(place.field.shape)
            for place in self.places
        )
        return map_leaves(lambda _: next(arrays)[()], self._fields)


class FloatSum(_Message):
    """Floating-point sums, faster; their bits depend on the number of ranks."""

    def __init__(self, fields: Record, places: list[Place]) -> None:
        self._fields, self.places = fields, places
        self.message = np.zeros(places[-1].stop + 1, dtype=places[0].message_dtype)

    def begin(self, clients: int) -> None:
        """Zeros."""
        self.message.fill(0)

    def add(self, answer: Record, clients: NDArray[np.int64]) -> None:
        """Add each client's values."""
        for place, (_, leaf) in zip(self.places, leaves(answer), strict=True):
            part = self.message[place.start : place.stop]
            if place.field.in_parts:
                whole = part.reshape(place.field.shape)
                for values, at in _added_first((values, at) for _, values, at in place.parts(leaf, clients)):
                    whole[at] += values
            else:
                for values in place.rows(leaf, len(clients)):
                    part += values

    def numbers(self, answer: Record, client: int) -> NDArray[np.floating]:
        """Floats of the message's kind; NumericalError when one is not finite."""
        found = []
        for place, (_, leaf) in zip(self.places, leaves(answer), strict=True):
            for _, values, _ in place.parts_of(leaf, client):
                found.append(values.astype(self.message.dtype).ravel())
                self._check(place, found[-1], np.array([client]))
        return np.concatenate(found)

    def set_fused(self, total: Record) -> None:
        """Begin with a sum of answers, and end with it."""
        for place, (_, leaf) in zip(self.places, leaves(total), strict=True):
            self.message[place.start : place.stop] = np.reshape(leaf, -1)

    def check(self, clients: NDArray[np.int64]) -> None:
        """Refuse a sum of the answers of `clients` that is not finite."""
        for place in self.places:
            self._check(place, self.message[place.start : place.stop], clients)

    def _check(self, place: Place, part: NDArray[np.floating], clients: NDArray[np.int64]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            fine = np.isfinite(np.dot(part, part)) or np.isfinite(part).all()  # the first is half as dear
        if not fine:
            raise NumericalError(
                f"{place.name}: the sum over clients {_listed(clients)} is not finite; lower the step size, or set "
                '[sum] numbers = "exact" to learn which client it comes from'
            )

    def total(self, message: NDArray[np.floating]) -> Record:
        """Copies in the job's dtype; single numbers in float64."""
        arrays = (
            message[place.start : place.stop].astype(place.dtype).reshape(place.field.shape) for place in self.places
        )
        return map_leaves(lambda _: next(arrays)[()], self._fields)


def make_sum(
    exchange: Exchange,
    clients: int,
    *,
    exact: bool,
    dtype: str,
    bounds: Mapping[str, float] = MappingProxyType({}),
    scales: Mapping[str, float] = MappingProxyType({}),
) -> Sum:
    """The sum of an exchange's answers, of up to `clients` clients.

    Parameters
    ----------
    exact : exact sums, or sums in `dtype`
    bounds, scales : by "exchange.field" or a record of fields, instead of what the algorithm declares

    Raises
    ------
    UsageError
        when a field's bound and scale fit no grid.
    """
    places = _places(exchange, clients, "float64" if exchange.off_clock else dtype, exact, bounds, scales)
    return ExactSum(exchange.fields, places) if exact else FloatSum(exchange.fields, places)


def _out_of_bounds(place: Place, client: int, values: NDArray[np.floating]) -> NumericalError:
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max(initial=0.0))
    wrong = values.size - finite.size
    return out_of_bounds(place, client, largest, f"has {wrong} values that are not finite" if wrong else "")


def out_of_bounds(place: Place, client: int, largest: float, what: str = "") -> NumericalError:
    """The error of a client whose largest value is not within the bound; `what` it has, where that is not the value."""
    if not np.isfinite(largest):
        largest, what = 0.0, "has values that are not finite"
    what = what or f"has a value of {largest:.6g} in absolute value, outside the bound {place.form.bound:g}"
    return NumericalError(
        f"{place.name}: client {client} {what}; lower the step size, or, if such values are right, raise the bound: "
        f'[sum.bounds] "{place.name}" = {2 * max(largest, place.form.bound):g}'
    )


def total_out_of_bounds(place: Place, clients: NDArray[np.int64], largest: float) -> NumericalError:
    """The error of a block of clients whose sum has a value that is not within their bounds."""
    bound = place.form.bound * len(clients)
    what = f"has a value of {largest:.6g} in absolute value, outside {len(clients)} times the bound"
    what = f"{what} {place.form.bound:g}" if np.isfinite(largest) else "has values that are not finite"
    raised = 2 * max(largest if np.isfinite(largest) else 0.0, bound) / len(clients)
    return NumericalError(
        f"{place.name}: the sum over clients {_listed(clients)}, a block, {what}; lower the step size, or set [sum] "
        'numbers = "exact" to learn which client it comes from; if such values are right, raise the bound: '
        f'[sum.bounds] "{place.name}" = {raised:g}'
    )


def _listed(clients: NDArray[np.int64]) -> str:
    names = [str(client) for client in clients[:8]]
    return ", ".join(names) + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")
