"""Objectives: slopes against finite differences, losses against scikit-learn and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.sparse import csr_matrix
from sklearn.metrics import log_loss

from mpifed.core.record import leaves, map_leaves
from mpifed.maths.arrays import product, sigmoid, softmax, transposed_product
from mpifed.maths.objectives import OBJECTIVES, Network, Parameters, gradient, penalty

FEATURES, OUTPUTS, N, S = 5, 4, 3, 6
CLASSIFIERS = [name for name in OBJECTIVES if name != "least-squares"]
every_objective = pytest.mark.parametrize("name", list(OBJECTIVES))


def make(name: str, **settings: Any) -> Any:
    """Small, where a size can be chosen."""
    return OBJECTIVES[name](**({"hidden": 3} if name == "network" else {}), **settings)


def model_of(objective: Any, seed: int = 0, scale: float = 1.0) -> Parameters:
    """A model whose entries are random, not at the objective's start."""
    rng = np.random.default_rng(seed)
    start = objective.start(FEATURES, 1 if is_regression(objective) else OUTPUTS, rng, "float64")
    return map_leaves(lambda leaf: scale * rng.standard_normal(leaf.shape), start)


def is_regression(objective: Any) -> bool:
    return isinstance(objective, OBJECTIVES["least-squares"])


def data(objective: Any, lead: tuple[int, ...], seed: int = 1) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((*lead, S)) if is_regression(objective) else rng.integers(0, OUTPUTS, (*lead, S))
    return rng.standard_normal((*lead, S, FEATURES)), y, rng.uniform(-0.5, 2, (*lead, S))


def flat(record: Any) -> Any:
    return np.concatenate([np.asarray(leaf).reshape(-1) for _, leaf in leaves(record)])


def unflat(like: Any, values: Any) -> Any:
    parts = iter(np.split(values, np.cumsum([leaf.size for _, leaf in leaves(like)])[:-1]))
    return map_leaves(lambda leaf: next(parts).reshape(leaf.shape), like)


@every_objective
@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_the_weighted_loss(name: str, seed: int) -> None:
    objective = make(name)
    model, (X, y, weights) = model_of(objective, seed), data(objective, (), seed)

    def total(values: Any) -> float:
        at = unflat(model, values)
        return float((weights * objective.loss(at.head, objective.scores(at.first, X), y)).sum())

    values = flat(model)
    h = 1e-6
    central = np.array([(total(values + h * e) - total(values - h * e)) / (2 * h) for e in np.eye(values.size)])
    forward = approx_fprime(values, total, 1e-8)
    found = flat(gradient(objective, model, X, y, weights))
    np.testing.assert_allclose(found, central, rtol=1e-6, atol=1e-7)  # h^2 and rounding / h
    np.testing.assert_allclose(found, forward, rtol=1e-4, atol=1e-5)
    assert abs(found).max() > 1e-2


@every_objective
def test_slope_by_the_scores(name: str) -> None:
    objective = make(name)
    model, (X, y, weights) = model_of(objective), data(objective, ())
    scores = objective.scores(model.first, X)
    slope = objective.slope(model.head, scores, y, weights)
    np.testing.assert_allclose(slope.loss, objective.loss(model.head, scores, y), rtol=1e-13)
    for s, h in np.ndindex(scores.shape):
        step = np.zeros_like(scores)
        step[s, h] = 1e-6
        up, down = (objective.loss(model.head, scores + sign * step, y) for sign in (1, -1))
        assert slope.scores[s, h] == pytest.approx(float((weights * (up - down)).sum() / 2e-6), rel=1e-5, abs=1e-7)


@every_objective
@pytest.mark.parametrize("lead", [(1,), (N,), (2, N)])
@pytest.mark.parametrize("own", [False, True])
def test_leading_axes_are_clients(name: str, lead: tuple[int, ...], own: bool) -> None:
    """Every client's gradient is what it would be alone; with models of their own too."""
    if own and lead != (N,):
        lead = (N,)
    objective = make(name)
    X, y, weights = data(objective, lead)
    alone = {i: model_of(objective, seed=7 + i[0] if own else 7) for i in np.ndindex(lead)}
    model = alone[next(iter(alone))]
    if own:
        model = map_leaves(lambda *parts: np.stack(parts), *alone.values())
    together = gradient(objective, model, X, y, weights)
    for i, at in alone.items():
        single = gradient(objective, at, X[i], y[i], weights[i])
        np.testing.assert_allclose(flat(map_leaves(lambda leaf, i=i: leaf[i], together)), flat(single), rtol=1e-12)


@every_objective
def test_weights_scale_and_add(name: str) -> None:
    objective = make(name)
    model, (X, y, weights) = model_of(objective), data(objective, ())
    parts = [flat(gradient(objective, model, X[i : i + 1], y[i : i + 1], weights[i : i + 1])) for i in range(S)]
    np.testing.assert_allclose(flat(gradient(objective, model, X, y, weights)), sum(parts), rtol=1e-11, atol=1e-13)
    assert not flat(gradient(objective, model, X, y, 0 * weights)).any()


@every_objective
def test_scores_and_pull_are_adjoint(name: str) -> None:
    """<X w, r> = <w, X' r>, exact but for rounding."""
    objective = make(name)
    rng = np.random.default_rng(3)
    for lead in ((), (N,)):
        X = rng.standard_normal((*lead, S, FEATURES))
        w, r = model_of(objective).first, rng.standard_normal((*lead, S, model_of(objective).first.shape[1]))
        left = (objective.scores(w, X) * r).sum()
        assert left == pytest.approx((w * objective.pull(X, r)).sum(), rel=1e-12)


@every_objective
def test_sparse_is_dense(name: str) -> None:
    objective = make(name)
    X, y, weights = data(objective, (N,))
    X[np.random.default_rng(5).random(X.shape) < 0.6] = 0
    sparse = tuple(csr_matrix(x) for x in X)
    for model in (model_of(objective), map_leaves(lambda leaf: np.stack([leaf, -leaf, 2 * leaf]), model_of(objective))):
        dense = gradient(objective, model, X, y, weights)
        other = gradient(objective, model, sparse, y, weights)
        np.testing.assert_allclose(flat(other), flat(dense), rtol=1e-12, atol=1e-14)


def test_products() -> None:
    rng = np.random.default_rng(0)
    X, w, own, r = (rng.standard_normal(s) for s in ((N, S, FEATURES), (FEATURES, 2), (N, FEATURES, 2), (N, S, 2)))
    np.testing.assert_allclose(product(X, w), np.einsum("nsp,ph->nsh", X, w), rtol=1e-12)
    np.testing.assert_allclose(product(X, own), np.einsum("nsp,nph->nsh", X, own), rtol=1e-12)
    np.testing.assert_allclose(product(X[0], w), np.einsum("sp,ph->sh", X[0], w), rtol=1e-12)
    np.testing.assert_allclose(transposed_product(X, r), np.einsum("nsp,nsh->nph", X, r), rtol=1e-12)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_loss_is_that_of_scikit_learn(name: str) -> None:
    objective = make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    loss = objective.loss(model.head, objective.scores(model.first, X), y)
    logits = X @ model.first
    if isinstance(objective, Network):
        logits = (logits / (1 + np.exp(-logits))) @ model.head.second
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert loss.shape == (S,)
    assert loss.mean() == pytest.approx(log_loss(y, probabilities, labels=np.arange(OUTPUTS)), rel=1e-12)
    predicted = objective.predict(model.head, objective.scores(model.first, X))
    np.testing.assert_array_equal(predicted, probabilities.argmax(axis=1))


def test_least_squares_loss() -> None:
    objective = make("least-squares")
    model, (X, y, _) = model_of(objective), data(objective, ())
    scores = objective.scores(model.first, X)
    expected = [sum(x[k] * model.first[k, 0] for k in range(FEATURES)) for x in X]
    np.testing.assert_allclose(objective.predict(model.head, scores), expected, rtol=1e-12)
    losses = [(e - t) ** 2 / 2 for e, t in zip(expected, y, strict=True)]
    np.testing.assert_allclose(objective.loss(model.head, scores, y), losses)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [50.0, 1e3, 1e6, 1e30])
def test_huge_logits(dtype: str, size: float) -> None:
    objective = make("softmax")
    scores = np.array([[size, -size, 0], [-size, size, 0]], dtype=dtype)
    y = np.array([0, 0])
    weights = np.ones(2)
    slope = objective.slope((), scores, y, weights)
    np.testing.assert_allclose(slope.loss, [0, 2 * size], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(slope.scores, [[0, 0, 0], [-1, 1, 0]], atol=1e-6)
    assert slope.scores.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_scores_of_the_network(dtype: str) -> None:
    objective = make("network")
    model = map_leaves(lambda leaf: leaf.astype(dtype), model_of(objective))
    scores = np.array([[1e4, -1e4, 0.0]] * S, dtype=dtype)
    slope = objective.slope(model.head, scores, data(objective, ())[1], np.ones(S))
    assert all(np.isfinite(leaf).all() for _, leaf in leaves(slope))
    assert slope.scores.dtype == dtype


def test_sigmoid_and_softmax() -> None:
    z = np.array([-1e4, -800, -30, -1, 0, 1, 30, 800, 1e4])
    expected = [0, 0, 1 / (1 + np.exp(30)), 1 / (1 + np.e), 0.5, 1 - 1 / (1 + np.e), 1 - 1 / (1 + np.exp(30)), 1, 1]
    np.testing.assert_allclose(sigmoid(z), expected, rtol=1e-12, atol=1e-15)
    assert sigmoid(z.astype("f4")).dtype == np.float32
    p, normalizer = softmax(np.array([[1e4, 1e4], [0.0, np.log(3)]]))
    np.testing.assert_allclose(p, [[0.5, 0.5], [0.25, 0.75]], rtol=1e-12)
    np.testing.assert_allclose(np.ravel(normalizer), [1e4 + np.log(2), np.log(4)], rtol=1e-12)


@every_objective
def test_gradients_and_losses_keep_the_dtype(name: str) -> None:
    objective = make(name)
    model = map_leaves(lambda leaf: leaf.astype("f4"), model_of(objective))
    X, y, weights = data(objective, (N,))
    found = gradient(objective, model, X.astype("f4"), y, weights)
    assert {leaf.dtype for _, leaf in leaves(found)} == {np.dtype("f4")}


@every_objective
def test_inputs_stand(name: str) -> None:
    objective = make(name)
    model, arguments = model_of(objective), data(objective, (N,))
    copies = [flat(model).copy(), *(a.copy() for a in arguments)]
    gradient(objective, model, *arguments)
    objective.loss(model.head, objective.scores(model.first, arguments[0]), arguments[1])
    for before, after in zip(copies, [flat(model), *arguments], strict=True):
        np.testing.assert_array_equal(before, after)


@every_objective
def test_start(name: str) -> None:
    objective = make(name)
    outputs = 1 if is_regression(objective) else OUTPUTS
    one, two, other = (objective.start(FEATURES, outputs, np.random.default_rng(s), "float32") for s in (1, 1, 2))
    assert one.first.shape[0] == FEATURES
    assert {leaf.dtype for _, leaf in leaves(one)} == {np.dtype("f4")}
    np.testing.assert_array_equal(flat(one), flat(two))
    if name == "network":
        limit = np.sqrt(6 / (FEATURES + 3))
        assert abs(one.first).max() <= limit
        assert (flat(one) != flat(other)).all()
    else:
        assert not flat(one).any()


@every_objective
def test_penalty(name: str) -> None:
    objective = make(name, penalty=0.3)
    model = model_of(objective)
    assert penalty(objective, model) == pytest.approx(0.3 * sum(v * v for v in flat(model)), rel=1e-12)
    assert penalty(make(name), model) == 0
