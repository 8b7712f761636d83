"""Records of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.comm.states import put
from mpifed.core.record import leaves, map_leaves, take
from mpifed.maths.arrays import repeated


class Inner(NamedTuple):
    a: Any
    b: Any


class Outer(NamedTuple):
    x: Any
    inner: Any
    nothing: Any


def example() -> Outer:
    return Outer(np.arange(6, dtype="f4").reshape(3, 2), Inner(np.arange(3), np.ones((3, 1), dtype="u1")), ())


def bits(record: Any) -> list[Any]:
    return [(name, np.asarray(a).dtype, np.shape(a), np.asarray(a).tobytes()) for name, a in leaves(record)]


def test_leaves_have_dotted_names_in_order() -> None:
    assert [name for name, _ in leaves(example())] == ["x", "inner.a", "inner.b"]
    assert list(leaves(())) == []
    assert [name for name, _ in leaves(np.zeros(2))] == [""]


@given(st.sets(st.integers(0, 2)))
def test_put_undoes_take(who: set[int]) -> None:
    record, at = example(), np.array(sorted(who), dtype=np.int64)
    part = take(record, at)
    assert {len(leaf) for _, leaf in leaves(part)} == {len(who)}
    before = bits(record)
    assert bits(put(record, at, part)) == before
    negative = map_leaves(lambda leaf: leaf + 7, part)
    changed = put(record, at, negative)
    assert bits(record) == before  # the old one stands
    np.testing.assert_array_equal(changed.inner.a, [i + 7 * (i in who) for i in range(3)])
    assert bits(take(changed, at)) == bits(negative)


@pytest.mark.parametrize(
    "leaf", [np.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.array(7), np.float64(2)]
)
def test_a_leaf_so_many_times(leaf: Any) -> None:
    view = repeated(leaf, 3)
    np.testing.assert_array_equal(view, np.stack([leaf] * 3))
    assert view.dtype == leaf.dtype and not view.flags.writeable
    assert np.shares_memory(view, leaf) or not isinstance(leaf, np.ndarray)
    assert repeated(np.zeros((0, 2)), 4).shape == (4, 0, 2)
