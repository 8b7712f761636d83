"""Classifiers with a score for each class, their biases, and the penalty that is not convex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from test_objectives import CASES, FEATURES, OUTPUTS, data, flat, make, model_of, unflat

from mpifed.core.record import leaves, map_leaves
from mpifed.maths.objectives import Bias, Parameters, concave_gradient, penalty

CONCAVE = [name for name, (kind, _) in CASES.items() if kind not in ("least-squares", "hinge", "squared-hinge")]


# --- losses ---------------------------------------------------------------------------------------------------------


def scores_of(model: Parameters, X: Any) -> Any:
    """[s, L] written out."""
    return X @ model.first + (model.head.bias if isinstance(model.head, Bias) else 0)


@pytest.mark.parametrize("name", ["one-vs-rest", "one-vs-rest, bias"])
def test_one_vs_rest_adds_up_the_losses_of_each_class_against_the_others(name: str) -> None:
    objective = make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    z = scores_of(model, X)
    expected = sum(
        log_loss(y == k, 1 / (1 + np.exp(-z[:, k])), normalize=False, labels=[False, True]) for k in range(OUTPUTS)
    )
    found = objective.loss(model.head, objective.scores(model.first, X), y)
    assert found.sum() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_array_equal(objective.predict(model.head, objective.scores(model.first, X)), z.argmax(axis=1))


@pytest.mark.parametrize("name", ["true-class-logistic", "true-class-logistic, bias"])
def test_of_the_printed_loss_only_the_true_class_s_score_enters(name: str) -> None:
    objective = make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    z = scores_of(model, X)
    expected = [math.log(1 + math.exp(-row[k])) for row, k in zip(z, y, strict=True)]  # (25) of FedPDM-DP
    found = objective.loss(model.head, objective.scores(model.first, X), y)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(objective.predict(model.head, objective.scores(model.first, X)), z.argmax(axis=1))


def test_one_vs_rest_reaches_the_optimum_of_scikit_learn() -> None:
    """It is one problem for each class; LogisticRegression's C is 1 / (2 * samples * penalty)."""
    rng, samples = np.random.default_rng(0), 80
    X = rng.standard_normal((samples, FEATURES))
    y = (X @ rng.standard_normal((FEATURES, 3)) + rng.standard_normal((samples, 3))).argmax(axis=1)
    objective, weights = make("one-vs-rest", l2=0.01), np.full(samples, 1 / samples)
    like = objective.start(FEATURES, 3, rng, "float64")

    def value(w: Any) -> tuple[float, Any]:
        model = unflat(like, w)
        loss = objective.loss((), objective.scores(model.first, X), y).mean()
        return loss + penalty(objective, model), flat(objective.gradient(model, X, y, weights)) + 0.02 * w

    solved = minimize(value, np.zeros(3 * FEATURES), jac=True, method="BFGS", options={"gtol": 1e-9})
    found = unflat(like, solved.x).first
    for k in range(3):
        reference = LogisticRegression(C=1 / (0.02 * samples), fit_intercept=False, tol=1e-10, solver="newton-cholesky")
        np.testing.assert_allclose(found[:, k], reference.fit(X, y == k).coef_[0], rtol=1e-5, atol=1e-7)


# --- biases ---------------------------------------------------------------------------------------------------------


# --- the penalty that is not convex ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONCAVE)
def test_the_concave_penalty_and_its_gradient(name: str) -> None:
    objective = make(name, l2=0.3, nonconvex_penalty=0.7)
    model = model_of(objective)
    values = flat(model)
    counted = [w for key, leaf in leaves(model) if "bias" not in key for w in leaf.ravel()]  # not the intercepts
    expected = 0.3 * sum(w * w for w in counted) + 0.7 * sum(w * w / (1 + w * w) for w in counted)  # (25)
    assert penalty(objective, model) == pytest.approx(expected, rel=1e-12)

    def total(w: Any) -> float:
        return penalty(make(name, nonconvex_penalty=0.7), unflat(model, w))

    central = [(total(values + 1e-6 * e) - total(values - 1e-6 * e)) / 2e-6 for e in np.eye(values.size)]
    slopes = [(concave_gradient(objective, leaf) * ("bias" not in key)).ravel() for key, leaf in leaves(model)]
    np.testing.assert_allclose(np.concatenate(slopes), central, rtol=1e-6, atol=1e-8)
    assert not flat(map_leaves(lambda leaf: concave_gradient(make(name), leaf), model)).any()
