"""The sum of one exchange's answers: exact to the rationals, with errors that name field and client."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.comm.channel import make_sum
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Field, Measure, ToServer
from mpifed.core.record import leaves, map_leaves


class Inner(NamedTuple):
    m: Any  # [2, 2]


class Answer(NamedTuple):
    v: Any  # [3]
    count: Any  # []
    inner: Any


FIELDS = Answer(Field((3,)), Field((), 1.0, 2.0**20), Inner(Field((2, 2), 2.0**-20, 2.0**40)))  # the last has 2 limbs


def exact_sum(of: Any, clients: int, dtype: str, bounds: Any = None, scales: Any = None) -> Any:
    return make_sum(of, clients, exact=True, dtype=dtype, bounds=bounds or {}, scales=scales or {})


def float_sum(of: Any, clients: int, dtype: str) -> Any:
    return make_sum(of, clients, exact=False, dtype=dtype)


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
        adder.begin(size)
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
    again.begin(clients)
    again.add(everything, np.arange(clients))
    assert again.message[:-1].tobytes() == messages[:-1].tobytes()


def test_shapes_and_dtypes_of_a_total() -> None:
    for kind in (exact_sum, float_sum):
        adder = kind(exchange(), 5, "float32")
        adder.begin(2)
        adder.add(answers(2, 0, "float32"), np.array([0, 1]))
        total = adder.total(adder.message)
        assert (total.v.shape, total.v.dtype) == ((3,), np.float32)
        assert (total.inner.m.shape, total.inner.m.dtype) == ((2, 2), np.float32)
        assert np.shape(total.count) == ()
        assert total.count.dtype == np.float64  # single numbers are counts and losses


def test_measures_are_summed_in_float64() -> None:
    measure = Measure("m", Answer(Field((3,)), Field(), ()), None, None, None)
    for kind in (exact_sum, float_sum):
        adder = kind(measure, 1, "float32")
        adder.begin(1)
        value = np.array([[1 / 3, 0, 0]])
        adder.add(Answer(value, np.array([2.0]), ()), np.array([0]))
        assert adder.total(adder.message).v[0] == pytest.approx(1 / 3, abs=2.0**-40)


def test_a_total_is_a_copy() -> None:
    for kind in (exact_sum, float_sum):
        adder = kind(exchange(), 5, "float64")
        adder.begin(2)
        adder.add(answers(2, 0), np.array([0, 1]))
        total = adder.total(adder.message)
        before = total.v.copy()
        adder.begin(1)
        adder.add(answers(1, 5), np.array([3]))
        np.testing.assert_array_equal(total.v, before)


def test_float_sums() -> None:
    adder, found = float_sum(exchange(), 5, "float64"), answers(4, 3)
    for _ in range(2):
        adder.begin(4)
        adder.add(found, np.arange(4))
        total = adder.total(adder.message)
        np.testing.assert_allclose(total.v, found.v.sum(axis=0), rtol=1e-14)
        np.testing.assert_allclose(total.inner.m, found.inner.m.sum(axis=0), rtol=1e-14)
        assert total.count == found.count.sum()


def test_nobody_answers() -> None:
    for kind in (exact_sum, float_sum):
        adder = kind(exchange(), 5, "float64")
        adder.begin(2)
        adder.add(answers(2, 1), np.arange(2))
        adder.begin(0)
        total = adder.total(adder.message)
        assert all(not np.any(leaf) for _, leaf in leaves(total))


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
    adder.begin(3)
    with pytest.raises(NumericalError) as caught:
        adder.add(found, np.array([3, 7, 9]))
    assert str(caught.value).startswith(f"up.v: {said}")
    assert '[sum.bounds] "up.v" =' in str(caught.value)


def test_a_bad_value_of_a_nested_field() -> None:
    adder, found = exact_sum(exchange(), 5, "float64"), answers(3, 0)
    found.inner.m[2, 0, 0] = 2.0**41
    adder.begin(3)
    with pytest.raises(NumericalError, match=r"^up\.inner\.m: client 9 has a value of 2\.19902e\+12"):
        adder.add(found, np.array([3, 7, 9]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_float_sums_that_are_not_finite(bad: float) -> None:
    adder, found = float_sum(exchange(), 5, "float32"), answers(3, 0)
    found.v[1, 2] = bad
    adder.begin(3)
    with pytest.raises(NumericalError, match=r"^up\.v: the sum over clients 3, 7, 9 is not finite"):
        adder.add(found, np.array([3, 7, 9]))


def test_large_but_finite_float_sums_are_no_error() -> None:
    adder, found = float_sum(exchange(), 5, "float32"), answers(1, 0)
    found.v[0] = 1e30  # whose square is not finite in float32
    adder.begin(1)
    adder.add(found, np.array([3]))
    assert adder.total(adder.message).v[0] == np.float32(1e30)


@pytest.mark.parametrize("kind", [exact_sum, float_sum])
def test_an_answer_of_another_shape(kind: Any) -> None:
    adder = kind(exchange(), 5, "float64")
    adder.begin(2)
    with pytest.raises(UsageError, match=r"up\.v: the answer of 2 clients has shape \(3,\).*\(2, 3\)"):
        adder.add(answers(2, 0)._replace(v=np.zeros(3)), np.arange(2))


def test_bounds_and_scales_of_the_job() -> None:
    fields = Answer(Field((3,)), Field(), ())
    adder = exact_sum(exchange(fields), 5, "float64", {"up.v": 8.0}, {"up.v": 0.25})
    adder.begin(1)
    adder.add(Answer(np.array([[0.3, 1.125, -8.0]]), np.array([1.0]), ()), np.array([0]))
    assert adder.total(adder.message).v.tolist() == [0.25, 1.0, -8.0]  # 1.125 is a tie: to even
    adder.begin(1)
    with pytest.raises(NumericalError, match="outside the bound 8"):
        adder.add(Answer(np.array([[8.25, 0, 0]]), np.array([1.0]), ()), np.array([0]))


@pytest.mark.parametrize(("bounds", "scales"), [({}, {"up.v": 0.3}), ({"up.v": 2.0**80}, {})])
def test_a_grid_that_cannot_be_names_its_field(bounds: Any, scales: Any) -> None:
    with pytest.raises(UsageError, match=r"\[sum\] up\.v: "):
        exact_sum(exchange(), 5, "float64", bounds, scales)


def test_bytes_are_those_of_one_client() -> None:
    assert exact_sum(exchange(), 5, "float32").nbytes == 8 * (3 + 1 + 2 * 4)
    assert float_sum(exchange(), 5, "float32").nbytes == 4 * (3 + 1 + 4)


def test_a_field_that_is_the_whole_record() -> None:
    adder = exact_sum(exchange(Field((2,))), 5, "float64")
    adder.begin(1)
    adder.add(np.array([[1.0, 2.0]]), np.array([0]))
    assert adder.total(adder.message).tolist() == [1.0, 2.0]
    with pytest.raises(NumericalError, match=r"^up: client 0"):
        adder.add(np.array([[np.nan, 2.0]]), np.array([0]))


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
        adder.begin(group)
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
