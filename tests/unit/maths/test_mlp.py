"""Networks with several hidden layers, and activations: gradients against finite differences and plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from records import bare_leaves, flat, unflat
from scipy.stats import norm

from mpifed.core.record import NamedArrays, leaves, map_leaves
from mpifed.job.components import MODEL, make, written_out, wrong_with
from mpifed.maths.activations import ACTIVATIONS
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import MLP, BiasedOutput, Output, penalty, penalty_gradient

FEATURES, OUTPUTS, N, S = 5, 4, 3, 6
DEPTHS: dict[int, Any] = {1: 7, 2: (7, 3), 3: (7, 3, 6)}
every_network = pytest.mark.parametrize(
    "objective",
    [
        MLP(hidden, bias, loss_name=loss, activation=activation)
        for hidden in DEPTHS.values()
        for activation in ACTIVATIONS
        for bias, loss in ((False, "cross-entropy"), (True, "cross-entropy"), (True, "squared-error"))
    ],
    ids=lambda objective: f"{objective.widths}-{objective.activation}-{objective.bias}-{objective.loss_name}",
)
FUNCTIONS = {
    "swish": lambda z: z / (1 + math.exp(-z)),
    "relu": lambda z: max(z, 0.0),
    "tanh": math.tanh,
    "gelu": lambda z: z * norm.cdf(z),
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def task(objective: MLP, rng: Any, own: bool = True, dtype: str = "float64") -> tuple[Any, Any, Any, Any]:
    """(model, or one for each client, X, y, weights)."""
    outputs = OUTPUTS if objective.classifies else 1
    start = objective.start(FEATURES, outputs, rng, dtype)
    lead = (N,) if own else ()
    model = map_leaves(lambda leaf: (leaf + 0.4 * rng.standard_normal((*lead, *leaf.shape))).astype(dtype), start)
    y = rng.integers(0, outputs, (N, S)) if objective.classifies else rng.standard_normal((N, S))
    return model, rng.standard_normal((N, S, FEATURES)).astype(dtype), y, rng.uniform(0.5, 2, (N, S))


def of_client(record: Any, i: int) -> Any:
    return map_leaves(lambda leaf: leaf[i], record)


def loss_of(objective: MLP, model: Any, x: Any, y: Any) -> float:
    """One sample's, unit by unit."""
    named = {name.removeprefix("head."): leaf for name, leaf in leaves(model)}
    if "second" in named:
        weights = [named["first"], named["second"]]
        biases = [named.get("hidden_bias"), named.get("output_bias")]
    else:
        names = [*(f"layer{k}" for k in range(1, len(objective.widths) + 1)), "output"]
        weights = [named["first"], *(named[f"{name}.weight"] for name in names[1:])]
        biases = [named.get(f"{name}.bias") for name in names]
    for k, (w, b) in enumerate(zip(weights, biases, strict=True)):
        z = [sum(x[i] * w[i, j] for i in range(len(x))) + (0 if b is None else b[j]) for j in range(w.shape[1])]
        x = [FUNCTIONS[objective.activation](value) for value in z] if k < len(weights) - 1 else z
    if not objective.classifies:
        return float((x[0] - y) ** 2 / 2)
    return float(np.log(np.exp(x).sum()) - x[y])


@every_network
def test_losses_are_those_of_a_plain_loop(objective: MLP, rng: Any) -> None:
    model, X, y, _ = task(objective, rng)
    losses = objective.loss(model.head, objective.scores_of(model, X), y)
    for i, s in np.ndindex(N, S):
        assert losses[i, s] == pytest.approx(loss_of(objective, of_client(model, i), X[i, s], y[i, s]), rel=1e-10)


@every_network
@pytest.mark.parametrize("own", [False, True], ids=["one model", "own models"])
def test_gradients_are_finite_differences(objective: MLP, own: bool, rng: Any) -> None:
    """Of every parameter, for clients side by side; the loss that comes along is that of `loss`."""
    model, X, y, weights = task(objective, rng, own)
    found = objective.gradient(model, X, y, weights)
    slope = objective.slope(model.head, objective.scores_of(model, X), y, weights)
    np.testing.assert_array_equal(slope.loss, objective.loss(model.head, objective.scores_of(model, X), y))
    for i in range(N):
        at = of_client(model, i) if own else model

        def total(values: Any, at: Any = at, i: int = i) -> float:
            moved = unflat(values, at)
            return float((weights[i] * objective.loss(moved.head, objective.scores_of(moved, X[i]), y[i])).sum())

        values, h = flat(at), 1e-6
        central = [(total(values + h * e) - total(values - h * e)) / (2 * h) for e in np.eye(values.size)]
        np.testing.assert_allclose(flat(of_client(found, i)), central, rtol=1e-6, atol=1e-7)  # h^2 and rounding / h


@every_network
def test_clients_do_not_depend_on_their_neighbours(objective: MLP, rng: Any) -> None:
    """Bit for bit, in float32, which stays float32."""
    model, X, y, weights = task(objective, rng, dtype="float32")
    together = objective.gradient(model, X, y, weights)
    exact = objective.gradient(map_leaves(lambda leaf: leaf.astype("f8"), model), X.astype("f8"), y, weights)
    for i in range(N):
        alone = objective.gradient(map_leaves(lambda leaf: leaf[[i]], model), X[[i]], y[[i]], weights[[i]])  # noqa: B023
        for one, all_, wide in zip(*map(bare_leaves, (alone, together, exact)), strict=True):
            assert one.dtype == np.float32 and one[0].tobytes() == all_[i].tobytes()
            np.testing.assert_allclose(all_[i], wide[i], rtol=1e-4, atol=2e-5)


@every_network
def test_steps_have_the_bits_of_the_gradient_and_the_slope(objective: MLP, rng: Any) -> None:
    """Two sizes of minibatches in turn, in the same arrays."""
    model, X, y, weights = task(objective, rng, dtype="float32")
    keep = [0.9 + 0.01 * k for k in range(len(bare_leaves(model)))]
    step, here, there = objective.local_step(keep), model, map_leaves(np.copy, model)
    for rows in (S, S - 2, S, S - 2):
        batch = X[:, :rows], y[:, :rows], -0.1 * weights[:, :rows]
        scores, backward = objective.forward(there, batch[0])
        gradient = backward(objective.slope(there.head, scores, *batch[1:]))
        assert flat(objective.gradient(there, *batch)).tobytes() == flat(gradient).tobytes()
        parts = zip(bare_leaves(there), bare_leaves(gradient), keep, strict=True)
        moved = [leaf * np.float32(part) + change for leaf, change, part in parts]
        there = unflat(np.concatenate([leaf.ravel() for leaf in moved]), there)
        step(here, *batch)
        assert flat(here).tobytes() == flat(there).tobytes()


@every_network
@pytest.mark.parametrize("own", [True, False])
def test_gradients_of_a_few_clients_at_a_time(objective: MLP, own: bool, rng: Any) -> None:
    model, X, y, weights = task(objective, rng, own, "float32")
    whole = objective.gradient(model, X, y, weights)
    for few in (1, 2, 5):
        positions = list[int]()
        for at, part in objective.gradients(model, X, y, weights, few):
            expected = flat(map_leaves(lambda leaf: leaf[at], whole))  # noqa: B023
            assert flat(part).tobytes() == expected.tobytes(), few
            positions += range(N)[at]
        assert positions == list(range(N)), few


def test_a_slope_of_one_s_own_is_what_steps_take(rng: Any) -> None:
    class Halved(MLP):
        def slope(self, head: Any, scores: Any, y: Any, weights: Any) -> Any:
            return super().slope(head, scores, y, weights / 2)

    model, X, y, weights = task(MLP(7, True), rng)
    for objective, given in ((Halved(7, True), weights), (MLP(7, True), weights / 2)):
        moved = map_leaves(np.copy, model)
        objective.local_step([1.0] * len(bare_leaves(model)))(moved, X, y, given)
        moved = map_leaves(np.subtract, moved, objective.gradient(model, X, y, given))
        np.testing.assert_allclose(flat(moved), flat(model), atol=1e-12)
    whole, half = (o.gradient(model, X, y, weights) for o in (MLP(7, True), Halved(7, True)))
    np.testing.assert_allclose(flat(half), flat(whole) / 2)


@every_network
def test_nothing_that_is_given_is_changed(objective: MLP, rng: Any) -> None:
    model, X, y, weights = task(objective, rng)
    scores = objective.scores_of(model, X)
    before = [leaf.tobytes() for leaf in (*bare_leaves(model), scores, y, weights)]
    objective.slope(model.head, scores, y, weights)
    objective.weighted_later(model.head, scores, y, weights).weighted(weights, None)
    objective.predict(model.head, scores)
    assert [leaf.tobytes() for leaf in (*bare_leaves(model), scores, y, weights)] == before


@every_network
@pytest.mark.parametrize("own", [False, True], ids=["one model", "own models"])
def test_norms_and_clipping_are_those_of_a_loop(objective: MLP, own: bool, rng: Any) -> None:
    model, X, y, weights = task(objective, rng, own)
    scores = objective.scores_of(model, X)
    found = objective.weighted_later(model.head, scores, y, np.ones(y.shape)).head_squares
    each = np.empty((N, S), object)
    for i, s in np.ndindex(N, S):
        at = of_client(model, i) if own else model
        each[i, s] = objective.gradient(at, X[i, [s]], y[i, [s]], np.ones(1))
        assert found[i, s] == pytest.approx(sum(float((leaf**2).sum()) for leaf in each[i, s].head), rel=1e-10)
    norms = np.array([[np.linalg.norm(flat(one)) for one in row] for row in each])
    clip = float(np.median(norms))
    came = clipped_gradient(objective, model, X, y, weights, clip)
    for i in range(N):
        factors = weights[i] * np.minimum(1, clip * (1 - 2.0**-20) / np.maximum(norms[i], 1e-99))  # relu may be 0
        expected = sum(factor * flat(one) for factor, one in zip(factors, each[i], strict=True))
        np.testing.assert_allclose(flat(of_client(came, i)), expected, rtol=1e-9, atol=1e-12)


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
@pytest.mark.parametrize("hidden", [4, (4, 3)])
def test_terms_that_cancel_leave_no_gradient_above_the_bound(kind: Any, dtype: str, hidden: Any, rng: Any) -> None:
    """Two equal outputs: the slopes' terms cancel, those of a scaled loss but for roundings, which x makes huge."""
    for clip in (0.3, 0.01):
        for _ in range(50):
            objective = kind(hidden, False)
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


def test_names_shapes_and_start() -> None:
    """Weights as wide as Glorot says, one draw after the other from the features on; biases of zero."""
    model = MLP((7, 3), bias=True).start(FEATURES, OUTPUTS, np.random.default_rng(2), "float32")
    assert {name: leaf.shape for name, leaf in leaves(model)} == {
        "first": (5, 7), "head.layer1.bias": (7,), "head.layer2.weight": (7, 3), "head.layer2.bias": (3,),
        "head.output.weight": (3, 4), "head.output.bias": (4,),
    }  # fmt: skip
    rng = np.random.default_rng(2)
    for name, leaf in leaves(model):
        limit = np.sqrt(6 / sum(leaf.shape)) if leaf.ndim == 2 else 0
        np.testing.assert_array_equal(leaf, rng.uniform(-limit, limit, leaf.shape).astype("f4") if limit else 0)
        assert leaf.dtype == np.float32, name
    plain = MLP((7, 3, 6), bias=False).start(FEATURES, OUTPUTS, np.random.default_rng(2), "float32")
    assert [name for name, _ in leaves(plain)] == [
        "first", "head.layer2.weight", "head.layer3.weight", "head.output.weight"
    ]  # fmt: skip


@pytest.mark.parametrize(("bias", "kind"), [(False, Output), (True, BiasedOutput)])
def test_a_list_of_one_layer_is_that_layer(bias: bool, kind: type, rng: Any) -> None:
    one, listed = MLP(7, bias), MLP((7,), bias)
    model, X, y, weights = task(one, np.random.default_rng(3), own=False)
    other, *_ = task(listed, np.random.default_rng(3), own=False)
    assert type(model.head) is type(other.head) is kind
    pairs = zip(*(bare_leaves(a.gradient(model, X, y, weights)) for a in (one, listed)), strict=True)
    assert all(a.tobytes() == b.tobytes() for a, b in pairs) and flat(model).tobytes() == flat(other).tobytes()


@pytest.mark.parametrize("penalize_bias", [False, True])
def test_penalties_leave_out_biases(penalize_bias: bool, rng: Any) -> None:
    objective = MLP((7, 3), True, l2=0.3, penalize_bias=penalize_bias)
    model, *_ = task(objective, rng, own=False)
    counted = [leaf for name, leaf in leaves(model) if penalize_bias or not name.endswith("bias")]
    assert penalty(objective, model) == pytest.approx(0.3 * sum(float((leaf**2).sum()) for leaf in counted))
    for name, slope in leaves(penalty_gradient(objective, model)):
        counts = penalize_bias or not name.endswith("bias")
        np.testing.assert_allclose(slope, 0.6 * dict(leaves(model))[name] * counts, rtol=1e-12)
    assert isinstance(objective.penalized(model).head, NamedArrays)


def test_activations_of_large_inputs_are_finite() -> None:
    far = np.array([-1e4, -40, -0.0, 0, 40, 1e4], "f4")
    for name, activation in ACTIVATIONS.items():
        gate, active = activation.values(far)
        expected = np.tanh(far) if name == "tanh" else np.maximum(far, 0)
        np.testing.assert_allclose(active, expected, atol=1e-6)
        slope = activation.slope(far, gate, active.copy(), np.ones_like(far))
        steep = {"tanh": [0, 0, 1, 1, 0, 0], "relu": [0, 0, 0, 0, 1, 1]}.get(name, [0, 0, 0.5, 0.5, 1, 1])
        np.testing.assert_allclose(slope, steep, atol=1e-6)


# --- jobs ----------------------------------------------------------------------------------------------------------


def test_jobs_give_a_number_or_a_list() -> None:
    table = {"name": "mlp", "hidden": [200, 100], "activation": "relu"}
    assert make(MODEL, table) == MLP((200, 100), activation="relu")
    assert written_out(MODEL, table)["hidden"] == [200, 100]
    assert make(MODEL, {"name": "mlp", "hidden": 7}).widths == (7,)
    assert replace(MLP(), hidden=[3, 4]).widths == (3, 4)


@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        (0, " = 0: expected a number above 0"),
        ([3, 0], ", second value = 0: expected a number above 0"),
        (1.5, " = 1.5: expected an integer"),
        ([1.5], ", first value = 1.5: expected an integer"),
        ("wide", ' = "wide": expected an integer'),
        ([10**7], ", first value = 10000000: expected a number of at most 1000000"),
        ([[2]], ", first value = [2]: expected an integer"),
        (True, " = true: expected an integer"),
    ],
)
def test_other_values_are_refused(hidden: Any, said: str) -> None:
    assert wrong_with(MODEL, {"name": "mlp", "hidden": hidden}) == [f"[model] hidden{said}"]


def test_no_layer_and_no_such_activation() -> None:
    assert MLP(()).check(5, 3)[0].startswith("[model] hidden = []: lists no layer; give the units of each")
    assert MLP((3, 3)).check(5, 3) == []
    (wrong,) = wrong_with(MODEL, {"name": "mlp", "activation": "sigmoid"})
    assert wrong == '[model] activation = "sigmoid": expected "swish", "relu", "tanh" or "gelu"'
