"""Gradients for attacks: of the product's objectives, and of losses written out here and differentiated numerically."""

from __future__ import annotations

from typing import Any

import numpy as np
from records import flat, unflat
from scipy.optimize import approx_fprime
from sklearn.datasets import load_digits

from mpifed.core.record import map_leaves
from mpifed.maths.objectives import MLP, OBJECTIVES, Bias, LinearScores, Parameters

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name, kind in OBJECTIVES.items() if issubclass(kind, LinearScores)
} | {
    "mlp": ("mlp", {"hidden": 24}),
    "network, bias": ("mlp", {"hidden": 24, "bias": True}),
    "softmax, bias": ("softmax", {"bias": True}),
    "one-vs-rest, bias": ("one-vs-rest", {"bias": True}),
}
ONE_SCORE = ("logistic", "hinge", "squared-hinge")  # of two classes


def digits() -> tuple[Any, Any]:
    """[1797, 64] pixels within 0 and 1, and classes; in random order."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.data))
    return found.data[order] / 16, found.target[order]


def objective_of(case: str, **settings: Any) -> Any:
    name, own = CASES[case]
    return OBJECTIVES[name](**own, **settings)


def targets_of(case: str, y: Any) -> Any:
    return y % 2 if case in ONE_SCORE else 0.1 * y + 1 if case == "least-squares" else y


def outputs_of(case: str) -> int:
    return 2 if case in ONE_SCORE else 1 if case == "least-squares" else 10


def model_of(case: str, features: int, seed: int = 0, away: float = 0.2, dtype: str = "float32") -> Parameters:
    """The objective's start, and `away` from it: as after some rounds."""
    rng = np.random.default_rng(seed)
    start = objective_of(case).start(features, outputs_of(case), rng, dtype)
    return map_leaves(lambda leaf: (leaf + away * rng.standard_normal(leaf.shape)).astype(leaf.dtype), start)


def mean_gradient(case: str, model: Parameters, X: Any, y: Any) -> Parameters:
    """The product's own, in the model's precision."""
    weights = np.full(len(X), 1 / len(X))
    return objective_of(case).gradient(model, X.astype(model.first.dtype), targets_of(case, y), weights)


def numeric_gradient(case: str, model: Parameters, X: Any, y: Any) -> Parameters:
    """By finite differences of the mean loss below, which shares no code with the product."""
    targets = targets_of(case, y)

    def mean_loss(w: Any) -> float:
        return float(np.mean([_loss(case, unflat(w, model), x, t) for x, t in zip(X, targets, strict=True)]))

    found: Parameters = unflat(approx_fprime(flat(model), mean_loss, 1e-7), model)
    return found


def _loss(case: str, model: Parameters, x: Any, y: Any) -> Any:
    """One sample's, written out."""
    z = x @ model.first
    if isinstance(model.head, Bias):
        z = z + model.head.bias
    if case.startswith("mlp"):
        z = z + (model.head.hidden_bias if "bias" in case else 0)
        z = (z / (1 + np.exp(-z))) @ model.head.second + (model.head.output_bias if "bias" in case else 0)
    if isinstance(objective_of(case), MLP) or case.startswith("softmax"):
        return np.log(np.exp(z).sum()) - z[y]
    if case.startswith("one-vs-rest"):
        signs = np.where(np.arange(len(z)) == y, 1, -1)
        return np.log(1 + np.exp(-signs * z)).sum()
    if case == "true-class-logistic":
        return np.log(1 + np.exp(-z[y]))
    if case in ONE_SCORE:
        margin = (2 * y - 1) * z[0]
        short = max(0.0, 1 - margin)
        return {"hinge": short, "squared-hinge": short**2}.get(case, np.log(1 + np.exp(-margin)))
    return (z[0] - y) ** 2 / 2
