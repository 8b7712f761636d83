from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lengths import covering
from mpifed.comm.accumulate import make_sum
from mpifed.comm.encryption.packing import Packing, vectors
from mpifed.comm.exchange_plan import ExchangePlan

from mpifed.core.errors import BrokenProtocol, NumericalError
from mpifed.core.exchange import Field, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.maths.fixedpoint import grid

BFV, WIDE, FEW = (8192, 2**57), (16384, 2**47), (31, 2**62 + 2**32)  # that of the channel, and others


def line_of(fields: object, clients: int, columns: Cells | None = None, dtype: str = "float64") -> ExchangePlan:
    exchange = ToServer("e", fields, ask=None, answer=None, absorb=None)  # type: ignore[arg-type]
    columns = columns or Cells.all(clients)
    return ExchangePlan(exchange, lambda: make_sum(exchange, clients, dtype=dtype), columns)


def one_vector(field: Field, packing: Packing, dtype: str = "float64") -> tuple:
    plan = line_of(field, packing.clients, dtype=dtype)
    (vector,) = vectors(plan, Cells.all(packing.clients), packing)
    return plan, vector


@covering(
    {
        "scale, bound": [(2.0**-20, 2.0), (2.0**-40, 2.0**9), (1.0, 2.0**46), (2.0**-50, 2.0**20)],
        "clients": [1, 2, 16, 1000, 5000],
        "slots, capacity": [BFV, WIDE, FEW],
    }
)
def test_the_sum_of_extremes_comes_back_exactly(
    slots: int, capacity: int, clients: int, scale: float, bound: float
) -> None:
    """One and two limbs of the grid, any number of limbs in slots; each sum of slots within the capacity."""
    packing = Packing(slots, capacity, clients)
    plan, vector = one_vector(Field((40,), scale=scale, bound=bound), packing)
    most = plan.sum.places[0].form.largest
    rng = np.random.default_rng(0)
    kinds = np.concatenate([rng.integers(-m, m, (3, 40), endpoint=True) for m in most], axis=1)
    for i, m in enumerate(most):
        kinds[0, 40 * i : 40 * i + 10], kinds[1, 40 * i : 40 * i + 10] = m, m
        kinds[0, 40 * i + 10 : 40 * i + 20], kinds[1, 40 * i + 10 : 40 * i + 20] = -m, -m
    counts = np.array([clients // 2, clients - clients // 2, 0])
    packed = [dict(vector.pack(kind, 0)) for kind in kinds]
    summed = {n: sum(c * packed[k][n].astype(object) for k, c in enumerate(counts)) for n in vector.numbers}
    assert max(int(abs(one).max()) for one in summed.values()) <= capacity
    found = np.zeros(vector.segments[-1].at.stop, dtype=np.int64)
    vector.unpack({n: one.astype(np.int64) for n, one in summed.items()}, clients, found)
    assert np.array_equal(found, (counts[:, None] * kinds.astype(object)).sum(axis=0))


@settings(max_examples=60)
@given(st.integers(10, 61), st.integers(1, 5000), st.data())
def test_any_integers_survive_their_limbs(bits: int, clients: int, data: st.DataObject) -> None:
    packing = Packing(16, 2**20 * clients, clients)
    most = 2**bits // clients
    limbs = packing.limbs(most)
    assert max(limbs) <= packing.each
    assert len(limbs) == 1 or most > packing.each
    number = data.draw(st.sampled_from([most, -most]) | st.integers(-most, most))
    rest, digits = number, []
    for _ in limbs[1:]:
        digits.append((rest + 2 ** (packing.width - 1)) % 2**packing.width - 2 ** (packing.width - 1))
        rest = (rest - digits[-1]) >> packing.width
    digits.append(rest)
    assert all(abs(digit) <= limb for digit, limb in zip(digits, limbs, strict=True))
    assert sum(digit << (packing.width * i) for i, digit in enumerate(digits)) == number


def test_the_largest_integer_is_what_the_grid_makes_of_the_bound() -> None:
    """Rounded up: a bound between two multiples of the scale may round to the one above."""
    assert grid(1.0, 2.5, 3).largest == (3,)
    assert grid(2.0**-50, 2.0**20, 3).largest == (2**38, 2**31)


def test_out_of_range_names_field_and_client() -> None:
    _, vector = one_vector(Field((3,), scale=1.0, bound=10.0), Packing(*BFV, 4))
    list(vector.pack(np.array([10, -10, 0]), 2))
    for wrong in (11, -11, -(2**63)):
        with pytest.raises(NumericalError, match=r"e: client 2 sends the integer \d+ .* outside the 10"):
            list(vector.pack(np.array([0, wrong, 0]), 2))


def test_what_no_clients_can_add_up_to_is_refused() -> None:
    _, vector = one_vector(Field((3,), scale=1.0, bound=10.0), Packing(4, 2**57, 4))
    found = np.zeros(3, dtype=np.int64)
    vector.unpack({0: np.array([30, -30, 0, 0])}, 3, found)
    for slots in ([31, 0, 0, 0], [0, -31, 0, 0], [0, 0, 0, 1], [2**62, 0, 0, 0]):
        with pytest.raises(BrokenProtocol):
            vector.unpack({0: np.array(slots)}, 3, found)


def test_a_high_limb_out_of_range_is_refused_even_where_the_whole_would_wrap() -> None:
    packing = Packing(4, 2**20, 4)
    _, vector = one_vector(Field((2,), scale=1.0, bound=2.0**40), packing)
    assert len(vector.segments[0].limbs) == 3
    with pytest.raises(BrokenProtocol):
        vector.unpack({0: np.array([0, 0, 0, 0]), 1: np.array([2**20, 0, 0, 0])}, 1, np.zeros(2, dtype=np.int64))
    low, middle, high = vector.segments[0].limbs  # each is in range, and their sum is not
    with pytest.raises(BrokenProtocol):
        vector.unpack({0: np.array([low, 0, middle, 0]), 1: np.array([high, 0, 0, 0])}, 1, np.zeros(2, dtype=np.int64))


def columns_of(*groups: list[int]) -> Cells:
    return Cells.of_columns(
        Holdings(
            max(max(group) for group in groups) + 1, np.arange(len(groups)), tuple(np.array(group) for group in groups)
        )
    )


def test_large_groups_of_columns_travel_apart_and_small_ones_together() -> None:
    columns = columns_of([0, 2], [1, 3])
    wide, narrow = Packing(4, 2**57, 2), Packing(100, 2**57, 2)
    field = Field((3, 4), columns=1)
    apart = vectors(line_of(field, 2, columns), columns, wide)
    assert [vector.senders.tolist() for vector in apart] == [[True, False], [False, True]]
    assert [vector.size for vector in apart] == [6, 6]
    assert sorted(np.concatenate([s.at for vector in apart for s in vector.segments]).tolist()) == list(range(12))
    assert [list(vector.numbers) for vector in apart] == [[0, 1], [2, 3]]
    (together,) = vectors(line_of(field, 2, columns), columns, narrow)
    assert together.senders.all() and together.size == 12
