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
from math import inf, isfinite, sqrt
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError

Floats = NDArray[np.float64]

_EPS = 2.0**-52
_ROUNDS = 60  # iterations of the interior-point method; 5 to 20 are usual
# initial complementarity products, in units of the sizes of multipliers and levels; those after the first are for when
# Newton's method fails to converge, in about one of a thousand problems constructed to be difficult
_STARTS = 100.0, 1e4, 1.0, 1e-2, 1e6
_CLOSE = 1e-13  # the relative error at which the polishing steps begin
_BOUND = 0.9  # the least fraction of the distance to the boundary that a step may go
_STEPS = 10  # of polishing
_GOOD, _SOLVED = 1e-13, 1e-9  # relative errors: above the first other attempts are made; above the second it fails
_ERROR = itemgetter(1)  # of what `_polish` returns
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


def multipliers(constants: Floats, gram: Floats, curvatures: Floats, cost: Floats | float) -> Floats:
    """The multipliers nu [M] of the surrogates' constraints, each in [0, cost]: the dual of Problem 5.

    Where the gradients of constraints are linearly dependent nu is not unique, but w(nu) and the levels are.

    Parameters
    ----------
    constants : [M] a_m, limits subtracted
    gram : [M + 1, M + 1] inner products of f_0 (the objective's) and f_1 to f_M
    curvatures : [M + 1] tau_0 > 0, and tau_1 to tau_M >= 0
    cost : c > 0, the penalty factor of violations; [M] if it differs between constraints

    Returns
    -------
    [M] float64; exactly 0 for constraints that are not active, exactly `cost` for violated ones

    Raises
    ------
    NumericalError : when inputs are not finite, a curvature has the wrong sign, or numbers overflow.
    """
    with np.errstate(all="ignore"):  # overflow leads to the error below
        problem = _problem(constants, gram, curvatures, cost)
        free = problem.at(np.zeros(len(problem.a)))
        slopes = np.sqrt((free.slopes**2).sum(axis=1))
        alone = _single(problem, free.levels, slopes)
        if ((free.levels <= 0) | (slopes == 0)).all():
            return alone  # no violated constraint has a gradient
        ends = [_polish(problem, alone)]  # often suffices, and always for M = 1
        for start in _STARTS:
            if ends[-1][1] <= _GOOD:
                break
            ends.append(_polish(problem, _interior(problem, alone, start)))
        ends.sort(key=_ERROR)
        nu, error = ends[0]
        for end in ends:
            if error <= _GOOD:
                break
            nu, error = min((nu, error), _at_limits(problem, *end), key=_ERROR)
    if not error <= _SOLVED:
        raise NumericalError(
            f"the convex problem of SSCA: its optimality conditions hold up to {error:.3g} only, relative to its "
            f"numbers (constants up to {np.abs(constants).max():.3g}, squared gradients up to {np.max(gram):.3g}, "
            f"curvatures from {np.min(curvatures):.3g}, cost up to {np.max(cost):.3g}); scale the objective and the "
            "constraints alike"
        )
    return nu


def lemma_1(constant: float, square: float, curvature: float, cost: float) -> float:
    """The multiplier of a single constraint with the objective ||w||^2: (42), in closed form.

    # differs from the paper: computed without the cancellation in sqrt(...) - 1; and where w = 0 meets the limit
    # with equality (A = U), it is 0 even for b = 0, where every multiplier is optimal.

    Parameters
    ----------
    constant : A - U of the paper
    square : b of the paper, the squared norm of the constraint's linear part
    curvature : tau >= 0
    cost : c > 0

    Returns
    -------
    nu in [0, cost], with which w = -nu f_1 / (2 (1 + nu tau)) by (40) and (41)

    Raises
    ------
    NumericalError : when an input is not finite, or the curvature is negative.
    """
    if not (isfinite(constant + square + curvature) and curvature >= 0 and 0 < cost < inf):  # else it raises
        _problem(np.array([constant]), np.array([[0.0, 0.0], [0.0, square]]), np.array([1.0, curvature]), cost)
    slope = sqrt(max(square, 0.0))  # at w = 0, where the level is the constant; else as `_single`
    root = sqrt(max(slope * slope - 4 * curvature * constant, 0.0))
    least = root * (slope + root)
    if constant <= 0:
        return 0.0
    return min(cost, 4 * constant / least) if least else cost


def levels(nu: Floats, constants: Floats, gram: Floats, curvatures: Floats) -> Floats:
    """The values [M] of the surrogates at w(nu): the gradient of the dual. At its maximizer s = max(0, levels).

    Parameters
    ----------
    nu : [M] from `multipliers`, whose parameters the others are
    """
    weights = np.concatenate([[1.0], nu])
    with np.errstate(all="ignore"):
        twice = 2 * (weights @ curvatures)
        along: Floats = gram @ weights / -twice  # <f_m, w(nu)>, (40), (41)
        square = weights @ along / -twice  # ||w(nu)||^2
        at: Floats = constants + along[1:] + curvatures[1:] * square
    return at


def _problem(constants: Floats, gram: Floats, curvatures: Floats, cost: Floats | float) -> _Problem:
    """The problem, its inputs checked."""
    a, gram, tau = (np.asarray(numbers, dtype=np.float64) for numbers in (constants, gram, curvatures))
    assert gram.shape == (len(a) + 1,) * 2 and tau.shape == (len(a) + 1,)
    for what, numbers in ("constant", a), ("inner products", gram), ("curvature", tau):
        finite = np.isfinite(numbers)
        if not finite.all():
            bad = np.argwhere(~finite)[0]
            k = int(bad.max()) + (what == "constant")  # the objective has none
            raise NumericalError(
                f"the convex problem of SSCA: {what} of {f'constraint {k}' if k else 'the objective'}: "
                f"{numbers[tuple(bad)]}: expected finite numbers; lower the step size gamma, or raise tau"
            )
    c = np.full(a.shape, cost, dtype=np.float64)
    if not (tau[0] > 0 and (tau >= 0).all() and (c > 0).all() and np.isfinite(c).all()):
        raise NumericalError(
            f"the convex problem of SSCA: curvatures {tau.tolist()} and slack_cost {c.tolist()}: expected a positive "
            "curvature of the objective, none below 0 of the constraints, and a positive, finite cost; raise tau"
        )
    return _Problem(a, gram, np.sqrt(np.maximum(gram.diagonal(), 0)), tau, c)


def _single(problem: _Problem, level: Floats, slope: Floats) -> Floats:
    """[M] the multiplier of each constraint in the problem with that constraint only: (42), for any objective.

    `level` and `slope` are the surrogates' values and gradient norms at the minimizer of the objective.
    """
    depth = problem.norms[1:] ** 2 - 4 * problem.tau[1:] * problem.a  # above 0 if any w meets the constraint
    root = np.sqrt(np.maximum(depth, 0))
    nu = 4 * problem.tau[0] * level / (root * (slope + root))
    return np.where(level <= 0, 0.0, np.minimum(problem.c, nu))


def _start(problem: _Problem, nu: Floats, start: float) -> tuple[Floats, Floats, Floats]:
    """An interior point (u, v, w) with equal products u * v, large ones, since small ones need more iterations."""
    slopes = problem.norms[1:] + problem.norms[0] * problem.tau[1:] / problem.tau[0]
    usual = np.where(slopes > 0, 0.2 * problem.norms[0] / slopes, problem.c)  # moves w by a tenth of its length
    nu = np.clip(nu, np.maximum(usual, 1e-12 * problem.c), problem.c / 2)
    sizes = problem.at(nu).sizes
    product = start * (nu * sizes).max()
    nu = np.clip(product / sizes, nu, problem.c / 2)
    u = np.stack((nu, problem.c - nu))
    return u, product / u, problem.at(nu).w


class _Newton(NamedTuple):
    """The linearized equations of the interior-point method, factored."""

    at: _Point
    u: Floats  # [2, M]
    v: Floats  # [2, M]
    scale: Floats  # [M]
    inverse: NDArray[np.floating]  # [M, M]

    def solve(self, target: Floats | float, gap: Floats, drift: Floats) -> tuple[Floats, Floats, Floats]:
        """The step (du, dv, dw) after which u v = target, and `gap` and `drift` vanish, to first order."""
        at, v_change, ratio = self.at, target / self.u - self.v, self.v / self.u
        right = gap - at.slopes @ drift / (2 * at.T) + v_change[0] - v_change[1]
        du = _SIDES * (self.scale * (self.inverse @ (self.scale * right)))
        return du, v_change - ratio * du, (drift + du[0] @ at.slopes) / (-2 * at.T)


def _newton(at: _Point, hessian: Floats, u: Floats, v: Floats) -> _Newton:
    """The equations at (u, v, w), reduced to M unknowns and scaled to a unit diagonal."""
    matrix: Floats = hessian + np.diag((v / u).sum(axis=0))
    scale: Floats = matrix.diagonal() ** -0.5
    matrix *= scale[:, None] * scale
    matrix.flat[:: len(matrix) + 1] += 4 * _EPS * (len(matrix) + 4)  # dependent constraints
    return _Newton(at, u, v, scale, np.linalg.inv(matrix))


def _furthest(u: Floats, v: Floats, du: Floats, dv: Floats) -> float:
    """The step length at which the first entry of u or v becomes 0."""
    return 1 / max(float((-du / u).max()), float((-dv / v).max()), 1e-300)


def _interior(problem: _Problem, nu: Floats, start: float) -> Floats:
    """[M] nearly optimal multipliers, exactly 0 or c where these are the limits: Mehrotra's predictor-corrector method.

    The unknowns are w, u = (nu, c - nu) [2, M] and v = (s - level, s) [2, M], all of u and v positive; the equations
    are f_0 + nu f + 2 T w = 0 (`drift`), level - v_1 + v_0 = 0 (`gap`) and u v = 0. All are quadratic, so that the
    second-order terms of the corrector are exact.
    """
    tau = problem.tau[1:]
    u, v, w = _start(problem, nu, start)
    least_error = np.inf
    for _ in range(_ROUNDS):
        at = problem.at(u[0], w)
        gap, drift = at.levels - v[1] + v[0], problem.f[0] + u[0] @ problem.f[1:] + 2 * at.T * w
        hessian = at.slopes @ at.slopes.T / (2 * at.T)  # minus that of the dual
        moves = u * (np.abs(hessian) / at.sizes[:, None]).max(axis=0)  # of the levels if u_m became 0
        ends = moves < v / at.sizes
        error = max(float((np.abs(gap) / at.sizes).max()), float(np.minimum(moves, v / at.sizes).max()))
        if error < least_error:
            least_error = error
            between = np.minimum(u[0], problem.c)  # u[0] + u[1] = c but for rounding
            nu = np.where(ends[0] & (v[0] > v[1]), 0.0, np.where(ends[1] & (v[1] >= v[0]), problem.c, between))
        if error <= _CLOSE or not np.isfinite(error):
            break
        newton = _newton(at, hessian, u, v)
        du, dv, dw = newton.solve(0.0, gap, drift)
        target = (1 - min(1.0, _furthest(u, v, du, dv))) ** 3 * (u * v).mean() - du * dv
        du, dv, dw = newton.solve(target, gap + tau * (dw @ dw), drift + 2 * (tau @ du[0]) * dw)
        step = min(1.0, max(_BOUND, 1 - error) * _furthest(u, v, du, dv))
        u, v, w = u + step * du, v + step * dv, w + step * dw
    return nu


def _polish(problem: _Problem, nu: Floats) -> tuple[Floats, float]:
    """(nu, its relative error): Newton's method on the multipliers between 0 and c, whose levels must be 0."""
    best, least_error = nu, np.inf
    free = np.flatnonzero((nu > 0) & (nu < problem.c))
    for _ in range(_STEPS):
        at = problem.at(nu)
        violations = np.where(nu <= 0, np.maximum(at.levels, 0), np.abs(at.levels))
        violations = np.where(nu >= problem.c, np.maximum(-at.levels, 0), violations) / at.sizes
        error = float(violations.max())
        if not error < least_error:
            break
        best, least_error = nu, error
        if error <= 4 * _EPS * (len(nu) + 4) or not free.size:
            break
        lengths = np.sqrt((at.slopes[free] ** 2).sum(axis=1))
        units = np.where(lengths > 0, 1 / lengths, 0)
        slopes = at.slopes[free] * units[:, None]
        # the shortest solution, where constraints are dependent
        move = np.linalg.lstsq(slopes @ slopes.T, 2 * at.T * units * at.levels[free], rcond=1e-13)[0] * units
        nu = nu.copy()
        nu[free] = np.clip(nu[free] + move, 0, problem.c[free])
    return best, least_error


def _at_limits(problem: _Problem, nu: Floats, error: float) -> tuple[Floats, float]:
    """(nu, its relative error) with those multipliers at 0 or c that the interior-point method left just inside.

    Where a multiplier and its level are both 0 at the optimum, iterates come near it like a square root only; where
    dependent gradients leave a line of optimal multipliers, it has an end with one of them at either limit. Those that
    pull the least on w are moved first, one more at a time.
    """
    best, free = (nu, error), np.flatnonzero((nu > 0) & (nu < problem.c))
    pull = np.minimum(nu, problem.c - nu) * problem.norms[1:]
    for m in free[np.argsort(pull[free], kind="stable")]:
        sides = [np.where(np.arange(len(nu)) == m, limit, nu) for limit in (0.0, problem.c[m])]
        nu, error = min((_polish(problem, side) for side in sides), key=_ERROR)
        best = min(best, (nu, error), key=_ERROR)
    return best
