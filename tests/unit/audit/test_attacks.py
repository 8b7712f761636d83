"""Attacks by themselves: rows behind gradients, verdicts on what was found, and areas under curves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lengths import covering
from scipy.stats import binom
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.gradients import EXACT, MATCHED, match, rows_behind
from mpifed.audit.membership import area
from mpifed.core.record import map_leaves
from mpifed.data.block import vectors
from mpifed.maths.objectives import MLP, OBJECTIVES, LinearScores, Parameters

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name, kind in OBJECTIVES.items() if issubclass(kind, LinearScores)
} | {
    "mlp": ("mlp", {"hidden": 24}),
    "network, bias": ("mlp", {"hidden": 24, "bias": True}),
    "softmax, bias": ("softmax", {"bias": True}),
}
ORDER = np.random.default_rng(0).permutation(1797)
X, Y = load_digits().data[ORDER] / 16, load_digits().target[ORDER]  # [1797, 64] within 0 and 1, and classes


def behind(case: str, some: Any, batch: int, seed: int, away: float) -> tuple[int, bool]:
    """How many rows an attacker recovers of the gradient of `some` at a start and `away` from it, and whether it tells
    anything: a hinge's margin may be above 1. float32 as in a run.
    """
    (name, own), rng = CASES[case], np.random.default_rng(seed)
    objective, y, outputs = OBJECTIVES[name](**own), Y[some], 10
    if case == "multilabel":
        y = vectors(((y[:, None] + np.arange(10)) % 3 == 0).astype(np.int64))
    elif case in ("logistic", "hinge", "squared-hinge"):
        y, outputs = y % 2, 2
    elif case == "least-squares":
        y, outputs = 0.1 * y + 1, 1
    start = objective.start(64, outputs, rng, "float32")
    model = map_leaves(lambda leaf: (leaf + away * rng.standard_normal(leaf.shape)).astype(leaf.dtype), start)
    gradient = objective.gradient(model, X[some].astype("f4"), y, np.full(len(y), 1 / len(y)))
    problem: Any = SimpleNamespace(objective=objective, features=64)
    found = rows_behind(problem, MeanGradient(model, gradient), batch, True)
    return match(found, X[some]), bool(np.any(gradient.first))


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_the_row_of_a_minibatch_of_one(case: str, away: float) -> None:
    """Found for every objective; not found, and not claimed, behind a sum over ten clients."""
    for i in range(5):
        recovered, tells = behind(case, np.array([i]), 1, i, away)
        assert recovered == tells
    for i in range(2):
        assert behind(case, np.arange(10 * i, 10 * i + 10), 1, i, away)[0] == 0


@pytest.mark.parametrize(("case", "rows", "least"), [("mlp", 2, 2), ("mlp", 3, 2.5), ("softmax", 2, 2), ("mlp", 4, 1)])
def test_few_rows(case: str, rows: int, least: float) -> None:
    """Of images, where each row has a pixel that the others lack."""
    recovered = [behind(case, np.arange(10 * seed, 10 * seed + rows), rows, seed, 0.1)[0] for seed in range(6)]
    assert np.mean(recovered) >= least, recovered


@pytest.mark.parametrize(("found", "count", "roughly"), [
    ([[0, 2, 0, 1]], 1, 1), ([[0, 2.01, 0, 1]], 1, 1), ([[0, -4, 0, -2]], 1, 1), ([[0, 2, 0.3, 1]], 0, 1),
    ([[1, 1, 1, 1]], 0, 0), ([[0, 0, 0, 0]], 0, 0), (np.zeros((0, 4)), 0, 0),
    ([[0, 2, 0, 1.01], [0, 2, 0, 1.0], [5, 0, 0, 0]], 2, 2),  # no row is given away twice
])  # fmt: skip
def test_verdicts(found: Any, count: int, roughly: int) -> None:
    rows = np.array([[1.0, 0, 0, 0], [0, 2, 0, 1], [0, 0, 3, 0], [0, 0, 0, 0]])
    assert [match(np.array(found, float), rows, within) for within in (EXACT, MATCHED)] == [count, roughly]
    assert match(np.array(found, float), rows[:0]) == 0


def test_a_model_that_knows_its_rows_by_heart() -> None:
    """200 digits, with a third of their labels wrong, are learned until nothing is left; rows it never saw are not."""
    objective, rng, k = MLP(hidden=64), np.random.default_rng(1), 200
    y = np.where(rng.random(len(Y)) < 1 / 3, rng.integers(0, 10, len(Y)), Y)
    model: Parameters = objective.start(64, 10, np.random.default_rng(2), "float64")
    for _ in range(1500):
        slope = objective.gradient(model, X[:k], y[:k], np.full(k, 1 / k))
        model = map_leaves(lambda w, g: w - 1.0 * g, model, slope)
    scores = -objective.loss(model.head, objective.scores(model.first, X), y)
    auc, chance = area(scores[:k], scores[k:])
    assert auc > 0.65 and chance < 1e-9
    assert auc == pytest.approx(roc_auc_score(np.arange(len(scores)) < k, scores))
    assert area(scores[k:900], scores[900:])[1] > 0.01
    assert area(np.arange(30.0) + 30, np.arange(30.0)) == (1.0, 0.0) and np.isnan(area(np.ones(30), np.ones(30))[1])


def test_what_chance_gives() -> None:
    """Of 300 pairs of samples that are alike a tenth has a probability below 10 %; larger areas are less probable."""
    rng = np.random.default_rng(3)
    chances = [area(rng.normal(0, 1, 60), rng.normal(0, 1, 90))[1] for _ in range(300)]
    assert 1e-3 < binom.cdf((np.array(chances) < 0.1).sum(), 300, 0.1) < 1 - 1e-3
    assert (
        area(rng.normal(1, 1, 60), rng.normal(0, 1, 90))[1]
        < 1e-5
        < area(rng.normal(-1, 1, 60), rng.normal(0, 1, 90))[1]
    )
