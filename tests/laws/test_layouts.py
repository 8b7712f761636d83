"""Every model as one vector: its layers by name are the leaves that `start` gives, bit for bit, and none is a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import own_functions
import own_networks
import pytest

from mpifed.core.record import bare_leaves, leaves, map_leaves
from mpifed.maths.objectives import MLP, OBJECTIVES, LinearScores, layout_of

MODELS = {
    f"{name}, {'penalized ' * every}{'bias' if bias else 'none'}": kind(bias=bias, penalize_bias=every)
    for name, kind in OBJECTIVES.items()
    if issubclass(kind, LinearScores)
    for bias, every in ((False, False), (True, False), (True, True))
} | {
    "of one's own, from ours": own_functions.MLP(bias=True),
    "of one's own, linear": own_functions.Absolute(),
    "of one's own, with a head": own_functions.Deep(),
    "a network of one's own": own_networks.Hidden(),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("objective", MODELS.values(), ids=MODELS)
def test_layers_are_the_leaves(objective: Any, dtype: str) -> None:
    model, rng = objective.start(6, 3, np.random.default_rng(0), dtype), np.random.default_rng(1)
    layout = layout_of(objective, model)
    model = map_leaves(lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), model)
    x = layout.flat(model)
    assert bits(zip(layout.shapes, layout.views(x), strict=True)) == bits(leaves(model))
    counted = bare_leaves(objective.penalized(model))
    assert [layout.at[name].stop <= layout.penalized.stop for name in layout.shapes] == counted
    for each in bare_leaves(layout.record(x, model)):
        each[...] = 7
    assert (x == 7).all()


def test_intercepts_stand_at_the_end() -> None:
    model = MLP(4, bias=True).start(6, 3, np.random.default_rng(0), "float32")
    layout = layout_of(MLP(4, bias=True), model)
    assert (layout.at["first"].start, layout.at["head.hidden_bias"].start) == (0, layout.penalized.stop)
    assert layout_of(MLP(4, bias=True, penalize_bias=True), model).penalized == slice(0, layout.size)


def bits(named: Any) -> list[Any]:
    return [(name, leaf.dtype, leaf.shape, leaf.tobytes()) for name, leaf in named]
