"""The network with one hidden layer: gradients against finite differences and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from records import bare_leaves, flat

from mpifed.core.record import leaves, map_leaves
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import MLP, layout_of

FEATURES, OUTPUTS, N, S = 5, 4, 3, 6
every_network = pytest.mark.parametrize("objective", [MLP(7, False), MLP(7, True)], ids=["no bias", "bias"])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def task(objective: MLP, rng: Any, own: bool = True, dtype: str = "float64") -> tuple[Any, Any, Any, Any]:
    """(model, or one for each client, X, y, weights)."""
    start = objective.start(FEATURES, OUTPUTS, rng, dtype)
    lead = (N,) if own else ()
    model = map_leaves(lambda leaf: (leaf + 0.4 * rng.standard_normal((*lead, *leaf.shape))).astype(dtype), start)
    y = rng.integers(0, OUTPUTS, (N, S))
    return model, rng.standard_normal((N, S, FEATURES)).astype(dtype), y, rng.uniform(0.5, 2, (N, S))


@every_network
@pytest.mark.parametrize("own", [False, True])
def test_a_gradient_is_put_into_views_with_its_bits(objective: MLP, own: bool, rng: Any) -> None:
    """It is that by the slope and the way back."""
    model, X, y, weights = task(objective, rng, own, "float32")
    scores, backward = objective.forward(model, X)
    gradient = backward(objective.slope(model.head, scores, y, weights))
    assert flat(objective.gradient(model, X, y, weights)).tobytes() == flat(gradient).tobytes()
    layout = layout_of(objective, map_leaves(lambda leaf: leaf[0], gradient))
    x = np.full((N, layout.size), np.nan, "float32")
    objective.put_gradient(model, X, y, weights, layout.record(x, gradient))
    assert x.tobytes() == layout.flat(gradient).tobytes()


class Doubled(MLP):
    def slope(self, head: Any, scores: Any, y: Any, weights: Any) -> Any:
        return super().slope(head, scores, y, 2 * weights)


@every_network
@pytest.mark.parametrize("own", [False, True])
def test_factors_that_come_after_the_pass_give_the_same_bits(objective: MLP, own: bool, rng: Any) -> None:
    """Factors of 1; and others scale what each sample gives."""
    model, X, y, weights = task(objective, rng, own)
    scores, ones, head = objective.scores(model.first, X), np.ones(y.shape), model.head
    later = objective.weighted_later(head, scores.copy(), y, ones)
    assert np.array_equal(later.slopes, objective.slope(head, scores.copy(), y, ones).scores)
    later = objective.weighted_later(head, scores.copy(), y, weights)
    expected = objective.slope(head, scores.copy(), y, weights)
    assert np.array_equal(later.slopes, expected.scores)
    head_too, slopes = later.weighted(ones, None)
    assert np.array_equal(slopes, expected.scores)
    for (name, leaf), other in zip(leaves(head_too), bare_leaves(expected.head), strict=True):
        assert np.array_equal(leaf, other), name
    few = rng.random(y.shape) < 0.5  # the others' numbers are not read
    only = objective.weighted_later(head, scores.copy(), y, weights).weighted(0.25 * few, None)
    unread = np.where(few[..., None], scores, np.nan)
    blind = objective.weighted_later(head, unread, y, weights).weighted(0.25 * few, few)
    expected = objective.slope(head, scores.copy(), y, weights * 0.25 * few)
    of_all = [[slopes, *bare_leaves(head)] for head, slopes in (only, blind, (expected.head, expected.scores))]
    for leaf, same, other in zip(*of_all, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-12, atol=1e-14)
        assert np.array_equal(leaf, same)


@pytest.mark.parametrize("kind", [MLP, Doubled])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_terms_that_cancel_leave_no_gradient_above_the_bound(kind: Any, dtype: str, rng: Any) -> None:
    """Two equal outputs: the slopes' terms cancel, those of a scaled loss but for roundings, which x makes huge."""
    for clip in (0.3, 0.01):
        for _ in range(50):
            objective = kind(4, False)
            model = map_leaves(lambda leaf: leaf.astype(dtype), objective.start(2, 2, rng, "float64"))
            last = bare_leaves(model)[-1]
            last[:, 1] = last[:, 0]
            model.first[1] = 0
            X = np.array([[[rng.normal() + 3, 1e30 if dtype == "float64" else 1e18]]], dtype)
            for narrow in (False, True):
                found = clipped_gradient(objective, model, X, np.zeros((1, 1), int), np.ones((1, 1)), clip, narrow)
                assert np.linalg.norm(flat(found).astype("f8")) <= clip


def test_a_slope_of_one_s_own_is_what_is_clipped(rng: Any) -> None:
    model, X, y, weights = task(MLP(7, True), rng)
    assert MLP(7, True).weighs_later
    assert not Doubled(7, True).weighs_later
    total = clipped_gradient(Doubled(7, True), model, X, y, weights, 1e6)  # nothing is that long
    np.testing.assert_allclose(flat(total), 2 * flat(MLP(7, True).gradient(model, X, y, weights)), rtol=1e-11)
