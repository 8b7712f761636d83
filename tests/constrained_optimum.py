"""Optima of constrained problems with linear scores, of data in one place.

What federated runs are compared with: minimize F_0 subject to F_m <= U_m, whatever the margins of the job, by the
method of multipliers (D. P. Bertsekas, "Constrained Optimization and Lagrange Multiplier Methods", 1982, chapter 2)
with L-BFGS inside, all in float64. Nothing of mpifed is imported. Tests certify what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from definitions import OF_LOSS, convex, forward
from scipy.optimize import minimize

from jobs.hyfdca.rows import Floats, Rows

SWEEPS = 30  # minimizations at most
ACCURACY = 1e-9  # of e_m and of nu_m e_m, relative to limits and values; the sweeps end there
WEIGHTS = (0.1, 0.3, 1.0, 3.0)  # of limited losses, relative to what is minimized, in the starts of other problems


class Optimum(NamedTuple):
    """A point near the optimum."""

    w: Floats  # [d]
    value: Floats  # [M + 1]
    multipliers: Floats  # [M]


Values = tuple[Floats, Callable[[Floats], Floats]]  # [M + 1], and from weights [M + 1] to the gradient of their sum


def values(job: Mapping[str, Any], rows: Rows) -> Callable[[Floats], Values]:
    """F_0 to F_M of w [d], the weights of linear scores without biases; all rows in memory."""
    ((X, y),) = rows.pieces(len(rows.y))
    tables, penalty = [job["minimize"], *job["constraint"]], job["model"].get("l2", 0.0)
    shape = (X.shape[1], rows.outputs if job["model"]["name"] == "softmax" else 1)
    counted = [
        None if table["name"] == "norm" else np.isin(y, table["classes"]) if table.get("classes") else np.ones(len(y))
        for table in tables
    ]

    def at(w: Floats) -> Values:
        losses, backward = forward(job["model"]["name"], {"first": w.reshape(shape)}, X, y)
        found, slopes, squares = np.zeros(len(tables)), [], np.zeros(len(tables))
        squares[0] = 0.0 if counted[0] is None else penalty
        for m, (table, which) in enumerate(zip(tables, counted, strict=True)):
            if which is None:
                squares[m] = 1.0
                slopes.append(np.zeros(len(y)))
                continue
            phi, slope = OF_LOSS[table["name"]](table)
            found[m] = which @ phi(losses) / which.sum()
            slopes.append(which * slope(losses) / which.sum())
        found += squares * (w @ w)

        def gradient(weights: Floats) -> Floats:
            return backward(weights @ np.array(slopes))["first"].ravel() + 2 * (weights @ squares) * w

        return found, gradient

    return at


def solve(job: Mapping[str, Any], rows: Rows, start: Floats, sharpness: float) -> Optimum:
    """A KKT point near `start`, by multipliers nu_m <- (nu_m + sharpness e_m)+ after each minimization over w.

    Parameters
    ----------
    job : its objective, minimize and constraint tables
    rows : all of them
    start : [d]
    sharpness : the factor of e_m^2 / 2; larger converges in fewer sweeps, each of which takes longer
    """
    at, limit = values(job, rows), np.array([table["limit"] for table in job["constraint"]])
    w, nu = start, np.zeros(len(limit))
    for _ in range(SWEEPS):

        def augmented(w: Floats, nu: Floats = nu) -> tuple[float, Floats]:
            value, gradient = at(w)
            moved = np.maximum(nu + sharpness * (value[1:] - limit), 0)
            return value[0] + float((moved**2 - nu**2).sum()) / (2 * sharpness), gradient(np.array([1.0, *moved]))

        options = {"maxiter": 3000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 30}
        w = minimize(augmented, w, jac=True, method="L-BFGS-B", options=options).x
        value, _ = at(w)
        excess, old = value[1:] - limit, nu
        nu = np.maximum(nu + sharpness * excess, 0)
        if (abs(nu - old) <= ACCURACY * sharpness * abs(limit)).all():
            break
    return Optimum(w, value, nu)


def starts(job: Mapping[str, Any], rows: Rows) -> list[Floats]:
    """Where to begin: at zeros, and unless the problem is convex at minima of the losses, weighted in several ways."""
    outputs = rows.outputs if job["model"]["name"] == "softmax" else 1
    zeros = np.zeros(rows.raw.shape[1] * outputs)
    if convex(job):
        return [zeros]
    losses = [table | {"name": "loss"} for table in (job["minimize"], *job["constraint"])]
    at = values({**job, "minimize": losses[0], "constraint": losses[1:]}, rows)
    found = []
    for weight in WEIGHTS:
        weights = np.array([1.0] + [weight] * len(job["constraint"]))

        def weighted(w: Floats, weights: Floats = weights) -> tuple[float, Floats]:
            value, gradient = at(w)
            return float(weights @ value), gradient(weights)

        found.append(minimize(weighted, zeros, jac=True, method="L-BFGS-B").x)
    return found
