"""Messages: where fields stand, who fills them, and sums that are exact however uploads come together."""

from __future__ import annotations

import re
from contextlib import nullcontext
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masking import Shard

from mpifed.comm.channels.base import Protection, refuse_small
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.comm.sums import Arithmetic, Message, Sum
from mpifed.core.errors import NumericalError, TooFewClients, UsageError
from mpifed.core.exchange import Exchange, Field, fields_of
from mpifed.core.holdings import Holdings, Placed
from mpifed.core.lazy import Lazy
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.testing import Solo

GRIDS = {64: (2.0**-40, 2.0**10), 128: (2.0**-20, 2.0**40)}  # by bits of a value


class Inner(NamedTuple):
    m: Any
    k: Any


class Upload(NamedTuple):
    v: Any
    inner: Inner


class Case(NamedTuple):
    """A message of fields of any shape and kind, and uploads to it."""

    message: Message
    held: dict[str, Any]  # [N, *shape] who fills what, by field
    values: dict[str, Any]  # [N, *shape] float32; what a client does not fill is none of the sum
    rng: np.random.Generator

    def upload(self, who: Any, placed: bool = True) -> Any:
        """The uploads of some clients; where `placed`, of a held field their own places alone."""

        def leaf(name: str, field: Field) -> Any:
            rows = self.values[name][who]
            if not placed or field.held is None:
                return rows
            at, before = [field.held.of(client) for client in who.tolist()], (slice(None),) * field.axis
            return Placed(
                [row[(*before, own)] for row, own in zip(rows, at, strict=True)], at, field.held.length, field.axis
            )

        names = iter(fields_of(self.message.exchange).items())
        return map_leaves(lambda _: leaf(*next(names)), self.message.exchange.fields)

    def split(self, who: Any) -> list[Any]:
        """Clients in pieces, one after the other."""
        cuts = np.sort(self.rng.integers(0, len(who) + 1, int(self.rng.integers(0, 4))))
        return [piece for piece in np.split(who, cuts) if len(piece)]

    def sum_of(self, pieces: list[Any], adder: Sum | None = None) -> Any:
        """[m] the sum of uploads that come in these pieces."""
        adder = adder or Sum(self.message)
        adder.begin(True)
        for who in pieces:
            adder.add(self.upload(who, bool(self.rng.integers(2))), who)
        return np.array(adder.reduce(Solo(), False))[:-1]  # type: ignore[arg-type]


def holdings(rng: np.random.Generator, clients: int, length: int) -> Holdings:
    """Groups of places as they come, alike or apart, side by side or not, some of them empty."""
    members: list[Any] = []
    for _ in range(int(rng.integers(1, 4))):
        start, stop = np.sort(rng.integers(0, length + 1, 2)).tolist()
        members.append(slice(start, stop) if rng.integers(2) else np.flatnonzero(rng.random(length) < 0.5))
    return Holdings(length, rng.integers(0, len(members), clients), tuple(members))


def three(*fields: Field) -> Any:
    return Exchange("up", Upload(fields[0], Inner(fields[1], fields[2])), *3 * [lambda *_: ()])  # type: ignore[arg-type]


def case_of(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    clients, bits, alike = int(rng.integers(1, 7)), int(rng.choice(list(GRIDS))), dict[int, Holdings]()

    def field() -> Field:
        shape = tuple(rng.integers(1, 5, int(rng.integers(0, 4))).tolist())
        kind, grid = rng.choice(["all", "held", "one"]), GRIDS[bits]
        if kind == "one":
            return Field(shape, *grid, sender=int(rng.integers(clients)))
        if kind == "all" or not shape:
            return Field(shape, *grid)
        axis = int(rng.integers(len(shape)))
        held = alike.setdefault(shape[axis], holdings(rng, clients, shape[axis]))  # fields may be held alike
        return Field(shape, *grid, held=held, axis=axis, to_holders=bool(rng.integers(2)))

    exchange, held, values = three(field(), field(), field()), {}, {}
    for name, one in fields_of(exchange).items():
        own = np.zeros((clients, *one.shape), dtype=bool)
        for client in range(clients):
            if one.held is not None:
                own[(client, *(slice(None),) * one.axis, one.held.of(client))] = True
            else:
                own[client] = one.sender in (None, client)
        held[name], values[name] = own, (rng.uniform(-1, 1, own.shape) * min(one.bound, 1e9)).astype("f4")
    return Case(Message(exchange, clients, Arithmetic(str(rng.choice(["float32", "float64"])))), held, values, rng)


cases = given(st.integers(0, 2**32).map(case_of))


@cases
@settings(max_examples=150)
def test_units_are_the_places_with_the_same_holders(case: Case) -> None:
    message, numbers, everybody = case.message, np.arange(case.message.size), range(case.message.clients)
    present = case.rng.random(message.clients) < 0.6
    units = [(unit, np.concatenate([numbers[at] for at in unit.at])) for unit in message.units]
    for place, own in zip(message.places, case.held.values(), strict=True):
        holders = np.tile(own.reshape(len(own), -1), place.form.limbs)  # [N, limbs * size]
        counts = [count for count in holders[present].sum(axis=0).tolist() if count > place.field.to_holders]
        assert place.fewest(present) == min(counts, default=0), place.name
        for position, who in zip(range(place.start, place.stop), holders.T, strict=True):
            here = [unit for unit, at in units if position in at and unit.who.any()]
            assert [unit.who.tolist() for unit in here] == [who.tolist()] * int(who.any())
            assert all(unit.to_holders == place.field.to_holders or who.all() for unit in here)
            assert [position in numbers[message.own(client)] for client in everybody] == who.tolist()
    for client in everybody:
        own = numbers[message.own(client)]
        filled = [units[number][1] for number in message.units_of(client)]
        assert message.sent(np.array([client])) == 8 * len(own) == 8 * len(set(own.tolist()))
        assert sorted(own) == sorted(np.concatenate([numbers[:0], *filled]))


@cases
@settings(max_examples=150)
def test_a_sum_has_the_same_bits_however_uploads_come(case: Case) -> None:
    """In any pieces, on any ranks, each by itself, dense or in places; and it is that of the rounded rationals."""
    message, everybody, adder = case.message, np.arange(case.message.clients), Sum(case.message)
    whole = case.sum_of([everybody], adder)
    assert not case.sum_of([], adder).any()  # of a rank of whose clients nobody answers
    assert whole.tobytes() == case.sum_of(case.split(everybody), adder).tobytes()  # nothing is left of the last time
    ranks = np.array_split(everybody, int(case.rng.integers(1, 4)))
    assert whole.tobytes() == np.sum([case.sum_of(case.split(who)) for who in ranks], 0, "i8").tobytes()
    put = np.zeros_like(whole)
    for client in everybody:
        put[message.own(client)] += case.sum_of([everybody[client : client + 1]])[message.own(client)]
    assert whole.tobytes() == put.tobytes()
    for place, (name, total) in zip(message.places, leaves(message.decode(whole)), strict=True):
        scale, rows = (
            Fraction(place.form.scale),
            np.where(case.held[name], case.values[name], 0).reshape(len(everybody), -1),
        )
        for column, found in zip(rows.T, np.ravel(total), strict=True):
            exact = sum(round(Fraction(float(value)) / scale) for value in column) * scale
            if total.dtype == np.float32:
                assert found == np.float32(float(exact))
            else:  # two limbs are added in doubles
                assert abs(Fraction(float(found)) - exact) <= abs(exact) * Fraction(2) ** -51


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_lazy_uploads_are_summed_as_their_rows_or_as_their_total(seed: int) -> None:
    """Values on the grid, with weights: sums by clients and by blocks are the same, and those of arrays."""
    rng, came = np.random.default_rng(seed), list[int]()
    clients, shape = int(rng.integers(1, 9)), tuple(rng.integers(1, 5, int(rng.integers(0, 3))).tolist())
    weight = 2.0 ** rng.integers(-2, 3, (clients, *[1] * len(shape)))
    values, present = (rng.integers(-100, 100, (clients, *shape)) * weight).astype("f4"), rng.random(clients) < 0.8
    common = rng.integers(-9, 9, shape).astype("f4")  # a row's part, by which uploads may come apart
    blocks = [Block(tuple(map(Shard, who)), "float32") for who in case_of(seed).split(np.arange(clients))]  # type: ignore[arg-type]

    def answer(states: Any, question: Any, block: Block, now: Round) -> Any:
        own, pieces = values[block.clients], np.array_split(rng.permutation(len(block.clients)), 2)
        parts = [(who, own[who]) for who in pieces if len(who)]
        apart = ((who, part - common, common.ravel()) for who, part in parts)
        return states, Lazy(lambda: iter(parts), lambda: came.append(1) or own.sum(axis=0), lambda: apart)

    for by_blocks in (False, True):
        ranks = Ranks(Solo(), blocks, clients, Arithmetic(by_blocks=by_blocks))
        exchange: Any = Exchange("up", Field(shape), lambda *_: (), answer, lambda server, total, now: total)
        states = ClientStates(ranks.blocks.first, lambda i: ())
        total, _ = play((exchange,), (), states, Round(0, 1, present), ranks)
        assert np.array_equal(total, values[present].sum(axis=0, dtype="f8"))
        assert bool(came) == (by_blocks and bool(present.any()))


COLUMNS = Holdings(9, np.arange(5), (slice(0, 2), np.array([2, 5, 8]), np.array([3]), slice(6, 8), np.array([4])))


@pytest.mark.parametrize(
    ("bits", "leaf", "client"), [(b, *one) for b in GRIDS for one in (("v", 1), ("inner.m", 3), ("inner.k", 2))]
)
@pytest.mark.parametrize("bad", [np.nan, -np.inf, -(2.0**60)])
def test_a_value_that_cannot_be_summed_names_field_and_client(bits: int, leaf: str, client: int, bad: float) -> None:
    grid, who = GRIDS[bits], np.arange(5)
    exchange = three(Field((3,), *grid), Field((2, 9, 2), *grid, held=COLUMNS, axis=1), Field((4,), *grid, sender=2))
    adder = Sum(Message(exchange, 5))
    placed = Placed([np.ones((2, len(np.arange(9)[at]), 2)) for at in COLUMNS.members], COLUMNS.members, 9, 1)
    upload = {"v": np.ones((5, 3)), "inner.m": placed, "inner.k": np.ones((5, 4))}
    (placed.values if leaf == "inner.m" else upload[leaf])[client][..., -1] = bad  # type: ignore[call-overload]
    adder.begin(True)
    beyond = re.escape(f"outside the bound {grid[1]:g}: training diverged;")
    said = rf'has a value of .* {beyond} .*raise the bound: \[aggregation.bounds\] "up.{leaf}" = '
    said = said if np.isfinite(bad) else rf"has values that are not finite, {beyond} lower the .* targets$"
    for common in (None, Upload(np.ones(3), Inner(np.ones(0), np.ones(0)))):
        with pytest.raises(NumericalError, match=rf"^up\.{leaf}: client {client} {said}"):
            adder.add(Upload(upload["v"], Inner(placed, upload["inner.k"])), who, common)
    total = Upload(np.full(3, 6 * grid[1]), Inner(np.ones((2, 9, 2)), np.ones(4)))
    with pytest.raises(
        NumericalError, match=r"^up\.v: the sum over clients 0, 1, 2, 3, 4, a block, .* outside 5 times"
    ):
        adder.add(total, who, total=True)


def test_uploads_of_another_shape_name_the_field_and_both_shapes() -> None:
    adder = Sum(Message(three(Field((3,)), Field((2, 9, 2), held=COLUMNS, axis=1), Field((4,), sender=2)), 5))
    for v, placed, of_one, said in (
        (3, (2, 3, 2), 4, r"up\.inner\.m: client 0 answers with shape \(2, 3, 2\) for its 2 entries, .* \(2, 2, 2\)"),
        (3, (2, 2, 2), 5, r"up\.inner\.k: the answer of 1 clients has shape \(1, 5\), .* \(1, 4\)"),
        (2, (2, 2, 2), 4, r"up\.v: the answer of 1 clients .* \(1, 2\), .* \(1, 3\); the leading axis is clients"),
    ):
        upload = Upload(np.ones((1, v)), Inner(Placed([np.ones(placed)], [slice(0, 2)], 9, 1), np.ones((1, of_one))))
        adder.begin(True)
        with pytest.raises(UsageError, match=said):
            adder.add(upload, np.array([0]))


def test_bounds_of_the_job_and_what_no_job_may_bound() -> None:
    exchange = three(Field((3,)), Field((), whole=True), Field((2, 2), wide=True))
    message = Message(exchange, 5, Arithmetic("float32", {"up.inner.k": 2.0**20, "up.v": 8.0, "up.inn": 1.0}, 4.0))
    assert [place.form.bound for place in message.places] == [8.0, 2.0**10, 2.0**20]
    assert [place.form.scale for place in message.places] == [2.0**-38, 2.0**-40, 2.0**-38]
    assert [leaf.dtype for _, leaf in leaves(message.decode(np.zeros(message.size, "i8")))] == ["f4", "f8", "f8"]
    for name in ("up", "up.inner", "up.inner.m"):
        with pytest.raises(UsageError, match=r"up\.inner\.m: whole numbers, whose bound follows from the noise"):
            Message(exchange, 5, Arithmetic(bounds={name: 2.0**20}))
    with pytest.raises(UsageError, match=r"\[aggregation\] up\.v: .*lower the bound or raise the scale"):
        Message(exchange, 5, Arithmetic(bounds={"up.v": 2.0**80}))


OWN = Holdings(9, np.array([0, 0, 1, 1, 2, 1]), (slice(0, 4), slice(3, 8), np.array([2, 8])))
GROUPS = Message(three(Field((9,), held=OWN), Field((9,), held=OWN, to_holders=True), Field(sender=4)), 6)


@pytest.mark.parametrize("least", [1, 2, 4])
def test_a_sum_of_too_few_answers_is_refused_by_name_on_all_ranks(least: int) -> None:
    """What alone goes back to who sent it does not count, nor what the job allows by a name."""
    for bits, allowed in product(range(64), ("", "up", "up.inner", "up.inner.m", "up.inn", "up.v", "u", "down")):
        present = np.array([bits >> client & 1 for client in range(6)], dtype=bool)
        counts = {place.name: place.fewest(present) for place in GROUPS.places}
        few = {n: str(k) for n, k in counts.items() if 0 < k < least and not f"{n}.".startswith(f"{allowed}.")}
        with pytest.raises(TooFewClients) if few else nullcontext() as caught:
            refuse_small([(GROUPS, Round(7, 1, present))], Protection("masked", least, (allowed,)))
        if caught is not None:
            assert dict(re.findall(r"(\S+) \((\d+) in round 7\)", str(caught.value))) == few, present
            assert caught.value.agreed and caught.value.exit_code == 1
