"""Objectives: the laws of `mpifed.laws`, every way to a gradient, losses against scikit-learn and plain loops."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from lengths import covering
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss

from mpifed.core.record import leaves, map_leaves
from mpifed.laws import ModelFunction, check_function
from mpifed.maths.objectives import (
    MLP,
    OBJECTIVES,
    Bias,
    Hinge,
    LeastSquares,
    LinearScores,
    Logistic,
    Parameters,
    Softmax,
    SquaredHinge,
    layout_of,
    penalty,
    penalty_gradient,
)
from mpifed.maths.problem import Problem
from mpifed.maths.terms import ErrorRate, Loss

FEATURES, OUTPUTS, N, S = 5, 4, 3, 6
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name, kind in OBJECTIVES.items() if issubclass(kind, LinearScores)
} | {
    "mlp": ("mlp", {"hidden": 3}),
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


def logits_of(objective: Any, model: Parameters, X: Any) -> Any:
    """[s, L] written out: those of class 0 are 0 where there is one score."""
    z = X @ model.first + (model.head.bias if isinstance(model.head, Bias) else 0)
    if isinstance(objective, Logistic):
        return np.concatenate([0 * z, z], axis=1)
    if not isinstance(objective, MLP):
        return z
    z = z + (model.head.hidden_bias if objective.bias else 0)
    return (z / (1 + np.exp(-z))) @ model.head.second + (model.head.output_bias if objective.bias else 0)


def probabilities_of(objective: Any, model: Parameters, X: Any) -> Any:
    """[s, L] written out."""
    logits = logits_of(objective, model, X)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def flat(record: Any) -> Any:
    return np.concatenate([np.asarray(leaf).reshape(-1) for _, leaf in leaves(record)])


def unflat(like: Any, values: Any) -> Any:
    parts = iter(np.split(values, np.cumsum([leaf.size for _, leaf in leaves(like)])[:-1]))
    return map_leaves(lambda leaf: next(parts).reshape(leaf.shape), like)


def check_laws(objective: Any, term: Any = Loss()) -> None:  # noqa: B008 - it cannot be changed
    """Derivatives are those of differences; samples count as they would alone; models stay; `convex`."""
    problem = Problem(objective, "rows", np.array([9, 9]), 18, FEATURES, outputs_of(objective), "float64")
    check_function(ModelFunction(objective, term), problem, np.random.default_rng(3))


@every_objective
def test_laws(name: str) -> None:
    check_laws(make(name))


@every_objective
def test_clients_with_other_columns_add_their_scores(name: str) -> None:
    """The seam between the splits: the loss and its derivatives from sums over blocks of columns."""
    objective = make(name)
    model, (X, y, weights) = model_of(objective), data(objective, ())
    blocks = [np.array(columns) for columns in ([3], [0, 4], [1, 2])]
    scores = sum(objective.scores(model.first[at], X[:, at]) for at in blocks)
    slope = objective.slope(model.head, scores, y, weights)
    first = np.empty_like(model.first)
    for at in blocks:
        first[at] = objective.pull(X[:, at], slope.scores)
    whole = objective.gradient(model, X, y, weights)
    np.testing.assert_allclose(flat(Parameters(first, slope.head)), flat(whole), rtol=1e-10, atol=1e-13)


@covering({"name": CASES, "own": [False, True], "dtype": ["float32", "float64"]}, 1)
def test_every_way_to_a_gradient_has_its_bits(name: str, own: bool, dtype: str) -> None:
    """By the slope and the way back, put into views, and of few clients at a time."""
    objective = make(name)
    X, y, weights = data(objective, (N,))
    X, model = X.astype(dtype), map_leaves(lambda leaf: leaf.astype(dtype), model_of(objective))
    if own:
        model = map_leaves(lambda leaf: np.stack([leaf, -leaf, 2 * leaf]), model)
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
    sparse = tuple(csr_matrix(x) for x in X)
    for model in (model_of(objective), map_leaves(lambda leaf: np.stack([leaf, -leaf, 2 * leaf]), model_of(objective))):
        dense = objective.gradient(model, X, y, weights)
        other = objective.gradient(model, sparse, y, weights)
        np.testing.assert_allclose(flat(other), flat(dense), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_loss_and_error_rate_are_those_of_probabilities(name: str) -> None:
    objective = make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    scores, probabilities = objective.scores(model.first, X), probabilities_of(objective, model, X)
    loss, error_rate = objective.loss(model.head, scores, y), ErrorRate().loss(objective, model.head, scores, y)
    wrong = [sum(q for c, q in enumerate(row) if c != label) for row, label in zip(probabilities, y, strict=True)]
    np.testing.assert_allclose(error_rate, wrong, rtol=1e-11)
    assert loss.shape == (S,)
    assert loss.mean() == pytest.approx(log_loss(y, probabilities, labels=np.arange(outputs_of(objective))), rel=1e-12)
    predicted = objective.predict(model.head, scores)
    np.testing.assert_array_equal(predicted, probabilities.argmax(axis=1))
    assert predicted.dtype == y.dtype


@every_objective
def test_start(name: str) -> None:
    objective = make(name)
    seeds, outputs = (1, 1, 2), outputs_of(objective)
    one, two, other = (objective.start(FEATURES, outputs, np.random.default_rng(seed), "float32") for seed in seeds)
    assert one.first.shape[0] == FEATURES
    assert {leaf.dtype for _, leaf in leaves(one)} == {np.dtype("f4")}
    np.testing.assert_array_equal(flat(one), flat(two))
    if isinstance(objective, MLP):
        limit = np.sqrt(6 / (FEATURES + 3))
        assert abs(one.first).max() <= limit
        assert (one.first != other.first).all()
        assert (one.head.second != other.head.second).all()
        assert not any(bias.any() for bias in one.head[1:])
    else:
        assert not flat(one).any()


@every_objective
def test_penalty(name: str) -> None:
    """Of all parameters but the intercepts, or of all where the job says so; its slope by differences."""
    for everything in False, True:
        more = {"nonconvex_penalty": 0.2} if "nonconvex_penalty" in names_of(make(name)) else {}
        objective = make(name, l2=0.3, penalize_bias=everything, **more)
        model = model_of(objective)
        counted = [v for key, leaf in leaves(model) if everything or "bias" not in key for v in leaf.ravel()]
        expected = sum(0.3 * v * v + more.get("nonconvex_penalty", 0.0) * v * v / (1 + v * v) for v in counted)
        assert penalty(objective, model) == pytest.approx(expected, rel=1e-12)
        values = flat(model)
        ends = [[penalty(objective, unflat(model, values + s * e)) for s in (1e-6, -1e-6)] for e in np.eye(len(values))]
        slopes = [(up - down) / 2e-6 for up, down in ends]
        np.testing.assert_allclose(flat(penalty_gradient(objective, model)), slopes, rtol=1e-6, atol=1e-8)
        assert penalty(make(name), model) == 0


def names_of(objective: Any) -> set[str]:
    return {field.name for field in fields(objective)}


def test_what_fits_which_data() -> None:
    assert make("logistic").check(4, 2) == []
    (line,) = make("logistic").check(4, 10)
    assert line.startswith('[model] name: Logistic is for two classes, and the data have 10; take "softmax", or make')
    assert Softmax().check(4, 10) == MLP().check(4, 2) == LeastSquares().check(4, 1) == []
