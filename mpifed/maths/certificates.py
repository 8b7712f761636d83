"""Certificates of optimality, computed from the problem itself and not from its surrogates.

The problem is min F_0(w) subject to F_m(w) <= limit_m, m = 1 to M; e_m = F_m - limit_m. They need the
functions' values and gradients at a model, and a few numbers of the first iterate w_0, which define the units: no
certificate changes when the objective, or a constraint with its limit, is scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError
from mpifed.core.record import Array
from mpifed.maths.dual import multipliers as dual_multipliers

Floats = NDArray[np.float64]

_PARALLEL = 1e-11  # a sum of gradients that is shorter than this part of their lengths is a rounding error
_TIE = 1e-6  # weight of ||nu|| relative to the residual: matters only where the multipliers are not unique
_MOST = 1e8  # upper bound of a multiplier, in units of the gradients, in place of infinity
ROUNDING = 1e-6  # how far the grid of exact sums may put off what is certified, relative to its unit


class FirstIterate(NamedTuple):
    """The numbers of w_0 that certificates need."""

    objective: float  # F_0
    gradient: float  # ||grad F_0||
    excess: Floats  # [M] F_m - limit_m
    length: float  # ||w_0||


class CertifiedPoint(NamedTuple):
    """Values and gradients of objective and constraints at a model."""

    objective: float  # F_0, penalties included
    gradient: Floats  # [d] of F_0
    excess: Floats  # [M] F_m - limit_m
    gradients: Floats  # [M, d] of F_m
    limits: Floats  # [M]
    # [M] root mean square of the constraint's term over its samples: a unit where limit and e_m(w_0) are 0
    spreads: Floats
    # how far the grid may put off the objective's gradient, and any constraint's, in norm
    off: tuple[float, float] = (0.0, 0.0)

    def off_by(self, nu: Floats) -> float:
        """How far the grid may put off `lagrangian`, in norm."""
        return self.off[0] + self.off[1] * float(nu.sum())

    def lagrangian(self, nu: Floats) -> Floats:
        """[d] grad F_0 + sum nu_m grad F_m."""
        return self.gradient + nu @ self.gradients


class Certificate(NamedTuple):
    """How far a point is from the Karush-Kuhn-Tucker conditions; 0 at a KKT point."""

    kkt_residual: float  # the largest of the three
    stationarity: float
    feasibility: float
    complementarity: float


def scales(point: CertifiedPoint, first: FirstIterate) -> tuple[float, float]:
    """(S, C): the units of gradients and of values of the objective."""
    slope = max(first.gradient, float(np.linalg.norm(point.gradient)))
    return slope, max(abs(point.objective), abs(first.objective))


def best_multipliers(point: CertifiedPoint, first: FirstIterate) -> Floats:
    """The multipliers nu [M] that minimize the violation of the KKT conditions at the point.

    They minimize ||grad F_0 + sum nu_m grad F_m||^2 / S^2 + sum (nu_m e_m)^2 / C^2 over nu >= 0, with S and C of
    `scales`. Where gradients are linearly dependent, they are the minimizer of least norm, each nu_m in units in which
    its column of this least-squares problem has length 1.
    """
    slope, value = scales(point, first)
    M = len(point.excess)
    if not M or not slope:
        return np.zeros(M)
    from scipy.optimize import nnls  # slow to import, and needed for certificates only

    together = np.vstack([point.gradient, point.gradients]).T / slope
    factor: Floats = np.linalg.qr(together)[1]  # [min(d, M + 1), M + 1]; keeps all inner products
    columns: Floats = np.vstack([factor[:, 1:], np.diag(point.excess / (value or 1.0))])
    if not value:  # with an objective of 0 complementarity has no unit, and must hold exactly
        columns[:, point.excess != 0] = 0
    target = np.concatenate([-factor[:, 0], np.zeros(M)])
    lengths = np.linalg.norm(columns, axis=0)
    units = np.divide(1.0, lengths, out=np.zeros(M), where=lengths > 0)
    columns *= units
    tied = nnls(np.vstack([columns, _TIE * np.eye(M)]), np.concatenate([target, np.zeros(M)]))[0]
    free = np.flatnonzero(tied > 0)
    exact = np.zeros(M)
    exact[free] = np.linalg.lstsq(columns[:, free], target, rcond=1e-9)[0]
    multipliers: Floats = units * (exact if (exact >= 0).all() else tied)
    return multipliers


def multiplier_errors(point: CertifiedPoint, nu: Floats) -> Floats:
    """[M] how far the multipliers nu [M] of a point that meets all limits may be from those of the solution near it.

    Gradients that differ by no more than the point's grad L is long would give any nu_m within grad L's length divided
    by how far grad F_m is from the span of the others that count; infinite where it lies in it. Towards the solution
    the gradients of the functions change too, so it is three times that: on problems whose solution is known this
    covered, a single time did not.
    """
    length = 3 * float(np.linalg.norm(point.lagrangian(nu)))
    errors = np.zeros_like(nu)
    for m, slope in enumerate(point.gradients):
        others = point.gradients[(nu > 0) & (np.arange(len(nu)) != m)]
        beside = slope - np.linalg.lstsq(others.T, slope, rcond=1e-9)[0] @ others
        apart = float(np.linalg.norm(beside))
        errors[m] = length / apart if apart > _PARALLEL * _length(slope, 1.0) else np.inf
    return errors


def certificate(
    point: CertifiedPoint, first: FirstIterate, nu: Floats, stationarity: float | None = None
) -> Certificate:
    """How far a point with multipliers `nu` [M] >= 0 is from the KKT conditions, independent of units.

    Parameters
    ----------
    stationarity : where it is computed separately, as with a regularizer

    Returns
    -------
    Certificate
        stationarity ||grad L|| / max(S, max nu_m ||grad F_m||) with L = F_0 + sum nu_m e_m; feasibility
        max e_m / max(|limit_m|, |e_m(w_0)|) over e_m > 0; complementarity max nu_m |e_m| / C. Each is 0 where its
        numerator is. Without constraints only the first remains: the gradient's norm relative to the larger of those
        at the point and at w_0. NaN where the grid of the sums may have changed them too much.
    """
    slope, value = scales(point, first)
    longest = max(slope, float((nu * np.linalg.norm(point.gradients, axis=1)).max(initial=0.0)))
    if point.off_by(nu) > ROUNDING * longest:
        return Certificate(*[np.nan] * 4)
    if stationarity is None:
        stationarity = _ratio(float(np.linalg.norm(point.lagrangian(nu))), longest)
    units = np.maximum(np.abs(point.limits), np.abs(first.excess))
    units = np.where(units > 0, units, point.spreads)
    feasibility = max(map(_ratio, np.maximum(point.excess, 0).tolist(), units.tolist()), default=0.0)
    complementarity = _ratio(float((nu * np.abs(point.excess)).max(initial=0.0)), value)
    return Certificate(max(stationarity, feasibility, complementarity), stationarity, feasibility, complementarity)


def _ratio(above: float, below: float) -> float:
    """above / below; 0 where `above` is 0, else 1 where `below` is 0."""
    if above == 0:
        return 0.0
    return above / below if below else 1.0


def prox_stationarity(w: Floats, gradient: Floats, start: float, prox: Callable[[Floats, float], Floats]) -> float:
    """||w - prox(w - s grad F)|| / ||w|| at the step s = ||w|| / ||grad F||, which makes it independent of units.

    Parameters
    ----------
    start : ||w_0||, which replaces ||w|| where w = 0; 1 replaces both where both are 0
    prox : (u, s) -> the regularizer's
    """
    slope, length = float(np.linalg.norm(gradient)), _length(w, start)
    step = length / slope if slope else 1.0
    return _ratio(float(np.linalg.norm(w - prox(w - step * gradient, step))), length)


def _length(w: Floats, start: float) -> float:
    return float(np.linalg.norm(w)) or start or 1.0


# --- consequences of convexity --------------------------------------------------------------------------------------


def lower_bound(point: CertifiedPoint, nu: Floats, curvatures: Floats, unit: float = 0.0) -> float:
    """The best lower bound of the optimal value that this point gives where all functions are convex.

    With F_0 mu_0-strongly and F_m mu_m-strongly convex, for every nu >= 0 and mu = mu_0 + sum nu_m mu_m,

        F_0(w') >= F_0 + sum nu_m e_m - ||grad F_0 + sum nu_m grad F_m||^2 / (2 mu)  for all w' that meet the limits,

    the minimum of the quadratic below the Lagrangian; it is maximized over nu. Minus infinity where no function is
    strongly convex. Every nu gives a bound: where mu is tiny the result may be a few percent below the best. Rounding
    errors, here and in the values and gradients, are not included; NaN where those of the grid may be too large. Where
    the limits contradict each other, every number is a bound, and this is a large one.

    Parameters
    ----------
    nu : [M] multipliers to try in addition
    curvatures : [M + 1] mu_0 to mu_M >= 0
    unit : with it, or with how far the bound is from F_0 where that is more, is compared what the grid may take off
    """
    candidates = [nu, np.zeros_like(nu)]
    if len(nu):
        candidates.append(_best_of_bound(point, curvatures))
    best = max(candidates, key=lambda nu: _value(point, nu, curvatures))
    value, safe = (_value(point, best, curvatures, off) for off in (0.0, point.off_by(best)))
    if value - safe > ROUNDING * max(unit, abs(value)):
        return safe if np.isinf(safe) else np.nan  # without curvature nothing but a gradient of zero gives a bound
    return point.objective + value


def _value(point: CertifiedPoint, nu: Floats, curvatures: Floats, off: float = 0.0) -> float:
    """sum nu_m e_m - ||grad L||^2 / (2 mu), where grad L may be longer by `off`."""
    square = float((point.lagrangian(nu) ** 2).sum())
    square += off * (2 * float(np.sqrt(square)) + off)
    mu = float(curvatures[0] + nu @ curvatures[1:])
    if not mu:
        return float(nu @ point.excess) if not square else -np.inf
    return float(nu @ point.excess) - square / (2 * mu)


def _best_of_bound(point: CertifiedPoint, curvatures: Floats) -> Floats:
    """[M] multipliers that nearly maximize `_value`: those of SSCA's convex problem with these quadratics.

    Constraints are scaled to gradients of length 1. If F_0 is not strongly convex, a small curvature is added. Zeros
    where all curvatures are 0, and where the solver fails: the bound holds for any multipliers.
    """
    lengths = np.linalg.norm(point.gradients, axis=1)
    units = np.where(lengths > 0, lengths, np.where(point.excess == 0, 1.0, np.abs(point.excess)))
    rows = np.vstack([point.gradient, point.gradients / units[:, None]])
    excess, tau = point.excess / units, curvatures / 2 / np.concatenate([[1.0], units])
    scale = max(float(np.linalg.norm(point.gradient)), float(curvatures[0] * np.abs(excess).max())) or 1.0
    tau[0] = tau[0] or 1e-9 * float(tau.max()) * scale
    try:
        return dual_multipliers(excess, rows @ rows.T, tau, _MOST * scale)[0] / units
    except NumericalError:
        return np.zeros_like(units)


def dual_value(penalty: float, w: Array, conjugates: float, samples: int) -> float:
    """D(alpha) of `mpifed.maths.duals`: a lower bound of the objective's minimum, for every feasible alpha.

    Parameters
    ----------
    penalty : lambda / 2, above 0
    w : [...] w(alpha) = X' alpha / (lambda N)
    conjugates : the sum over all samples of l_i*(-alpha_i); infinite where alpha is not feasible
    samples : N
    """
    return -conjugates / samples - penalty * float((w.astype(np.float64) ** 2).sum())
