"""The convex problem of a round of constrained SSCA, solved by its dual, which has M variables.

Ye and Cui, "Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex Optimization
via Mini-batch SSCA", Problem 5 and Lemma 1. The surrogates are a_m + <f_m, w> + tau_m ||w||^2, and the problem is

    min over w, s of  <f_0, w> + tau_0 ||w||^2 + sum_m c_m s_m  subject to  surrogate_m(w) <= s_m,  s_m >= 0.

Given multipliers nu, T = tau_0 + sum_m nu_m tau_m, the best w is w(nu) = -(f_0 + sum_m nu_m f_m) / (2 T), and the dual,

    max over 0 <= nu <= c of  <a, nu> - ||f_0 + sum_m nu_m f_m||^2 / (4 T),

is concave; its gradient is the vector of the surrogates' values at w(nu). It depends on the f_m only through their
inner products.
# differs from the paper: which solves Problem 5 in all parameters, with any convex solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError

Floats = NDArray[np.float64]

_ROUNDS = 100  # iterations of the interior-point method; 5 to 20 are usual
_START = 100.0  # initial complementarity products, in units of the sizes of multipliers and levels
_BOUND = 0.9  # the least fraction of the distance to the boundary that a step may go
_GOOD, _SOLVED = 1e-13, 1e-9  # relative errors: at the first it ends, above the second it fails
_SIDES = np.array([[1.0], [-1.0]])  # derivatives of nu and c - nu with respect to nu


class _Point(NamedTuple):
    """Values and gradients of the surrogates at w."""

    w: Floats  # [r]
    T: float
    levels: Floats  # [M] values
    slopes: Floats  # [M, r] gradients
    sizes: Floats  # [M] magnitudes of the terms whose sums are the levels, or 1: the scales of rounding errors


@dataclass(frozen=True, eq=False)
class _Problem:
    """The problem in an orthonormal basis of the span of the linear parts."""

    a: Floats  # [M]
    gram: Floats  # [M + 1, M + 1]
    norms: Floats  # [M + 1] of the linear parts
    tau: Floats  # [M + 1]
    c: Floats  # [M]

    @cached_property
    def f(self) -> Floats:
        """[M + 1, r] the linear parts: gram is f f', each row of f accurate relative to its own norm."""
        units = np.where(self.norms > 0, self.norms, 1)
        values, vectors = np.linalg.eigh(self.gram / units[:, None] / units)
        parts: Floats = self.norms[:, None] * vectors * np.sqrt(np.maximum(values, 0))
        return parts

    def at(self, nu: Floats, w: Floats | None = None) -> _Point:
        """The surrogates at `w`, by default w(nu)."""
        T = float(self.tau[0] + self.tau[1:] @ nu)
        if w is None:
            w = (self.f[0] + nu @ self.f[1:]) / (-2 * T)  # (40), (41)
        levels = self.a + self.f[1:] @ w + self.tau[1:] * (w @ w)
        slopes = self.f[1:] + np.outer(2 * self.tau[1:], w)
        reach = (self.norms[0] + nu @ self.norms[1:]) / (2 * T)  # ||w|| without cancellation
        sizes = np.abs(self.a) + reach * (self.norms[1:] + self.tau[1:] * reach)
        sizes[sizes == 0] = 1
        return _Point(w, T, levels, slopes, sizes)

    def error(self, nu: Floats) -> float:
        """How far, relative to its size, any level is from 0: it may be below where nu = 0, and above where nu = c."""
        at = self.at(nu)
        wrong = np.clip(at.levels, np.where(nu > 0, -np.inf, 0), np.where(nu < self.c, np.inf, 0))
        return float((np.abs(wrong) / at.sizes).max())


def multipliers(constants: Floats, gram: Floats, curvatures: Floats, cost: Floats | float) -> tuple[Floats, Floats]:
    """The multipliers nu of the surrogates' constraints, each in [0, cost]: the dual of Problem 5; and the levels.

    A single constraint has the closed form of Lemma 1.
    # differs from the paper: (42) is computed without the cancellation in sqrt(...) - 1; and where w = 0 meets the
    # limit with equality (A = U), it is 0 even for b = 0, where every multiplier is optimal.

    Where the gradients of constraints are linearly dependent nu is not unique, but w(nu) and the levels are.

    Parameters
    ----------
    constants : [M] a_m, limits subtracted
    gram : [M + 1, M + 1] inner products of f_0 (the objective's) and f_1 to f_M
    curvatures : [M + 1] tau_0 > 0, and tau_1 to tau_M >= 0
    cost : c > 0, the penalty factor of violations; [M] if it differs between constraints

    Returns
    -------
    [M] float64 nu; exactly 0 for constraints that are not active, exactly `cost` for violated ones
    [M] the values of the surrogates at w(nu), the gradient of the dual: s = max(0, levels)

    Raises
    ------
    NumericalError : when inputs are not finite, a curvature has the wrong sign, or numbers overflow; and where the
        interior-point method does not converge, as it may where a multiplier and its level both are 0.
    """
    c = np.full(constants.shape, cost, dtype=np.float64)
    given = {"constants": constants, "inner products": gram, "curvatures": curvatures, "slack_cost": c}
    wrong = [f"{what} {numbers.tolist()}" for what, numbers in given.items() if not np.isfinite(numbers).all()]
    if wrong or not (curvatures[0] > 0 and (curvatures >= 0).all() and (c > 0).all()):
        raise NumericalError(
            f"the convex problem of SSCA: {', '.join(wrong) or f'curvatures {curvatures.tolist()}, slack_cost {c}'}: "
            "expected finite numbers (of the objective first), a positive curvature of the objective, none below 0 of "
            "the constraints, and a positive cost; lower the step size gamma, or raise tau"
        )
    with np.errstate(all="ignore"):  # overflow leads to the error below
        problem = _Problem(constants, gram, np.sqrt(np.maximum(gram.diagonal(), 0)), curvatures, c)
        free = problem.at(np.zeros(len(problem.a)))
        nu = _alone(problem, free.levels, np.sqrt((free.slopes**2).sum(axis=1)))
        error = problem.error(nu)  # little for M = 1, and where no violated constraint has a gradient
        if error > _GOOD:
            nu, error = _interior(problem, nu)
        levels = problem.at(nu).levels
    if not error <= _SOLVED:
        raise NumericalError(
            f"the convex problem of SSCA: its optimality conditions hold up to {error:.3g} only, relative to its "
            f"numbers (constants {problem.a}, lengths of gradients {problem.norms}, curvatures {problem.tau}, costs "
            f"{problem.c}); scale the objective and the constraints alike"
        )
    return nu, levels


def _alone(problem: _Problem, level: Floats, slope: Floats) -> Floats:
    """[M] the multiplier of each constraint in the problem with that constraint only: (42), for any objective.

    `level` and `slope` are the surrogates' values and gradient norms at the minimizer of the objective.
    """
    depth = problem.norms[1:] ** 2 - 4 * problem.tau[1:] * problem.a  # above 0 if any w meets the constraint
    root = np.sqrt(np.maximum(depth, 0))
    nu = 4 * problem.tau[0] * level / (root * (slope + root))
    return np.where(level <= 0, 0.0, np.minimum(problem.c, nu))


def _interior(problem: _Problem, nu: Floats) -> tuple[Floats, float]:
    """(multipliers [M], their relative error), exactly 0 or c where these are the limits, from `nu`.

    Mehrotra's predictor-corrector method. The unknowns are w, u = (nu, c - nu) [2, M] and v = (s - level, s) [2, M],
    all of u and v positive; the equations are f_0 + nu f + 2 T w = 0 (`drift`), level - v_1 + v_0 = 0 (`gap`) and u v =
    0. All are quadratic, so that the second-order terms of the corrector are exact.
    """
    tau, c, best, least_error = problem.tau[1:], problem.c, nu, np.inf
    nu = np.clip(nu, 1e-6 * c, c / 2)
    sizes = problem.at(nu).sizes
    product = _START * (nu * sizes).max()  # a large one, since small ones need more iterations
    nu = np.clip(product / sizes, nu, c / 2)
    u = np.stack((nu, c - nu))
    v, w = product / u, problem.at(nu).w
    for _ in range(_ROUNDS):
        at = problem.at(u[0], w)
        hessian = at.slopes @ at.slopes.T / (2 * at.T)  # minus that of the dual
        moves = u * (np.abs(hessian) / at.sizes[:, None]).max(axis=0)  # of the levels if u_m became 0
        ends = moves < v / at.sizes
        inside = np.where(ends[1], c, np.minimum(u[0], c))  # u[0] + u[1] = c but for rounding
        tried = np.where(ends[0] & (v[0] > v[1]), 0.0, inside)
        error = problem.error(tried)
        if error < least_error:
            best, least_error = tried, error
        if not error > _GOOD:
            break
        matrix = hessian + np.diag((v / u).sum(axis=0))
        unit = matrix.diagonal() ** -0.5
        matrix *= unit[:, None] * unit
        matrix.flat[:: len(matrix) + 1] += 1e-14  # constraints may be dependent
        inverse = np.linalg.inv(matrix) * unit[:, None] * unit
        gap, drift = at.levels - v[1] + v[0], problem.f[0] + u[0] @ problem.f[1:] + 2 * at.T * w
        target: Floats | float = 0.0
        for _ in ("predictor", "corrector"):
            change = target / u - v
            du = _SIDES * (inverse @ (gap - at.slopes @ drift / (2 * at.T) + change[0] - change[1]))
            dv, dw = change - v / u * du, (drift + du[0] @ at.slopes) / (-2 * at.T)
            furthest = 1 / max(float((-du / u).max()), float((-dv / v).max()), 1e-300)  # where the first becomes 0
            target = (1 - min(1.0, furthest)) ** 3 * (u * v).mean() - du * dv
            gap, drift = gap + tau * (dw @ dw), drift + 2 * (tau @ du[0]) * dw
        step = min(1.0, max(_BOUND, 1 - error) * furthest)
        u, v, w = u + step * du, v + step * dv, w + step * dw
    return best, least_error
