"""A model as one vector: where its layers stand, whatever their shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.core.vector import Layout

shapes = st.dictionaries(st.text("abc.", min_size=1), st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1)
leads = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@given(shapes, st.data(), leads)
def test_views_are_of_every_entry_once(shapes: dict[str, Any], data: st.DataObject, lead: tuple[int, ...]) -> None:
    free = data.draw(st.sets(st.sampled_from(list(shapes))))
    layout = Layout(shapes, free)
    x = np.full((*lead, layout.size), -1.0)
    for number, (name, view) in enumerate(zip(shapes, layout.views(x), strict=True)):
        assert view.shape == (*lead, *shapes[name])
        assert not view.size or np.shares_memory(view, x)
        assert (view == -1).all()
        view[...] = number
        assert (x[..., layout.at[name]] == number).all()
        assert not view.size or (layout.at[name].stop <= layout.penalized.stop) == (name not in free)
    assert (x >= 0).all()


class Pair(NamedTuple):
    first: Any
    bias: Any


@pytest.mark.parametrize("lead", [(), (3,), (0,)])
@pytest.mark.parametrize("free", [(), ("first",), ("bias",)])
def test_a_record_goes_there_and_back(lead: tuple[int, ...], free: tuple[str, ...]) -> None:
    layout, rng = Layout({"first": (4, 2), "bias": (2,)}, free), np.random.default_rng(0)
    record = Pair(rng.standard_normal((*lead, 4, 2)).astype("f4"), rng.standard_normal((*lead, 2)).astype("f4"))
    x = layout.flat(record)
    for view, leaf in zip(layout.record(x, record), record, strict=True):
        assert (view.dtype, view.shape, view.tobytes()) == (leaf.dtype, leaf.shape, leaf.tobytes())
        assert not np.shares_memory(x, leaf)
    np.testing.assert_array_equal(layout.flat(record, "f8"), x.astype("f8"))
