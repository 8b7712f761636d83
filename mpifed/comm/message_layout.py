"""Layout of the flat message that is reduced: the position of each field of an exchange, and which clients fill it.

The last number of the message is the system's own: how many ranks ask for the run to end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import EllipsisType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Exchange, Field, Placed, fields_of
from mpifed.core.holdings import Cells, size
from mpifed.core.record import Array
from mpifed.maths.fixedpoint import SumGrid, grid

Index: TypeAlias = "EllipsisType | tuple[slice | NDArray[np.int64], ...]"  # into a field's axes


class Place:
    """Place of a field in the message; the field's sum is in `dtype`."""

    def __init__(self, name: str, field: Field, form: SumGrid, start: int, dtype: str) -> None:
        self.name, self.field, self.form, self.start = name, field, form, start
        self.stop = start + form.limbs * field.size
        self.dtype = dtype if field.shape and not field.whole else "float64"

    def rows(self, leaf: Array | Placed, clients: int) -> NDArray[np.floating]:
        """The leaf [n, ...] as [n, size] floats."""
        array = np.asarray(leaf)
        self.check(array.shape, clients)
        return _floats(array).reshape(clients, -1)

    def check(self, shape: tuple[int, ...], clients: int) -> None:
        """UsageError unless this is the shape of an answer of so many clients."""
        if shape != (clients, *self.field.shape):
            raise UsageError(
                f"{self.name}: the answer of {clients} clients has shape {shape}, its field declares "
                f"({clients}, {', '.join(map(str, self.field.shape))}); the leading axis is clients"
            )

    def whole(self, leaf: Array | Placed) -> NDArray[np.floating]:
        """A sum of answers, of the field's shape."""
        array = np.asarray(leaf)
        if array.shape != self.field.shape:
            raise UsageError(f"{self.name}: the sum has shape {array.shape}, its field declares {self.field.shape}")
        return _floats(array)

    def parts(
        self, leaf: Array | Placed, clients: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.floating], Index]]:
        """(client, values, index into the field's axes) of each client who fills a part of the field."""
        if not isinstance(leaf, Placed):
            rows = self.rows(leaf, len(clients))
            for i, client in enumerate(clients.tolist()):
                if client == self.field.sender:
                    yield client, rows[i].reshape(self.field.shape), ...
            return
        axis, shape = self.field.axis or 0, self.field.shape
        before, length, after = shape[:axis], shape[axis], shape[axis + 1 :]
        for client, values, at in zip(clients.tolist(), leaf.values, leaf.at, strict=True):
            own = (*before, size(at, length), *after)
            if values.shape != own:
                raise UsageError(
                    f"{self.name}: client {client} answers with shape {values.shape} for its {own[axis]} entries, "
                    f"its field declares {own}"
                )
            yield client, _floats(values), (*(slice(None),) * axis, at)

    def parts_of(self, leaf: Array | Placed, client: int) -> Iterator[tuple[int, NDArray[np.floating], Index]]:
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

    def received(self, cells: Cells) -> NDArray[np.int64]:
        """[N] values that each client receives, if it receives the sum."""
        if self.field.rows is not None:
            return self.sizes(cells)
        return np.full(len(cells.rows.groups), self.field.size)


def _floats(array: np.ndarray) -> NDArray[np.floating]:
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def merged(parts: Iterable[tuple[np.ndarray, Index]]) -> Iterator[tuple[np.ndarray, Index]]:
    """(values, index), with consecutive values for the same scattered entries summed beforehand.

    Adding at an array of positions takes several times as long as adding contiguous values.
    """
    pending: np.ndarray | None = None
    where: Index = ...
    for values, at in parts:
        scattered = at[-1] if isinstance(at, tuple) and isinstance(at[-1], np.ndarray) else None
        if scattered is None:
            yield values, at
        elif pending is not None and isinstance(where, tuple) and scattered is where[-1]:
            pending += values
        else:
            if pending is not None:
                yield pending, where
            pending, where = values.copy(), at
    if pending is not None:
        yield pending, where


def places_of(
    exchange: Exchange,
    clients: int,
    dtype: str,
    bounds: Mapping[str, float],
    target_scale: float = 1.0,
) -> list[Place]:
    """Places of an exchange's fields, for up to `clients` clients; UsageError where a bound or scale is impossible."""
    fields: list[tuple[str, Field]] = []
    forms: list[SumGrid] = []
    for leaf, field in fields_of(exchange).items():
        name = f"{exchange.name}.{leaf}".rstrip(".")
        if field.whole and named(bounds, name):
            raise UsageError(
                f"[aggregation.bounds] {name}: whole numbers, whose bound follows from the noise of [privacy], and any "
                "other would reveal private data; leave it out"
            )
        factor = target_scale**field.degree
        bound, scale = named(bounds, name) or factor * field.bound, factor * field.scale
        try:
            forms.append(grid(scale, bound, clients, dtype))
        except ValueError as error:
            raise UsageError(
                f"[aggregation] {name}: {error}; lower the bound or raise the scale of this field"
            ) from error
        fields.append((name, field))
    if any(form.bits == 64 for form in forms):
        forms = [form.wide() for form in forms]  # a message has a single dtype
    places: list[Place] = []
    start = 0
    for (name, field), form in zip(fields, forms, strict=True):
        places.append(Place(name, field, form, start, dtype))
        start = places[-1].stop
    return places


OF_ALL_ROWS = "-of-all-rows"  # suffix of an exchange that evaluates on all rows, where others evaluate on a subset


def names_field(name: str, field: str) -> bool:
    """Whether `name` is that of the field, or of a record that contains it, with or without `OF_ALL_ROWS`."""
    return f"{field.replace(OF_ALL_ROWS, '')}.".startswith(f"{name}.")


def named(settings: Mapping[str, float], field: str) -> float | None:
    """The setting of a field by its name, or by the longest name of a record that contains it."""
    names = [name for name in settings if names_field(name, field)]
    return settings[max(names, key=len)] if names else None


_DIVERGED = "lower the learning rate or step sizes, or scale the columns and targets"


def client_out_of_bounds(place: Place, client: int, values: NDArray[np.floating]) -> NumericalError:
    """Error for a client whose values are not all within the bound."""
    finite = values[np.isfinite(values)]
    return out_of_bounds(place, client, float(np.abs(finite).max(initial=0.0)), values.size - finite.size)


def out_of_bounds(place: Place, client: int, largest: float, unknown: int = 0) -> NumericalError:
    """Error for a client whose largest value is not within the bound; `unknown`: how many values are not finite."""
    what = f"has a value of {largest:.6g} in absolute value"
    if unknown or not np.isfinite(largest):
        what = f"has {f'{unknown} ' if unknown else ''}values that are not finite"
    elif largest <= 1e29:  # larger bounds no job can give
        return NumericalError(
            f"{place.name}: client {client} {what}, outside the bound {place.form.bound:g}; {_DIVERGED}; if such "
            f'values are expected, raise the bound: [aggregation.bounds] "{place.name}" = '
            f"{2 * max(largest, place.form.bound):g}"
        )
    return NumericalError(f"{place.name}: client {client} {what}: training diverged; {_DIVERGED}")


def total_out_of_bounds(place: Place, clients: NDArray[np.int64], largest: float) -> NumericalError:
    """Error for a block of clients whose sum has a value outside the bound times their number."""
    bound = place.form.bound * len(clients)
    what = (
        f"has a value of {largest:.6g} in absolute value, outside {len(clients)} times the bound {place.form.bound:g}"
    )
    remedy = (
        f'; if it is expected, raise the bound: [aggregation.bounds] "{place.name}" = '
        f"{2 * max(largest, bound) / len(clients):g}"
    )
    if not np.isfinite(largest):  # no bound is large enough
        what, remedy = "has values that are not finite: training diverged", ""
    return NumericalError(
        f"{place.name}: the sum over clients {listed(clients)}, a block, {what}; {_DIVERGED}, or set "
        f'[aggregation] arithmetic = "exact" to learn which client it comes from{remedy}'
    )


def listed(clients: NDArray[np.int64]) -> str:
    """The first eight clients, in words."""
    names = [str(client) for client in clients[:8]]
    return ", ".join(names) + (f" and {len(clients) - 8} more" if len(clients) > 8 else "")
