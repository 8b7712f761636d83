"""Support vector machines: losses of scikit-learn, its optima, subgradients at the kink, and who may use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import hinge_loss
from sklearn.svm import LinearSVC

from mpifed.maths.duals import HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual
from mpifed.maths.objectives import OBJECTIVES, Parameters, penalty


def data(seed: int = 0, samples: int = 80, features: int = 5) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, features))
    return X, (X @ rng.standard_normal(features) + rng.standard_normal(samples) > 0).astype(np.int64)


def test_the_loss_is_that_of_scikit_learn() -> None:
    (X, y), w = data(), np.random.default_rng(1).standard_normal((5, 1))
    scores = OBJECTIVES["hinge"]().scores(w, X)
    losses = OBJECTIVES["hinge"]().loss((), scores, y)
    assert losses.mean() == pytest.approx(hinge_loss(2 * y - 1, scores[:, 0]), rel=1e-12)
    squared = [max(0.0, 1 - (2 * t - 1) * z) ** 2 for z, t in zip(scores[:, 0], y, strict=True)]
    np.testing.assert_allclose(OBJECTIVES["squared-hinge"]().loss((), scores, y), squared, rtol=1e-12)


def test_the_optimum_of_the_squared_hinge_is_that_of_scikit_learn() -> None:
    """LinearSVC's C is 1 / (2 * penalty * samples)."""
    X, y = data()
    objective, weights = OBJECTIVES["squared-hinge"](l2=0.02), np.full(len(y), 1 / len(y))

    def value(w: Any) -> tuple[float, Any]:
        model = Parameters(w[:, None], ())
        loss = objective.loss((), objective.scores(model.first, X), y).mean()
        return loss + penalty(objective, model), objective.gradient(model, X, y, weights).first[:, 0] + 0.04 * w

    found = minimize(value, np.zeros(5), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    machine = LinearSVC(C=1 / (0.04 * len(y)), fit_intercept=False, tol=1e-10, dual=False, max_iter=10**5)
    np.testing.assert_allclose(found, machine.fit(X, y).coef_[0], rtol=1e-5)


def test_the_hinge_s_slope_is_a_subgradient_everywhere() -> None:
    """loss(z') >= loss(z) + slope (z' - z) for all z', at the kink and beside it."""
    objective, z = OBJECTIVES["hinge"](), np.array([-2.0, -1.0, 0.0, 1.0, 1.0 - 1e-12, 1.0 + 1e-12, 3.0])
    for label in (0, 1):
        y = np.full(len(z), label)
        slope = objective.slope((), z[:, None], y, np.ones(len(z)))
        for other in np.linspace(-4, 4, 33):
            after = objective.loss((), np.full((len(z), 1), other), y)
            assert (after >= slope.loss + slope.scores[:, 0] * (other - z) - 1e-15).all()
    assert objective.slope((), np.array([[1.0]]), np.array([1]), np.ones(1)).scores[0, 0] == 0  # the smallest there


def test_which_objectives_have_duals() -> None:
    found = {name: type(one.dual) for name, one in OBJECTIVES.items() if one.dual is not None}
    assert found == {
        "hinge": HingeDual,
        "squared-hinge": SquaredHingeDual,
        "logistic": LogisticDual,
        "least-squares": LeastSquaresDual,
    }
