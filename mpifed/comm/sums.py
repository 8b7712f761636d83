"""An exchange's message: where its fields stand in one flat array of integers, who fills them, and this rank's sum.

Answers are rounded to each field's grid, and added as integers: the same bits in any order and on any number of ranks.
An exchange needs a single reduction. The last number of a message is the system's own: how many ranks ask for the run
to end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mpifed.comm.mpi import Comm
from mpifed.comm.reduce import SharedMessage, shared_message
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Exchange, Field, fields_of
from mpifed.core.holdings import Placed, Positions, size, span
from mpifed.core.record import Array, Flags, Integers, Record, bare_leaves, map_leaves, on_host
from mpifed.maths.fixedpoint import Encoder, SumGrid, decode, grid, outside

ENOUGH = 2.0**8  # steps of a grid: where the largest value has fewer, more than a part in 500 of it may be lost
INTEGER_BYTES = 8  # of the integers that are added
_LARGEST = 1e29  # beyond it no job can give a bound


class Arithmetic(NamedTuple):
    """How sums are made, as the job says."""

    dtype: str = "float32"  # of decoded sums
    bounds: Mapping[str, float] = MappingProxyType({})  # by "exchange.field" or a record of fields, instead of theirs
    target_scale: float = 1.0  # of the problem; other grids are multiplied by its powers
    by_blocks: bool = False  # whether a block's answers are summed in floats before they are rounded, if possible
    most: Mapping[str, int] = MappingProxyType({})  # by exchange, how many clients answer at most; all if missing


class Place:
    """Place of a field in the message."""

    def __init__(self, name: str, field: Field, form: SumGrid, start: int, clients: int, dtype: str) -> None:
        self.name, self.field, self.form, self.start = name, field, form, start
        self.stop = start + form.limbs * field.size
        self.dtype = "float64" if field.wide or field.whole or not field.shape else dtype  # of the decoded sum
        self.shape = field.shape or (1,)  # a scalar has one value along one axis
        self.held, self.encoder = field.holdings(clients), Encoder(form)

    def rows(self, leaf: Array | Placed, clients: int) -> Array:
        """The leaf [n, ...] as [n, size] floats, where it is; UsageError if it has another shape."""
        array = np.asarray(leaf) if isinstance(leaf, Placed) else leaf
        if array.shape != (clients, *self.field.shape):
            raise UsageError(
                f"{self.name}: the answer of {clients} clients has shape {array.shape}, its field declares "
                f"({clients}, {', '.join(map(str, self.field.shape))}); the leading axis is clients"
            )
        return _floats(array).reshape(clients, -1)

    def parts(self, leaf: Array | Placed, clients: Integers) -> Iterator[tuple[int, Array, Positions]]:
        """(client, values, positions along the field's axis) of each client who fills a part of the field."""
        axis, shape, held = self.field.axis, self.shape, self.held
        assert held is not None
        if not isinstance(leaf, Placed):
            rows = self.rows(leaf, len(clients)).reshape(-1, *shape)
            for i in np.flatnonzero(held.widths(clients)).tolist():
                at = held.of(int(clients[i]))
                yield int(clients[i]), rows[i][self.index(at)], at
            return
        for client, values, at in zip(clients.tolist(), leaf.values, leaf.at, strict=True):
            own = (*shape[:axis], size(at, shape[axis]), *shape[axis + 1 :])
            if values.shape != own:
                raise UsageError(
                    f"{self.name}: client {client} answers with shape {values.shape} for its {own[axis]} entries, "
                    f"its field declares {own}"
                )
            yield client, _floats(values), at

    def index(self, at: Positions) -> tuple[Positions, ...]:
        """How the entries at these positions along the field's axis are indexed."""
        return (slice(None),) * self.field.axis + (at,)

    def sizes(self, clients: Integers, whole: bool = False) -> Integers | int:
        """[n] bytes of what each of `clients` [n] fills, or of all with `whole`; one number where they are alike."""
        nbytes = INTEGER_BYTES * self.form.limbs * self.field.size
        if self.held is None or whole:
            return nbytes
        return nbytes // self.held.length * self.held.widths(clients)

    def fewest(self, present: Flags, least: int = 1) -> int:
        """Smallest number of participating clients, from `least`, behind any entry of the field; 0 where nobody is.

        What is sent to its holders alone returns to who sent it where that is a single client, and does not count.
        """
        if self.held is None:  # in every masked round
            return int(np.count_nonzero(present))
        filled = self.held.held_by(present)
        filled = filled[filled >= max(least, 1 + self.field.to_holders)]
        return int(filled.min()) if len(filled) else 0

    def filled(self, present: Flags) -> Integers:
        """By how many participating clients each entry along the field's axis is filled."""
        if self.held is None:
            return np.full(self.shape[self.field.axis], np.count_nonzero(present))
        return self.held.held_by(present)

    def positions(self, at: Positions) -> Positions:
        """Positions in a message of the entries `at` along the field's axis, in all its limbs."""
        whole = np.arange(self.start, self.stop).reshape(self.form.limbs, *self.shape)
        return span(whole[(slice(None),) * (self.field.axis + 1) + (at,)].ravel())


class Unit(NamedTuple):
    """Entries of a message that have the same holders."""

    who: Flags  # [N] the holders
    at: list[Positions]  # where they stand, field by field
    to_holders: bool  # whether the holders alone are sent the sum
    by_all: bool = False  # whether every client is a holder


class Message:
    """The message of an exchange: alike on all ranks."""

    def __init__(self, exchange: Exchange, clients: int, how: Arithmetic = Arithmetic()) -> None:  # noqa: B008
        """UsageError where a field's bound and scale fit no grid."""
        self.exchange, self.clients = exchange, clients
        self.places = _places(exchange, clients, how)
        self.size = self.places[-1].stop if self.places else 0
        self.positions = cache(self._positions_of)
        # by client, the numbers of the units that it fills
        self.units_of = cache(lambda client: tuple(n for n, unit in enumerate(self.units) if unit.who[client]))

    @property
    def nbytes(self) -> int:
        """Bytes of the sum, as a deployment would send it."""
        return INTEGER_BYTES * self.size

    def sent(self, clients: Integers, coded: bool = False) -> Integers:
        """[n] bytes that each of `clients` [n] uploads; `coded`: of what they send in place of integers."""
        total = np.zeros(len(clients), np.int64)
        for place in self.places:
            total += (coded and place.field.coded) or place.sizes(clients)
        return total

    def received(self, clients: Integers) -> Integers:
        """[n] bytes of the sum that each of `clients` [n] receives."""
        total = np.zeros(len(clients), np.int64)
        for place in self.places:
            total += place.sizes(clients, not place.field.to_holders)
        return total

    @cached_property
    def units(self) -> list[Unit]:
        """What all clients fill, then what only some do; alike where fields are held alike."""
        everybody = Unit(np.ones(self.clients, dtype=bool), [], False, True)
        units = {(everybody.who.tobytes(), False): everybody}
        for place in self.places:
            if place.held is None:
                everybody.at.append(slice(place.start, place.stop))
                continue
            for who, at in place.held.shared:
                to_holders = place.field.to_holders and not who.all()
                unit = units.setdefault((who.tobytes(), to_holders), Unit(who, [], to_holders))
                unit.at.append(place.positions(at))
        return [unit for unit in units.values() if unit.at]

    def _positions_of(self, numbers: tuple[int, ...]) -> Positions:
        """Positions of the units of these numbers, ascending."""
        parts = [np.r_[part] for number in numbers for part in self.units[number].at]
        return span(np.sort(np.concatenate(parts))) if parts else slice(0)

    def own(self, client: int) -> Positions:
        """Positions of the client's values."""
        return self.positions(self.units_of(client))

    def decode(self, numbers: Integers) -> Record:
        """The sum, decoded into the job's dtype; scalars into float64."""
        arrays = (
            decode(numbers[place.start : place.stop], place.form, place.dtype).reshape(place.field.shape)
            for place in self.places
        )
        fields: Record = self.exchange.fields
        return map_leaves(lambda _: next(arrays)[()], fields)


class Sum:
    """This rank's sum of an exchange, in one array that all fields share; reused whenever the exchange is played."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._anew = False  # whether the next answers overwrite what is there
        self._move(np.zeros(message.size + 1, np.int64))
        self._shared: SharedMessage | None = None
        self._reduced = False  # whether it has ever been; from then on `_shared` stays what it is

    def _move(self, numbers: Integers) -> None:
        self.numbers = numbers  # [m + 1]
        self._accumulators = [numbers[place.start : place.stop] for place in self.message.places]

    def begin(self, anew: bool) -> None:
        """Start a new sum; `anew`: the first answers overwrite the last one, else it begins with zeros."""
        self._anew = anew
        for place, accumulator in zip(self.message.places, self._accumulators, strict=True):
            if not anew or place.held is not None:
                accumulator.fill(0)

    def add(self, answer: Record, clients: Integers, common: Record | None = None, total: bool = False) -> None:
        """Add the answers [n, ...] of `clients` [n], or with `total` their sum, rounded to the grid as one.

        Of fields that all fill each answer is that and `common`, leaves [m] of its dtypes.

        NumericalError where a value is not within its field's bound, of sums times the number of clients.
        """
        places = self.message.places
        more = [None] * len(places) if common is None else bare_leaves(common)
        for place, sums, leaf, also in zip(places, self._accumulators, bare_leaves(answer), more, strict=True):
            if place.held is not None and not total:
                self._put(place, sums, leaf, clients)
                continue
            rows = place.rows(leaf[None], 1) if total else place.rows(leaf, len(clients))
            anew, times = self._anew and place.held is None, len(clients) if total else 1
            if not place.encoder.add(rows, sums, anew, times, also):
                rows = rows if also is None else rows + also
                i = next(i for i, row in enumerate(rows) if outside(row, place.form.bound * times))
                raise out_of_bounds(place, clients if total else clients[i : i + 1], rows[i])
        self._anew = False

    def _put(self, place: Place, sums: Integers, leaf: Array | Placed, clients: Integers) -> None:
        """Add what each client fills; of consecutive clients with the same places at once, since that is quicker."""
        whole = sums.reshape(place.form.limbs, *place.shape)
        for _, together in groupby(place.parts(leaf, clients), lambda part: id(part[2])):
            target: Integers | None = None
            coded: Integers | None = None
            for client, values, at in together:
                if anew := target is None:
                    index = place.index(at)
                    if len(whole) == 1 and isinstance(at, slice) and (there := whole[0][index]).flags.c_contiguous:
                        target, anew = there.reshape(-1), False  # where they are added
                    else:
                        target = coded = np.empty(place.form.limbs * values.size, np.int64)
                if not place.encoder.add(values.reshape(1, -1), target, anew):
                    raise out_of_bounds(place, np.array([client]), values)
            if coded is not None:
                for limb, part in zip(whole, coded.reshape(len(whole), *values.shape), strict=True):
                    limb[index] += part

    def reduce(self, comm: Comm, everywhere: bool) -> Integers | None:
        """The sum over all ranks, on ranks that receive it; `numbers` are overwritten. Collective.

        From the first time on they stand where the ranks of a node can read them.
        """
        if self._anew:  # nobody of this rank has answered
            self.begin(False)
        if not self._reduced:
            self._reduced, self._shared = True, shared_message(comm, len(self.numbers))
            if self._shared is not None:
                self._shared.mine[:] = self.numbers
                self._move(self._shared.mine)
        if self._shared is not None:
            return self._shared.reduce(everywhere)
        (comm.Allreduce if everywhere else comm.Reduce)(self.numbers)
        return self.numbers if everywhere or comm.rank == 0 else None


def _floats(array: Array) -> Array:
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def note_steps(steps: defaultdict[str, float], places: Sequence[Place], answer: Record) -> bool:
    """Raise the entry of each field to the largest value in these answers, in steps of its grid, until it is `ENOUGH`.

    Returns whether all are.

    A few whole steps do not count: a grid loses nothing of them, and of zeros there is nothing to lose.
    """
    parts = bare_leaves(answer)
    if len(parts) != len(places):
        declared = ", ".join(place.name for place in places)
        raise UsageError(
            f"an answer has {len(parts)} arrays, the fields declare {len(places)}: {declared}; `like` of a method with "
            "local steps, or `fields` of an exchange, must have the parts of what is uploaded"
        )
    for place, leaf in zip(places, parts, strict=True):
        for values in leaf.values if isinstance(leaf, Placed) else [leaf]:
            if steps[place.name] < ENOUGH and values.size:
                largest = float(abs(values).max()) / place.form.scale
                if largest >= ENOUGH or (values / place.form.scale % 1).any():
                    steps[place.name] = max(steps[place.name], largest)
    return all(steps[place.name] >= ENOUGH for place in places)


def _places(exchange: Exchange, clients: int, how: Arithmetic) -> list[Place]:
    places: list[Place] = []
    for leaf, field in fields_of(exchange).items():
        name = f"{exchange.name}.{leaf}".rstrip(".")
        bounds = [bound for bound in how.bounds if names_field(bound, name)]
        given = how.bounds[max(bounds, key=len)] if bounds else None
        factor = how.target_scale ** (0 if field.whole else field.degree)
        if field.whole and given:
            raise UsageError(
                f"[aggregation.bounds] {name}: whole numbers, whose bound follows from the noise of [privacy], and any "
                "other would reveal private data; leave it out"
            )
        try:
            form = grid(factor * field.scale, given or factor * field.bound, how.most.get(exchange.name, clients))
        except ValueError as error:
            raise UsageError(
                f"[aggregation] {name}: {error}; lower the bound or raise the scale of this field"
            ) from error
        places.append(Place(name, field, form, places[-1].stop if places else 0, clients, how.dtype))
    return places


def names_field(name: str, field: str) -> bool:
    """Whether `name` is that of the field, or of a record that contains it."""
    return f"{field}.".startswith(f"{name}.")


def out_of_bounds(place: Place, clients: Integers, values: Array) -> NumericalError:
    """Error for a client whose values, or several clients whose sum, are not all within the bound of so many."""
    n, largest = len(clients), float(np.abs(on_host(values)).max())
    who, exact = f"client {clients[0]}", ""
    what = f"a value of {largest:.6g} in absolute value" if np.isfinite(largest) else "values that are not finite"
    if n > 1:
        listed = ", ".join(map(str, clients[:8])) + (f" and {n - 8} more" if n > 8 else "")
        who = f"the sum over clients {listed}, a block,"
        exact = ', or set [aggregation] arithmetic = "exact" to learn which client it comes from'
    if largest <= _LARGEST:
        enough = f"{2 * max(largest / n, place.form.bound):g}"
        exact += f'; if such values are expected, raise the bound: [aggregation.bounds] "{place.name}" = {enough}'
    return NumericalError(
        f"{place.name}: {who} has {what}, outside {f'{n} times ' * (n > 1)}the bound "
        f"{place.form.bound:g}: training diverged; lower the learning rate or step sizes, or scale the columns and "
        f"targets{exact}"
    )
