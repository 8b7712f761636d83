"""The sum of one exchange's answers: exact to the rationals, with errors that name field and client."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpifed.comm.accumulate import make_sum
from mpifed.comm.message_layout import Place

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Field, Placed, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.record import leaves, map_leaves


class Inner(NamedTuple):
    m: Any  # [2, 2]


class Answer(NamedTuple):
    v: Any  # [3]
    count: Any  # []
    inner: Any


FIELDS = Answer(Field((3,)), Field((), 1.0, 2.0**20), Inner(Field((2, 2), 2.0**-20, 2.0**40)))  # the last has 2 limbs


def exact_sum(of: Any, clients: int, dtype: str, bounds: Any = None) -> Any:
    return make_sum(of, clients, dtype=dtype, bounds=bounds or {})


def exchange(fields: Any = FIELDS) -> ToServer:
    return ToServer("up", fields, None, None, None)


def answers(n: int, seed: int, dtype: str = "float64") -> Answer:
    rng = np.random.default_rng(seed)
    return Answer(
        (rng.standard_normal((n, 3)) * 30).astype(dtype),
        rng.integers(0, 1000, n),
        Inner((rng.standard_normal((n, 2, 2)) * 1e9).astype(dtype)),
    )


def exact(found: Answer, scales: Answer) -> Any:
    """[fields] sums of the values rounded to their grids, as rationals."""
    totals = []
    for (_, leaf), (_, field) in zip(leaves(found), leaves(scales), strict=True):
        values = np.asarray(leaf, dtype="f8").reshape(len(leaf), -1)
        scale = Fraction(field.scale)
        totals.append([sum(round(Fraction(float(v)) / scale) for v in column) * scale for column in values.T])
    return totals


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 10**6), st.sampled_from(["float32", "float64"])
)
def test_exact_sums(groups: list[int], seed: int, dtype: str) -> None:
    """On several ranks, in several blocks: the sum of all rounded values, in rationals."""
    clients = sum(groups)
    everything = answers(clients, seed, dtype)
    sums, start = [], 0
    for size in groups:
        part = map_leaves(lambda leaf, a=start, b=start + size: leaf[a:b], everything)
        adder = exact_sum(exchange(), clients, "float64")
        adder.begin(True)
        half = size // 2
        for a, b in ((0, half), (half, size)) if half else ((0, size),):
            adder.add(Answer(part.v[a:b], part.count[a:b], Inner(part.inner.m[a:b])), np.arange(start + a, start + b))
        sums.append(adder.message.copy())
        start += size
    messages = np.sum(sums, axis=0)
    total = exact_sum(exchange(), clients, "float64").total(messages)
    for (_, leaf), expected in zip(leaves(total), exact(everything, FIELDS), strict=True):
        for value, fraction in zip(np.ravel(leaf), expected, strict=True):
            # one limb: a double holds it; two limbs are added in doubles
            assert abs(Fraction(float(value)) - fraction) <= abs(fraction) * Fraction(2) ** -51
    again = exact_sum(exchange(), clients, "float64")
    again.begin(True)
    again.add(everything, np.arange(clients))
    assert again.message[:-1].tobytes() == messages[:-1].tobytes()


def test_measures_are_summed_in_float64() -> None:
    measure = ToServer("m", Answer(Field((3,)), Field(), ()), None, None, None, off_clock=True)
    adder = exact_sum(measure, 1, "float32")
    adder.begin(True)
    value = np.array([[1 / 3, 0, 0]])
    adder.add(Answer(value, np.array([2.0]), ()), np.array([0]))
    assert adder.total(adder.message).v[0] == pytest.approx(1 / 3, abs=2.0**-40)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (np.nan, "client 7 has 1 values that are not finite"),
        (np.inf, "client 7 has 1 values that are not finite"),
        (-np.inf, "client 7 has 1 values that are not finite"),
        (1025.0, "client 7 has a value of 1025 in absolute value, outside the bound 1024"),
        (-2e9, "client 7 has a value of 2e+09 in absolute value, outside the bound 1024"),
    ],
)
def test_a_bad_value_names_field_and_client(bad: float, said: str) -> None:
    adder, found = exact_sum(exchange(), 5, "float64"), answers(3, 0)
    found.v[1, 2] = bad
    adder.begin(True)
    with pytest.raises(NumericalError) as caught:
        adder.add(found, np.array([3, 7, 9]))
    assert str(caught.value).startswith(f"up.v: {said}")
    assert ('[aggregation.bounds] "up.v" =' in str(caught.value)) == np.isfinite(bad)  # no bound helps what is not


def test_what_is_public_counts_for_every_client() -> None:
    """It is added to each answer; a value that is outside the bound with it names its client."""
    adder, found, common = exact_sum(exchange(), 5, "float64"), answers(3, 0), np.array([1.0, 2.0, 3.0])
    adder.begin(True)
    adder.add(found, np.array([3, 7, 9]), ((common, 0.5), None, (np.ones((2, 2)), 2.0)))
    whole = found._replace(v=found.v + 0.5 * common, inner=Inner(found.inner.m + 2.0))
    totals = [[Fraction(float(v)) for v in np.ravel(leaf)] for _, leaf in leaves(adder.total(adder.message))]
    assert totals == exact(whole, FIELDS)
    found.v[1, 2] = 1023.0
    adder.begin(True)
    adder.add(found, np.array([3, 7, 9]))
    with pytest.raises(NumericalError, match=r"^up\.v: client 7 has a value of 1024\.5 in absolute value"):
        adder.add(found, np.array([3, 7, 9]), ((common, 0.5), None, None))


def test_bounds_of_the_job() -> None:
    fields = Answer(Field((3,), 0.25), Field(), ())
    adder = exact_sum(exchange(fields), 5, "float64", {"up.v": 8.0})
    adder.begin(True)
    adder.add(Answer(np.array([[0.3, 1.125, -8.0]]), np.array([1.0]), ()), np.array([0]))
    assert adder.total(adder.message).v.tolist() == [0.25, 1.0, -8.0]  # 1.125 is a tie: to even
    adder.begin(True)
    with pytest.raises(NumericalError, match="outside the bound 8"):
        adder.add(Answer(np.array([[8.25, 0, 0]]), np.array([1.0]), ()), np.array([0]))


def test_whole_numbers_lose_no_digit() -> None:
    """Beside others, in a job in float32; and no setting makes them coarser, or refuses a client's."""
    up = exchange(Answer(Field((3,), 1.0, 2.0**40, whole=True), Field(), Field((2,))))
    adder = make_sum(up, 5, dtype="float32")
    numbers = np.array([2.0**24 + 1, 3.0, 2.0**39 - 1])
    adder.begin(True)
    adder.add(Answer(np.tile(numbers, (5, 1)), np.ones(5), np.ones((5, 2), "f4")), np.arange(5))
    np.testing.assert_array_equal(adder.total(adder.message).v, 5 * numbers)
    for name in ("up.v", "up"):
        with pytest.raises(UsageError, match="whole numbers, whose bound follows from the noise"):
            make_sum(up, 5, dtype="float32", bounds={name: 2.0**50})


@given(st.integers(0, 2**32), st.lists(st.integers(1, 4), min_size=1, max_size=5))
@settings(max_examples=50)
def test_sums_in_32_bits(seed: int, groups: list[int]) -> None:
    """As exact as in 64, where every field of a float32 answer needs at most 22 bits and a sign."""
    rng, clients = np.random.default_rng(seed), sum(groups)
    fields = Answer(Field((3,), 2.0**-20, 4.0), Field((), 1.0, 2.0**20), ())
    adder = exact_sum(exchange(fields), 20, "float32")
    assert adder.message.dtype == np.int32
    assert adder.nbytes == 4 * 4
    v = (rng.standard_normal((clients, 3)).clip(-4, 4) * rng.choice([1, 2.0**-15], (clients, 1))).astype("f4")
    found = Answer(v, rng.integers(0, 2**20, clients), ())
    total, first = np.zeros_like(adder.message), 0
    for group in groups:  # each on a rank of its own
        part = map_leaves(lambda leaf: leaf[first : first + group], found)  # noqa: B023 - called at once
        adder.begin(True)
        adder.add(part, np.arange(group))
        total += adder.message
        first += group
    assert total[:3].tolist() == [sum(round(Fraction(float(x)) * 2**20) for x in column) for column in v.T]
    assert float(adder.total(total).count) == found.count.sum()


def test_32_bits_need_every_field_float32_and_few_clients() -> None:
    narrow, wide = Field((3,), 2.0**-20, 4.0), Field((3,))
    for fields, clients, dtype, bits in (
        (Answer(narrow, Field((), 1.0, 8.0), ()), 500, "float32", 32),
        (Answer(narrow, Field((), 1.0, 8.0), ()), 513, "float32", 64),
        (Answer(narrow, Field((), 1.0, 8.0), ()), 500, "float64", 64),
        (Answer(narrow, Field(), ()), 500, "float32", 64),
        (Answer(wide, Field((), 1.0, 8.0), ()), 500, "float32", 64),
    ):
        assert exact_sum(exchange(fields), clients, dtype).message.dtype == np.dtype(f"int{bits}")


def test_a_bound_for_all_fields_of_a_record() -> None:
    adder = exact_sum(exchange(), 5, "float32", {"up": 2.0**20, "up.v": 8.0, "up.inn": 1.0})
    bounds = {place.name: place.form.bound for place in adder.places}
    assert bounds == {"up.v": 8.0, "up.count": 2.0**20, "up.inner.m": 2.0**20}


# --- values that single clients have -----------------------------------------------------------------------------


class Single(NamedTuple):
    placed: Any  # [2, 9, 2], columns along the second axis
    of_one: Any  # [4]
    of_all: Any  # [3]


COLUMNS = [slice(0, 2), np.array([2, 5, 8]), np.array([3]), slice(6, 8), np.array([4])]  # of 5 clients
SENDER = 2
WIDE, NARROW = 2.0**40, 2.0**-18
FORMS = {
    "one limb": ({}, np.int64, 1),
    "two limbs": ({"scale": 2.0**-20, "bound": WIDE}, np.int64, 2),
    "32 bits": ({"scale": NARROW, "bound": 8.0}, np.int32, 1),
}
forms = pytest.mark.parametrize("form", FORMS)


def single(grid: dict[str, float]) -> Single:
    return Single(Field((2, 9, 2), columns=1, **grid), Field((4,), sender=SENDER, **grid), Field((3,), **grid))


def singles(seed: int, bound: float) -> list[Single]:
    """Of each client by itself; what is not the sender's must not count."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> Any:
        return (rng.uniform(-1, 1, shape) * min(bound, 1e9)).astype("f4")

    found = []
    for at in COLUMNS:
        placed = Placed([some(2, len(np.arange(9)[at]), 2)], [at], 9, axis=1)
        found.append(Single(placed, some(1, 4), some(1, 3)))
    return found


def together(answers: list[Single]) -> Single:
    """The answers of a block."""
    placed = [one.placed for one in answers]
    values, at = [one.values[0] for one in placed], [one.at[0] for one in placed]
    return Single(Placed(values, at, 9, axis=1), *(np.concatenate([one[i] for one in answers]) for i in (1, 2)))


def dense(answers: list[Single]) -> Single:
    """[n, ...] with zeros where a client has nothing."""
    of_one = np.concatenate([one.of_one * np.float32(i == SENDER) for i, one in enumerate(answers)])
    placed = np.concatenate([np.asarray(one.placed) for one in answers])
    return Single(placed, of_one, np.concatenate([one.of_all for one in answers]))


@forms
def test_values_of_single_clients_sum_to_the_bits_of_dense_answers(form: str) -> None:
    grid, dtype, limbs = FORMS[form]
    bound = grid.get("bound", 2.0**10)
    fields = single(grid)
    plain = map_leaves(lambda field: Field(field.shape, field.scale, field.bound), fields)
    adder, whole = exact_sum(exchange(fields), 5, "float32"), exact_sum(exchange(plain), 5, "float32")
    assert adder.message.dtype == whole.message.dtype == dtype
    assert adder.places[0].form.limbs == limbs
    for seed in range(3):  # again and again, so that nothing is left of the last time
        each = singles(seed, bound)
        whole.begin(True)
        whole.add(dense(each), np.arange(5))
        for groups in ([[0, 1, 2, 3, 4]], [[0], [1], [2], [3], [4]], [[0, 1], [2], [3, 4]]):
            adder.begin(True)
            for who in groups:
                adder.add(together([each[i] for i in who]), np.array(who))
            assert adder.message.tobytes() == whole.message.tobytes()
        ranks = []  # of which some have nobody
        for who in ([3], [], [0, 1, 2, 4]):
            adder.begin(bool(who))
            if who:
                adder.add(together([each[i] for i in who]), np.array(who))
            ranks.append(adder.message.copy())
        assert np.sum(ranks, axis=0, dtype=dtype).tobytes() == whole.message.tobytes()
        for (_, mine), (_, theirs) in zip(
            leaves(adder.total(whole.message)), leaves(whole.total(whole.message)), strict=True
        ):
            assert mine.tobytes() == theirs.tobytes()
            assert mine.dtype == np.float32


@forms
@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**60])
@pytest.mark.parametrize(("leaf", "client"), [("placed", 1), ("placed", 3), ("of_one", SENDER)])
def test_a_bad_value_of_a_single_client_names_it(form: str, bad: float, leaf: str, client: int) -> None:
    adder, each = exact_sum(exchange(single(FORMS[form][0])), 5, "float32"), singles(0, 1.0)
    values = each[client].placed.values[0] if leaf == "placed" else each[client].of_one
    values[..., -1] = bad
    adder.begin(True)
    remedy = "raise the bound|training diverged"
    with pytest.raises(NumericalError, match=rf"^up\.{leaf}: client {client} has .*({remedy})"):
        adder.add(together(each), np.arange(5))
    adder.begin(True)
    adder.add(together(singles(0, 1.0)), np.arange(5))  # as good as new


@forms
def test_bytes_of_each_client(form: str) -> None:
    """Of a field by columns its own, of a sender's field all or nothing."""
    grid, dtype, limbs = FORMS[form]
    widths = np.array([2, 3, 1, 2, 1])
    each = np.dtype(dtype).itemsize * limbs
    expected = each * (2 * widths * 2 + 4 * (np.arange(5) == SENDER) + 3)
    stops = np.cumsum(widths)
    groups = tuple(slice(stop - width, stop) for stop, width in zip(stops, widths, strict=True))
    sizes = partial(Place.sizes, cells=Cells.of_columns(Holdings(9, np.arange(5), groups)))
    assert exact_sum(exchange(single(grid)), 5, "float32").nbytes_of(sizes).tolist() == expected.tolist()


@pytest.mark.parametrize("grid", [{}, {"scale": 2.0**-20, "bound": WIDE}])
def test_places_that_several_clients_fill(grid: Any) -> None:
    """Side by side or scattered, alike one after the other or not: always the sum of what each would be by itself."""
    rng, size = np.random.default_rng(3), 40_000  # more than is encoded at once
    scattered = np.sort(rng.choice(size, 300, replace=False))
    at = [slice(5, 20_005), scattered, scattered, slice(0, size), scattered[:7], scattered]
    values = [rng.uniform(-9, 9, np.arange(size)[one].shape).astype("f4") for one in at]
    adder = exact_sum(exchange(Answer(Field((size,), rows=0, **grid), (), ())), 6, "float32")
    adder.begin(True)
    adder.add(Answer(Placed(values, at, size), (), ()), np.arange(6))
    expected = np.zeros(size)
    for one, where in zip(values, at, strict=True):
        expected[where] += np.rint(one.astype("f8") / grid.get("scale", 2.0**-40)) * grid.get("scale", 2.0**-40)
    np.testing.assert_array_equal(adder.total(adder.message).v, expected.astype("f4"))


def test_a_grid_that_cannot_be_names_its_field() -> None:
    with pytest.raises(UsageError, match=r"\[aggregation\] up\.v: "):
        exact_sum(exchange(), 5, "float64", {"up.v": 2.0**80})


def test_answers_of_another_shape() -> None:
    """Of all clients, of a sender, and in some columns: each names the field and both shapes."""
    adder = exact_sum(exchange(), 5, "float64")
    adder.begin(True)
    with pytest.raises(UsageError, match=r"up\.v: the answer of 2 clients has shape \(3,\).*\(2, 3\)"):
        adder.add(answers(2, 0)._replace(v=np.zeros(3)), np.arange(2))
    placed = {shape: Placed([np.zeros(shape)], [slice(0, 2)], 9, axis=1) for shape in ((2, 2, 2), (2, 3, 2), (3, 2))}
    for shape, of_one, said in (
        ((2, 3, 2), 4, r"up\.placed: client 1 answers with shape \(2, 3, 2\) for its 2 entries, .* \(2, 2, 2\)"),
        ((3, 2), 4, r"up\.placed: client 1 answers with shape \(3, 2\) for its 2 entries"),
        ((2, 2, 2), 5, r"up\.of_one: the answer of 1 clients has shape \(1, 5\)"),
    ):
        adder = exact_sum(exchange(single({})), 5, "float64")
        adder.begin(True)
        with pytest.raises(UsageError, match=said):
            client = SENDER if of_one == 5 else 1
            adder.add(Single(placed[shape], np.zeros((1, of_one)), np.zeros((1, 3))), np.array([client]))
