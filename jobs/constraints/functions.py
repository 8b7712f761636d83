"""The functions of a problem, written out from their definitions: values, standard errors and gradients over all rows.

Nothing of mpifed is imported. Shapes: s samples, b of one piece, p features, h scores, M constraints, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logsumexp

from jobs.constraints.rows import Floats, Model, Rows

Backward = Callable[[Floats], Model]  # from weights [b] to the gradient of sum of weights * losses
# a term of samples is a function phi of their losses [b]: from its table to phi and its derivative
OfLoss = Callable[[Mapping[str, Any]], tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]]

OF_LOSS: dict[str, OfLoss] = {
    "loss": lambda table: (lambda loss: loss, np.ones_like),
    "error-rate": lambda table: (lambda loss: -np.expm1(-loss), lambda loss: np.exp(-loss)),
}
NOT_CONVEX = ("mlp",)


class Function(NamedTuple):
    """F_m at a model."""

    value: float
    standard_error: float  # of the mean over its samples; 0 where it has none
    root_mean_square: float  # of the term over its samples; 0 where it has none
    gradient: Floats  # [d], the parameters by name


def flat(model: Model) -> Floats:
    """[d] all parameters, by name."""
    return np.concatenate([model[name].ravel() for name in sorted(model)])


def functions(
    job: Mapping[str, Any],
    rows: Rows,
    model: Model,
    own: Mapping[str, OfLoss] | None = None,
) -> list[Function]:
    """F_0, with the objective's penalties, and F_1 to F_M.

    Parameters
    ----------
    job : of a run folder
    rows : all training rows
    model : the point
    own : by their names, terms of one's own that are functions of the loss
    """
    tables, known = [job["minimize"], *job["constraint"]], OF_LOSS | dict(own or {})
    d = len(flat(model))
    sums = np.zeros((len(tables), 3))  # of counts, terms, squares
    gradients = np.zeros((len(tables), d))
    sampled = [m for m, table in enumerate(tables) if table["name"] != "norm"]
    for X, y in rows.pieces() if sampled else ():
        losses, backward = forward(job["model"]["name"], model, X, y)
        for m in sampled:
            counted = np.isin(y, tables[m]["classes"]) if tables[m].get("classes") is not None else np.ones(len(y))
            phi, slope = known[tables[m]["name"]](tables[m])
            terms = phi(losses)
            sums[m] += counted.sum(), counted @ terms, counted @ terms**2
            gradients[m] += flat(backward(counted * slope(losses)))
    w, found = flat(model), []
    for m in range(len(tables)):
        if m not in sampled:
            found.append(Function(float(w @ w), 0.0, 0.0, 2 * w))
            continue
        count, total, squares = sums[m]
        mean, variance = total / count, max(squares / count - (total / count) ** 2, 0.0)
        found.append(Function(float(mean), np.sqrt(variance / count), np.sqrt(squares / count), gradients[m] / count))
    if 0 in sampled:
        counted = np.concatenate([_penalized(job["model"], name, model[name]) for name in sorted(model)])
        found[0] = _with_penalties(found[0], job["model"], w * counted)
    return found


def _penalized(objective: Mapping[str, Any], name: str, leaf: Floats) -> Floats:
    """[k] 1 for parameters that the penalties count: all but intercepts, unless the job says that these are, too."""
    return np.full(leaf.size, 1.0 if objective.get("penalize_bias") or not name.endswith("bias") else 0.0)


def _with_penalties(function: Function, objective: Mapping[str, Any], w: Floats) -> Function:
    """l2 * ||w||^2 + nonconvex_penalty * sum of w^2 / (1 + w^2) added; `w` is zero where no penalty counts it."""
    penalty, concave = objective.get("l2", 0.0), objective.get("nonconvex_penalty", 0.0)
    value = penalty * (w @ w) + concave * (w**2 / (1 + w**2)).sum()
    gradient = 2 * penalty * w + concave * 2 * w / (1 + w**2) ** 2
    return function._replace(value=function.value + float(value), gradient=function.gradient + gradient)


def curvatures(job: Mapping[str, Any], own: Collection[str] = ()) -> Floats:
    """[M + 1] mu_m, by which F_m is strongly convex whatever the data; 0 where it is not, or not known to be.

    `own` are names of convex terms beside those of the package. An intercept without a penalty has no curvature.
    """
    found = [2.0 if table["name"] == "norm" else 0.0 for table in (job["minimize"], *job["constraint"])]
    free = job["model"].get("bias") and not job["model"].get("penalize_bias")
    if not found[0] and not free and convex({**job, "constraint": []}, own):
        found[0] = 2 * job["model"].get("l2", 0.0)
    return np.array(found)


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
    scores = X @ model["first"]
    if name in ("softmax", "one-vs-rest", "true-class-logistic"):
        scores = scores + model.get("head.bias", 0.0)
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
    if name == "one-vs-rest":  # log(1 + exp(-b z)), b = 1 for the sample's class and -1 for all others
        return np.logaddexp(0, (1 - 2 * own) * z).sum(axis=1), expit(z) - own
    return np.logaddexp(0, -z[own == 1]), own * (expit(z) - 1)


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
