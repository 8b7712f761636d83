"""The functions of a problem, written out from their definitions: values, standard errors and gradients over all rows.

Nothing of mpifed is imported. Shapes: s samples, b of one piece, p features, h scores, M constraints, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from scipy.special import entr, expit, logsumexp

from jobs.hyfdca.rows import Floats, Model

Backward = Callable[[Floats], Model]  # from weights [b] to the gradient of sum of weights * losses
# a term of samples is a function phi of their losses [b]: from its table to phi and its derivative
OfLoss = Callable[[Mapping[str, Any]], tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]]

OF_LOSS: dict[str, OfLoss] = {
    "loss": lambda table: (lambda loss: loss, np.ones_like),
    "error-rate": lambda table: (lambda loss: -np.expm1(-loss), lambda loss: np.exp(-loss)),
}
NOT_CONVEX = ("mlp",)


def convex(job: Mapping[str, Any], own: Collection[str] = ()) -> bool:
    """Whether all functions are; `own` as above."""
    tables, objective = [job["minimize"], *job["constraint"]], job["model"]
    if all(table["name"] == "norm" for table in tables):
        return True
    known = all(table["name"] in ("norm", "loss", *own) for table in tables)
    return known and objective["name"] not in NOT_CONVEX and not objective.get("nonconvex_penalty", 0.0)


def forward(name: str, model: Model, X: Any, y: Any) -> tuple[Floats, Backward]:
    """(losses [b], their backpropagation) of an objective on rows X [b, p]."""
    if name == "mlp":
        return _network(model, X, y)
    scores = X @ model["first"] + model.get("head.bias", 0.0)
    if name in ("softmax", "true-class-logistic"):
        losses, slopes = _per_class(name, scores, y)
    else:
        losses, slopes = _one_score(name, scores[:, 0], y)
        slopes = slopes[:, None]

    def backward(weights: Floats) -> Model:
        down = weights[:, None] * slopes
        return {"first": X.T @ down} | ({"head.bias": down.sum(axis=0)} if "head.bias" in model else {})

    return losses, backward


def _network(model: Model, X: Any, y: Any) -> tuple[Floats, Backward]:
    """Swish and softmax; swish(z) = z g(z) has the derivative g + z g (1 - g)."""
    z = X @ model["first"] + model.get("head.hidden_bias", 0.0)
    g = expit(z)
    losses, slopes = _per_class("softmax", z * g @ model["head.second"] + model.get("head.output_bias", 0.0), y)

    def backward(weights: Floats) -> Model:
        output = weights[:, None] * slopes
        hidden = output @ model["head.second"].T * (g + z * g * (1 - g))
        found = {"first": X.T @ hidden, "head.second": (z * g).T @ output}
        if "head.output_bias" in model:
            found |= {"head.hidden_bias": hidden.sum(axis=0), "head.output_bias": output.sum(axis=0)}
        return found

    return losses, backward


def _per_class(name: str, z: Floats, y: Any) -> tuple[Floats, Floats]:
    """(losses [b], their derivatives by the scores z [b, L])."""
    own = np.zeros_like(z)
    own[np.arange(len(y)), y] = 1
    if name == "softmax":
        total = logsumexp(z, axis=1)
        return total - z[own == 1], np.exp(z - total[:, None]) - own
    return np.logaddexp(0, -z[own == 1]), own * (expit(z) - 1)


def margin_loss(name: str, m: Any) -> Any:
    """Of margins m, the score times the sign of the class."""
    short = np.maximum(0, 1 - m)
    return {"hinge": short, "squared-hinge": short**2, "logistic": np.logaddexp(0, -m)}[name]


def dual_gain(name: str, b: Any) -> Any:
    """-l*(-alpha) of such a loss, b being alpha times the sign; minus infinity outside of its domain."""
    inside = (b >= -1e-12) & ((b <= 1 + 1e-12) | (name == "squared-hinge"))
    b = np.clip(b, 0, None if name == "squared-hinge" else 1)
    value = {"hinge": b, "squared-hinge": b - b * b / 4, "logistic": entr(b) + entr(1 - b)}[name]
    return np.where(inside, value, -np.inf)


def _one_score(name: str, z: Floats, y: Any) -> tuple[Floats, Floats]:
    """(losses [b], their derivatives by the scores z [b])."""
    if name == "least-squares":
        return (z - y) ** 2 / 2, z - y
    t = 2.0 * y - 1
    if name == "logistic":
        return np.logaddexp(0, -t * z), -t * expit(-t * z)
    short = np.maximum(0, 1 - t * z)
    if name == "hinge":
        return short, -t * (short > 0)
    if name == "squared-hinge":
        return short**2, -2 * t * short
    raise ValueError(f'[model] name = "{name}": is none of those that are written out here')
