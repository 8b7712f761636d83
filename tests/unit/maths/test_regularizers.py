"""Regularizers: values and groups by hand, the prox by its inequality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from test_objectives import flat, unflat

from mpifed.core.record import map_leaves
from mpifed.maths.objectives import Bias, BiasedOutput, Parameters
from mpifed.maths.regularizers import L1, Box, GroupL1

CONVEX: dict[str, Any] = {
    "l1": L1(0.4),
    "l1, biases": L1(0.4, biases=True),
    "group-l1": GroupL1(0.35),
    "box": Box(-0.5, 1.0),
    "box, one side": Box(low=0.0),
}
HEADS: dict[str, Any] = {
    "none": (),
    "bias": Bias(np.empty(2)),
    "mlp": BiasedOutput(np.empty((2, 3)), np.empty(2), np.empty(3)),
}


def model_with(head: Any, seed: int = 0, scale: float = 1.5, features: int = 4) -> Parameters:
    rng = np.random.default_rng(seed)
    return map_leaves(lambda leaf: scale * rng.standard_normal(leaf.shape), Parameters(np.empty((features, 2)), head))


@covering({"step": [0.05, 1.0, 7.0], "h": CONVEX.values(), "head": HEADS.values()})
def test_the_inequality_of_the_prox(h: Any, head: Any, step: float) -> None:
    """h(p) + <u - p, x - p> / step <= h(x) for all x says that p is the minimizer, and nothing else is."""
    for seed in range(2):
        u = model_with(head, seed)
        p = h.prox(u, step)
        assert np.isfinite(h.value(p))
        points = [model_with(head, 100 + i, scale) for i, scale in enumerate(np.repeat([0.1, 1.0, 10.0], 20))]
        near = np.random.default_rng(seed).standard_normal((20, flat(u).size))
        points += [unflat(u, flat(p) + 0.01 * move) for move in near]
        points += [h.prox(x, 1.0) for x in points]  # with zeros, or inside
        for x in points:
            inner = (flat(u) - flat(p)) @ (flat(x) - flat(p)) / step
            assert h.value(p) + inner <= h.value(x) + 1e-9 * (1 + abs(inner))


def test_values() -> None:
    head = BiasedOutput(np.array([[2.0, -2.0]]), np.ones(1), -np.ones(2))
    model = Parameters(np.array([[3.0, -4.0], [0.0, 1.0]]), head)
    assert L1(0.5).value(model) == 0.5 * (8 + 4)
    assert L1(0.5, biases=True).value(model) == 0.5 * (8 + 4 + 3)
    assert GroupL1(0.5).value(model) == pytest.approx(0.5 * 2**0.5 * (5 + 1))
    assert Box(-4, 3).value(model) == 0
    assert Box(-3.9, 3).value(model) == Box(high=2.9).value(model) == np.inf
    large = map_leaves(lambda leaf: leaf.astype("f4") * np.float32(8e37), model)
    assert L1(1.0).value(large) == pytest.approx(12 * 8e37, rel=1e-6)  # above what float32 holds
