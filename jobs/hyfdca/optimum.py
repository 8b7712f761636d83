"""The optimum of a support vector machine on data in one place, certified by the duality gap.

What federated runs are compared with: min over w of mean_i max(0, 1 - t_i x_i . w) + penalty ||w||^2, t_i = 2 y_i - 1,
no intercept. scikit-learn's LIBLINEAR comes near it; exact coordinate steps and conjugate gradients on the dual go on
from there until the gap, by formulas of this project's own, is as small as asked.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError
from mpifed.maths.certificates import dual_value
from mpifed.maths.coordinates import ascend
from mpifed.maths.duals import HingeDual

Floats = NDArray[np.float64]
SWEEPS = 3  # over the rows that have still to move, before each solution by conjugate gradients


class Optimum(NamedTuple):
    """A primal and a dual point that certify one another."""

    objective: float  # P(w), at least the minimum
    dual: float  # D(alpha), at most the minimum
    w: Floats  # [p]
    alpha: Floats  # [N], t_i alpha_i in [0, 1]

    @property
    def relative_gap(self) -> float:
        """(P - D) / P: how far, relative to P, the objective is from the minimum at most."""
        return (self.objective - self.dual) / self.objective


def optimum(X: Any, y: Any, penalty: float, relative_gap: float = 1e-8, rounds: int = 3000) -> Optimum:
    """The optimum of hinge loss with penalty * ||w||^2, where papers write lambda = 2 * penalty.

    Parameters
    ----------
    X : [N, p] rows, dense or CSR; worked with in float64
    y : [N] classes 0 and 1
    relative_gap : what (P - D) / P must come to; 1e-12 and less is often within reach

    Raises
    ------
    NumericalError
        where the gap is not reached within `rounds`
    """
    X = np.ascontiguousarray(X, np.float64) if isinstance(X, np.ndarray) else X.astype(np.float64).tocsr()
    t, scale = 2.0 * np.asarray(y) - 1, 1 / (2 * penalty * len(y))
    rng = np.random.default_rng(0)
    w = _by_liblinear(X, y, scale)
    best = Optimum(_primal(t * (X @ w), w, penalty), -np.inf, w, np.zeros(len(y)))
    alpha = np.where(t * (X @ w) < 1, t, 0.0)
    for _ in range(rounds):
        w = X.T @ alpha * scale
        short = 1 - t * (X @ w)  # by how much each margin falls short of 1
        best = _better(best, w, alpha, t, short, penalty)
        if best.relative_gap <= relative_gap:
            return best
        within = t * alpha
        moving = np.flatnonzero(((within < 1) & (short > 0)) | ((within > 0) & (short < 0)))
        for _ in range(SWEEPS):
            order = rng.permutation(moving)
            alpha[order], w = ascend(HingeDual(), X[order], y[order], alpha[order], w, scale)
        alpha = _solve_between(X, t, alpha, scale)
    raise NumericalError(
        f"optimum: the relative duality gap is {best.relative_gap:.3g} after {rounds} rounds, and {relative_gap:g} was "
        "asked; give more rounds, or a larger penalty"
    )


def _by_liblinear(X: Any, y: Any, scale: float) -> Floats:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC

    machine = LinearSVC(loss="hinge", dual=True, fit_intercept=False, C=scale, tol=1e-6, max_iter=2000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the gap tells
        machine.fit(X, y)
    w: Floats = machine.coef_[0] * (1 if machine.classes_[1] == 1 else -1)
    return w


def _primal(margins: Floats, w: Floats, penalty: float) -> float:
    return float(np.maximum(0, 1 - margins).mean() + penalty * (w @ w))


def _better(best: Optimum, w: Floats, alpha: Floats, t: Floats, short: Floats, penalty: float) -> Optimum:
    """The best primal point and the best dual one so far; w is that of alpha."""
    objective = _primal(1 - short, w, penalty)
    if objective < best.objective:
        best = best._replace(objective=objective, w=w)
    dual = dual_value(penalty, w, -float(t @ alpha), len(t))
    return best._replace(dual=dual, alpha=alpha.copy()) if dual > best.dual else best


def _solve_between(X: Any, t: Floats, alpha: Floats, scale: float) -> Floats:
    """The best alpha as to those that lie within their box, cut off at its borders and never worse."""
    free = np.flatnonzero((t * alpha > 0) & (t * alpha < 1))
    if not len(free):
        return alpha
    rows, sign, w = X[free], t[free], X.T @ alpha * scale

    def products(v: Floats) -> Floats:
        found: Floats = sign * (rows @ (rows.T @ (sign * v))) * scale
        return found

    step = _conjugate_gradients(products, 1 - sign * (rows @ w), 1e-6, 200)
    while True:
        moved = np.clip(sign * alpha[free] + step, 0, 1) - sign * alpha[free]
        pulled = rows.T @ (sign * moved)
        if moved.sum() - pulled @ (w + scale / 2 * pulled) >= 0:  # N times the change of the dual
            alpha = alpha.copy()
            alpha[free] += sign * moved
            return HingeDual().feasible(alpha, (t + 1) / 2)
        step = step / 2


def _conjugate_gradients(products: Callable[[Floats], Floats], right: Floats, tolerance: float, most: int) -> Floats:
    """v with products(v) = right, as far as `most` steps come; the matrix may be singular."""
    found, residual, direction = np.zeros_like(right), right.copy(), right.copy()
    square = first = float(residual @ residual)
    for _ in range(most):
        product = products(direction)
        curvature = float(direction @ product)
        if square <= tolerance**2 * first or curvature <= 0:
            break
        found += square / curvature * direction
        residual -= square / curvature * product
        square, before = float(residual @ residual), square
        direction = residual + square / before * direction
    return found
