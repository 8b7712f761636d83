"""Objectives, losses and terms: the laws of `mpifed.laws`, values and gradients from definitions, every way to them."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from definitions import OF_LOSS, forward
from lengths import covering
from scipy.sparse import csr_matrix
from sklearn.metrics import hinge_loss, log_loss

import mpifed
from mpifed.core.record import leaves, map_leaves
from mpifed.data.block import vectors
from mpifed.laws import ModelFunction, check_function
from mpifed.maths import duals, losses
from mpifed.maths.objectives import (
    MLP,
    OBJECTIVES,
    Hinge,
    LeastSquares,
    LinearScores,
    Logistic,
    Parameters,
    SquaredHinge,
    layout_of,
    penalty,
    penalty_gradient,
)
from mpifed.maths.problem import Problem
from mpifed.maths.terms import ErrorRate, Loss, Norm

ROOT = Path(mpifed.__file__).resolve().parents[1]
PositiveRate = runpy.run_path(str(ROOT / "jobs" / "examples" / "own_constraint.py"))["PositiveRate"]
FEATURES, OUTPUTS, N, S = 5, 4, 3, 6
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {"hidden": 3} if name == "mlp" else {})
    for name, kind in OBJECTIVES.items()
    if issubclass(kind, LinearScores)
}
CASES |= {f"{name}, bias": (kind, settings | {"bias": True}) for name, (kind, settings) in CASES.items()}
CLASSIFIERS = ["mlp", "mlp, bias", "softmax", "softmax, bias", "logistic", "logistic, bias"]  # by the cross-entropy
every_objective = pytest.mark.parametrize("name", list(CASES))


def make(name: str, **settings: Any) -> Any:
    """Small, where a size can be chosen."""
    kind, own = CASES[name]
    return OBJECTIVES[kind](**own, **settings)


def outputs_of(objective: Any) -> int:
    if not objective.classifies:
        return 1
    return {LeastSquares: 1, Logistic: 2, Hinge: 2, SquaredHinge: 2}.get(type(objective), OUTPUTS)


def model_of(objective: Any, seed: int = 0, scale: float = 1.0) -> Parameters:
    """A model whose entries are random, not at the objective's start."""
    rng = np.random.default_rng(seed)
    start = objective.start(FEATURES, outputs_of(objective), rng, "float64")
    return map_leaves(lambda leaf: scale * rng.standard_normal(leaf.shape), start)


def data(objective: Any, lead: tuple[int, ...], seed: int = 1) -> tuple[Any, Any, Any]:
    rng, shape = np.random.default_rng(seed), (*lead, S)
    y = rng.integers(0, outputs_of(objective), shape) if objective.classifies else rng.standard_normal(shape)
    return rng.standard_normal((*shape, FEATURES)), y, rng.uniform(-0.5, 2, shape)


def flat(record: Any) -> Any:
    return np.concatenate([np.asarray(leaf).reshape(-1) for _, leaf in leaves(record)])


def unflat(like: Any, values: Any) -> Any:
    parts = iter(np.split(values, np.cumsum([leaf.size for _, leaf in leaves(like)])[:-1]))
    return map_leaves(lambda leaf: next(parts).reshape(leaf.shape), like)


def own_models(model: Parameters) -> Parameters:
    """A model for each client."""
    return map_leaves(lambda leaf: np.stack([leaf, -leaf, 2 * leaf]), model)


PAIRS = [*((Loss, name) for name in CASES), *((ErrorRate, name) for name in CLASSIFIERS), (PositiveRate, "logistic")]


@pytest.mark.parametrize(("kind", "name"), PAIRS, ids=[f"{k.__name__}, {name}" for k, name in PAIRS])
def test_laws(kind: Any, name: str) -> None:
    """Derivatives are those of differences; samples count as they would alone; models stay; `convex`."""
    objective = make(name)
    problem = Problem(objective, "rows", np.array([9, 9]), 18, FEATURES, outputs_of(objective), "float64")
    check_function(ModelFunction(objective, kind()), problem, np.random.default_rng(3))


DEFINED = [(*pair, classes) for pair in PAIRS[:-1] for classes in (None, (1, 2)) if "multilabel" not in pair[1]]


@pytest.mark.parametrize(("kind", "name", "classes"), [c for c in DEFINED if c[2] is None or make(c[1]).classifies])
def test_values_and_gradients_are_those_of_the_definitions(kind: Any, name: str, classes: Any) -> None:
    """The mean over some classes is that over their rows."""
    objective = make(name)
    term, model, (X, y, weights) = kind(classes), model_of(objective), data(objective, ())
    scores, counted = objective.scores(model.first, X), term.counted(y)
    values, backward = forward(CASES[name][0], dict(leaves(model)), X, y)
    phi, slope = OF_LOSS["loss" if kind is Loss else "error-rate"]({})
    np.testing.assert_allclose(term.loss(objective, model.head, scores, y), phi(values), rtol=1e-11)
    assert (counted is None) if classes is None else (counted == np.isin(y, classes)).all()
    weights = weights if counted is None else weights * counted
    down = term.slope(objective, model.head, scores, y, weights)
    expected = backward(weights * slope(values))
    found = Parameters(objective.pull(X, down.scores), down.head)
    np.testing.assert_allclose(flat(found), np.concatenate([expected[key].ravel() for key, _ in leaves(model)]), 1e-10)


@covering({"name": CASES, "own": [False, True], "dtype": ["float32", "float64"]}, 1)
def test_every_way_to_a_gradient_has_its_bits(name: str, own: bool, dtype: str) -> None:
    """By the slope and the way back, put into views, and of few clients at a time."""
    objective = make(name)
    X, y, weights = data(objective, (N,))
    X, model = X.astype(dtype), map_leaves(lambda leaf: leaf.astype(dtype), model_of(objective))
    model = own_models(model) if own else model
    scores, backward = objective.forward(model, X)
    gradient = backward(objective.slope(model.head, scores, y, weights))
    assert flat(objective.gradient(model, X, y, weights)).tobytes() == flat(gradient).tobytes()
    layout = layout_of(objective, map_leaves(lambda leaf: leaf[0], gradient))
    x = np.full((N, layout.size), 7.0, dtype)  # no NaN: BLAS may multiply what it replaces by 0, and warn
    objective.gradient(model, X, y, weights, out=layout.record(x, gradient))
    assert x.tobytes() == layout.flat(gradient).tobytes()
    near = {"rtol": 0, "atol": 1e-5 if dtype == "float32" else 1e-13}
    for i in range(N):  # with models of their own too, as alone
        at = map_leaves(lambda leaf, i=i: leaf[i], model) if own else model
        single = flat(objective.gradient(at, X[i], y[i], weights[i]))
        np.testing.assert_allclose(layout.flat(gradient)[i], layout.flat(unflat(at, single)), **near)


@every_objective
def test_sparse_is_dense(name: str) -> None:
    objective = make(name)
    X, y, weights = data(objective, (N,))
    X[np.random.default_rng(5).random(X.shape) < 0.6] = 0
    for model in (model_of(objective), own_models(model_of(objective))):
        dense, sparse = (flat(objective.gradient(model, x, y, weights)) for x in (X, tuple(map(csr_matrix, X))))
        np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-14)


@every_objective
def test_start(name: str) -> None:
    objective = make(name)
    seeds, outputs = (1, 1, 2), outputs_of(objective)
    one, two, other = (objective.start(FEATURES, outputs, np.random.default_rng(seed), "float32") for seed in seeds)
    assert one.first.shape[0] == FEATURES and flat(one).dtype == np.float32
    np.testing.assert_array_equal(flat(one), flat(two))
    if isinstance(objective, MLP):
        assert abs(one.first).max() <= np.sqrt(6 / (FEATURES + 3))
        assert (one.first != other.first).all() and (one.head.second != other.head.second).all()
        assert not any(bias.any() for bias in one.head[1:])
    else:
        assert not flat(one).any()


@every_objective
@pytest.mark.parametrize("everything", [False, True])
def test_penalty(name: str, everything: bool) -> None:
    """Of all parameters but the intercepts, or of all where the job says so; its slope by differences."""
    more = {"nonconvex_penalty": 0.2} if "nonconvex_penalty" in {f.name for f in fields(make(name))} else {}
    objective = make(name, l2=0.3, penalize_bias=everything, **more)
    model = model_of(objective)
    w = np.concatenate([leaf.ravel() * (everything or "bias" not in key) for key, leaf in leaves(model)])
    expected = 0.3 * w @ w + more.get("nonconvex_penalty", 0.0) * (w * w / (1 + w * w)).sum()
    assert penalty(objective, model) == pytest.approx(expected, rel=1e-12)
    values = flat(model)
    ends = [[penalty(objective, unflat(model, values + s * e)) for s in (1e-6, -1e-6)] for e in np.eye(len(values))]
    slopes = [(up - down) / 2e-6 for up, down in ends]
    np.testing.assert_allclose(flat(penalty_gradient(objective, model)), slopes, rtol=1e-6, atol=1e-8)


# --- losses ----------------------------------------------------------------------------------------------------------

DUALS = {
    losses.LogisticLoss: duals.LogisticDual, losses.HingeLoss: duals.HingeDual,
    losses.SquaredHingeLoss: duals.SquaredHingeDual, losses.SquaredError: duals.LeastSquaresDual,
    losses.CrossEntropy: type(None), losses.TrueClass: type(None),
}  # fmt: skip


@pytest.mark.parametrize("kind", DUALS)
def test_losses(kind: Any) -> None:
    """What a loss says of itself; weighted slopes have the dtype of the outputs; the mean is scikit-learn's."""
    loss, rng = kind(), np.random.default_rng(0)
    outputs = 4 if loss.classifies and not loss.binary else 1
    z = 2 * rng.standard_normal((3, 40, outputs))
    y = rng.integers(0, max(outputs, 2), (3, 40)) if loss.classifies else rng.standard_normal((3, 40))
    assert (loss.value(z, y) >= 0).all() == loss.nonnegative
    likely = z.argmax(axis=2) if outputs > 1 else z[..., 0] > 0 if loss.classifies else z[..., 0]
    assert (loss.predict(z) == likely).all() and loss.predict(z).dtype == y.dtype
    assert type(loss.dual) is DUALS[kind]
    weights, before = rng.uniform(-1, 2, (3, 1)), z.tobytes()
    single = loss.weighted(z.astype("f4"), y, weights)
    np.testing.assert_allclose(single, loss.slope(z, y) * weights[..., None], rtol=1e-4, atol=1e-5)
    assert single.dtype == np.float32 and z.tobytes() == before
    if kind is losses.CrossEntropy:
        power = np.exp(z[0])
        expected = log_loss(y[0], power / power.sum(axis=1, keepdims=True), labels=range(4))
        assert loss.value(z[0], y[0]).mean() == pytest.approx(expected, rel=1e-12)
    if kind is losses.HingeLoss:
        assert loss.value(z[0], y[0]).mean() == pytest.approx(hinge_loss(2 * y[0] - 1, z[0, :, 0]), rel=1e-12)
        assert loss.slope(np.array([[1.0]]), np.array([1]))[0, 0] == 0  # the shortest subgradient at the kink


def test_several_targets_count_by_their_mean() -> None:
    z, y = np.random.default_rng(0).standard_normal((2, 40, 3))
    loss = losses.SquaredError()
    np.testing.assert_allclose(loss.value(z, vectors(y)), ((z - y) ** 2).mean(axis=1) / 2, rtol=1e-13)
    np.testing.assert_allclose(loss.slope(z, vectors(y)), (z - y) / 3, rtol=1e-13)
    assert loss.predict(z) is z


@covering({"dtype": ["float32", "float64"], "size": [50.0, 1e3, 1e6, 1e30]}, 1)
def test_huge_logits(dtype: str, size: float) -> None:
    z, y, loss = np.array([[size, -size, 0], [-size, size, 0]], dtype), np.array([0, 0]), losses.CrossEntropy()
    np.testing.assert_allclose(loss.value(z, y), [0, 2 * size], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(loss.slope(z, y), [[0, 0, 0], [-1, 1, 0]], atol=1e-6)
    assert loss.slope(z, y).dtype == dtype


# --- terms -----------------------------------------------------------------------------------------------------------


def test_error_rate_of_a_sure_model_is_exact() -> None:
    """Neither 1 - p with p near 1 nor p near 0 loses its digits, in float32 too."""
    objective = make("logistic")
    scores, y = np.array([[-20.0], [20.0]], "f4"), np.array([0, 0])  # sure and right; sure and wrong
    slope = ErrorRate().slope(objective, (), scores, y, np.ones(2))
    np.testing.assert_allclose(ErrorRate().loss(objective, (), scores, y), [np.exp(-20), 1], rtol=1e-5)
    assert slope.scores[1, 0] == pytest.approx(np.exp(-20), rel=1e-5)


@pytest.mark.parametrize("kind", [Loss, ErrorRate, PositiveRate])
def test_counted(kind: Any) -> None:
    y = np.array([[0, 3, 1], [2, 2, 3]])
    np.testing.assert_array_equal(kind(classes=(3, 0)).counted(y), [[True, True, False], [False, False, True]])
    assert not kind(classes=(9,)).counted(y).any()
    assert kind(classes=(3,)).counted(y.astype("uint8")).sum() == 2


def test_norm() -> None:
    model = model_of(make("mlp, bias"))
    value, slope = Norm().server(model)
    np.testing.assert_array_equal(flat(slope), 2 * flat(model))
    assert isinstance(value, float) and value == pytest.approx(flat(model) @ flat(model), rel=1e-13)
    single = map_leaves(lambda leaf: leaf.astype("f4"), model)
    assert flat(Norm().server(single)[1]).dtype == np.float32
    assert Norm().server(map_leaves(lambda leaf: 1e20 + 0 * leaf, single))[0] > 1e40  # above what float32 holds


@pytest.mark.parametrize(("term", "name", "outputs", "said"), [
    (None, "logistic", 2, ""), (None, "softmax", 10, ""), (None, "mlp", 2, ""), (None, "least-squares", 1, ""),
    (None, "logistic", 10, '[model] name: Logistic is for two classes, and the data have 10; take "softmax", or make'),
    (Loss(), "softmax", 4, ""),
    (Loss((3, 4, 7)), "softmax", 4, "classes = [3, 4, 7]: expected some of 0 to 3, the classes of the data, each once"),
    (ErrorRate((1, 0, 1)), "logistic", 2, "classes = [1, 0, 1]: expected some of 0 to 1"),
    (Loss(()), "softmax", 4, "classes = []: expected some of 0 to 3"),
    (Loss((0,)), "least-squares", 1, "classes = [0]: the targets have no classes; leave the key out"),
    (ErrorRate((2,)), "logistic", 2, "classes = [2]: expected some of 0 to 1"),
    (ErrorRate(), "least-squares", 1, 'name = "error-rate": is for classes, and the targets are none; use name'),
    (PositiveRate(), "softmax", 4, 'PositiveRate: is for one score; take [model] name = "logistic"'),
], ids=str)  # fmt: skip
def test_what_does_not_fit(term: Any, name: str, outputs: int, said: str) -> None:
    found = make(name).check(FEATURES, outputs) if term is None else term.check(make(name), outputs)
    assert [line.startswith(said) for line in found] == [True] * bool(said)
