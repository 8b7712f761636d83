"""Membership: found where a model knows its rows by heart, not found where it never saw any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacked import digits
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from mpifed.audit.membership import area
from mpifed.core.record import map_leaves
from mpifed.maths.objectives import MLP, Parameters

X, Y = digits()
OBJECTIVE = MLP(hidden=64)
MEMBERS = 200


@pytest.fixture(scope="module")
def by_heart() -> Parameters:
    """A network that has learned 200 digits, with a third of their labels wrong, until nothing is left to learn."""
    rng = np.random.default_rng(2)
    model = OBJECTIVE.start(64, 10, rng, "float64")
    weights = np.full(MEMBERS, 1 / MEMBERS)
    for _ in range(1500):
        slope = OBJECTIVE.gradient(model, X[:MEMBERS], labels()[:MEMBERS], weights)
        model = map_leaves(lambda w, g: w - 1.0 * g, model, slope)
    return model


def labels() -> Any:
    """A third is wrong, as in a survey with careless answers."""
    rng = np.random.default_rng(1)
    return np.where(rng.random(len(Y)) < 1 / 3, rng.integers(0, 10, len(Y)), Y)


def scores(model: Parameters, which: slice) -> Any:
    y = labels()[which]
    return -OBJECTIVE.loss(model.head, OBJECTIVE.scores(model.first, X[which]), y)


def test_a_model_that_knows_its_rows_by_heart(by_heart: Parameters) -> None:
    members, strangers = scores(by_heart, slice(0, MEMBERS)), scores(by_heart, slice(MEMBERS, 1797))
    auc, low, high = area(members, strangers)
    assert 0.5 < low < auc < high and auc > 0.65
    expected = roc_auc_score(np.repeat([1, 0], [MEMBERS, 1597]), np.concatenate([members, strangers]))
    assert auc == pytest.approx(expected)


def test_rows_that_it_never_saw(by_heart: Parameters) -> None:
    _, low, high = area(scores(by_heart, slice(200, 900)), scores(by_heart, slice(900, 1797)))
    assert low < 0.5 < high


def test_the_interval_covers() -> None:
    """Normal scores half a standard deviation apart: the area is Phi(0.5 / sqrt 2); 300 draws at 90 %."""
    rng = np.random.default_rng(3)
    true = norm.cdf(0.5 / np.sqrt(2))
    inside = 0
    for _ in range(300):
        _, low, high = area(rng.normal(0.5, 1, 60), rng.normal(0, 1, 90), 0.9)
        inside += low < true < high
    assert binom.cdf(inside, 300, 0.9) > 1e-3 and binom.sf(inside - 1, 300, 0.9) > 1e-3
