"""Gradients for attacks: of the product's objectives, and of losses written out here and differentiated numerically."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from mpifed.core.record import map_leaves
from mpifed.data.block import vectors
from mpifed.maths.objectives import OBJECTIVES, LinearScores, Parameters

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {}) for name, kind in OBJECTIVES.items() if issubclass(kind, LinearScores)
} | {
    "mlp": ("mlp", {"hidden": 24}),
    "network, bias": ("mlp", {"hidden": 24, "bias": True}),
    "softmax, bias": ("softmax", {"bias": True}),
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
    if case == "multilabel":
        return vectors(((y[:, None] + np.arange(10)) % 3 == 0).astype(np.int64))
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
