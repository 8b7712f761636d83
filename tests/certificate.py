"""The numbers of a certificate, from values and gradients, by ways that need no cleverness.

The problem is: minimize F_0 subject to F_m <= U_m, m = 1 ... M; e_m = F_m - U_m at w, and w0 is the first iterate.
All that is minimized here is so by trying every set of constraints that may bind, 2^M in number, or by scipy.
Nothing of mpifed is imported. Lower bounds and steps know of the functions their values and gradients at w, and mu_m
by which they are strongly convex.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from jobs.hyfdca.rows import Floats

MOST = 12  # constraints: all sets of them are tried
RANK = 1e-11  # relative size of singular values that are taken for zero
ROUNDING = 1e-9  # by which conditions may be missed, relative to what stands in them


class Point(NamedTuple):
    """What a certificate is computed from."""

    value: Floats  # [M + 1] F_0(w) ... F_M(w)
    gradient: Floats  # [M + 1, d]
    limit: Floats  # [M]
    root_mean_square: Floats  # [M] of each constraint's term over its samples
    first_value: Floats  # [M + 1] at w0
    first_slopes: Floats  # [M + 1] ||grad F_0(w0)|| ... ||grad F_M(w0)||
    curvature: Floats  # [M + 1] mu_m, 0 where F_m is not known to be strongly convex
    convex: bool  # whether all functions are

    @property
    def excess(self) -> Floats:
        """[M] e_m."""
        return self.value[1:] - self.limit

    @property
    def slope_scale(self) -> float:
        """S."""
        return max(float(self.first_slopes[0]), float(np.linalg.norm(self.gradient[0])))

    @property
    def value_scale(self) -> float:
        """C."""
        return float(max(abs(self.value[0]), abs(self.first_value[0])))


def certificate(at: Point) -> dict[str, float | None]:
    """The history's columns; None where there is nothing to be said."""
    nu, excess = multipliers(at), at.excess
    lagrangian = float(np.linalg.norm(at.gradient[0] + nu @ at.gradient[1:]))
    longest = max([at.slope_scale, *(nu * np.linalg.norm(at.gradient[1:], axis=1))])
    parts = {
        "stationarity": lagrangian / longest if lagrangian else 0.0,
        "feasibility": _feasibility(at),
        "complementarity": _over(float(np.max(nu * abs(excess), initial=0.0)), at.value_scale),
    }
    found: dict[str, float | None] = {"kkt_residual": max(parts.values()), **parts}
    found |= {f"multiplier_{m}": float(value) for m, value in enumerate(nu, 1)}
    found["lower_bound"] = bound = lower_bound(at)
    met = bound is not None and bool((excess <= 0).all())
    found["duality_gap"] = at.value[0] - bound if met and bound is not None else None
    return found


def _feasibility(at: Point) -> float:
    found = [0.0]
    for m, (excess, limit, size) in enumerate(zip(at.excess, at.limit, at.root_mean_square, strict=True), 1):
        found.append(_over(max(excess, 0.0), max(abs(limit), abs(at.first_value[m] - limit)) or size))
    return max(found)


def _over(part: float, whole: float) -> float:
    """A part of a whole, where that of nothing is nothing."""
    return part / whole if part else 0.0


# --- multipliers ----------------------------------------------------------------------------------------------------


def multipliers(at: Point) -> Floats:
    """[M] nu >= 0 that minimizes ||grad F_0 + sum nu_m grad F_m||^2 / S^2 + sum (nu_m e_m)^2 / C^2.

    Of several the one of least norm, in units in which the columns of this least-squares problem have length 1.
    """
    M, S, C = len(at.limit), at.slope_scale, at.value_scale
    usable = np.linalg.norm(at.gradient[1:], axis=1) > 0
    if C == 0:
        usable &= at.excess == 0  # else any multiplier costs infinitely much
    nu = np.zeros(M)
    if S == 0 or not usable.any():
        return nu
    rows = np.diag(at.excess)[:, usable] / C if C else np.zeros((0, int(usable.sum())))
    A = np.concatenate([at.gradient[1:][usable].T / S, rows])  # [d + M, ...]
    lengths = np.linalg.norm(A, axis=0)
    b = np.zeros(len(A))
    b[: at.gradient.shape[1]] = -at.gradient[0] / S
    nu[usable] = nonnegative(A / lengths, b) / lengths
    return nu


def nonnegative(A: Floats, b: Floats) -> Floats:
    """x >= 0 [M] of least ||A x - b||, and of those of least norm: every set of numbers above zero is tried."""
    R: Floats = np.asarray(
        np.linalg.qr(np.column_stack([A, b]), mode="r")
    )  # the same lengths and angles in M + 1 dimensions
    A, b = R[:, :-1], R[:, -1]
    best, ranked = np.zeros(A.shape[1]), (np.inf, np.inf)
    for positive in subsets(A.shape[1]):
        x = np.zeros(A.shape[1])
        x[positive] = np.linalg.pinv(A[:, positive], rcond=RANK) @ b
        size = np.linalg.norm(b) + np.linalg.norm(x)
        missed = max(0.0, *(A.T @ (b - A @ x)), *-x) / size if size else 0.0  # of the conditions of optimality
        rank = (0.0 if missed <= ROUNDING else missed, float(np.linalg.norm(x)))
        if rank < ranked:
            best, ranked = np.maximum(x, 0), rank
    return best


def subsets(size: int) -> Iterator[list[int]]:
    """All of them, the empty one first."""
    assert size <= MOST, f"{size} constraints: all sets of at most {MOST} are tried"
    return map(list, chain.from_iterable(combinations(range(size), k) for k in range(size + 1)))


# --- steps ----------------------------------------------------------------------------------------------------------


def shortest_step(at: Point) -> float | None:
    """||d*||, d* the shortest d with e_m + <grad F_m, d> + mu_m / 2 ||d||^2 <= 0 for all m; None: there is none.

    d* lies in the span of the gradients of those m for which equality holds, so it is d = a + b t, t = ||d||^2.
    """
    lengths = np.linalg.norm(at.gradient[1:], axis=1)
    unit = np.where(lengths > 0, lengths, 1.0)
    e, mu = at.excess / unit, at.curvature[1:] / unit
    R: Floats = np.asarray(np.linalg.qr((at.gradient[1:] / unit[:, None]).T, mode="r"))
    G = R.T  # [M, at most M]
    found = []
    for equal in subsets(len(e)):
        inverse = np.linalg.pinv(G[equal], rcond=RANK)
        a, b = -inverse @ e[equal], -inverse @ mu[equal] / 2
        for t in _roots(float(b @ b), float(2 * a @ b - 1), float(a @ a)):
            d = a + b * t
            if (e + G @ d + mu / 2 * t <= ROUNDING * (abs(e) + np.sqrt(t) + mu * t)).all():
                found.append(float(np.sqrt(t)))
    return min(found, default=None)


def _roots(c2: float, c1: float, c0: float) -> list[float]:
    """The real t >= 0 with c2 t^2 + c1 t + c0 = 0."""
    if c2 <= 1e-300:
        return [-c0 / c1] if c1 < 0 else []
    inside = c1 * c1 - 4 * c2 * c0
    if inside < -1e-12 * c1 * c1:
        return []
    q = -(c1 + np.copysign(np.sqrt(max(inside, 0.0)), c1)) / 2
    return [float(t) for t in (q / c2, c0 / q if q else 0.0) if t >= 0]


# --- lower bound ----------------------------------------------------------------------------------------------------


def lower_bound(at: Point) -> float | None:
    """What no feasible point is below; None where a function is not convex, or nothing is strongly so.

    The maximum over nu >= 0 of F_0 + sum nu_m e_m - ||grad F_0 + sum nu_m grad F_m||^2 / (2 (mu_0 + sum nu_m mu_m)).
    It is infinite where no step meets the limits, as far as is known of them: then no point does.
    """
    if not (at.convex and at.curvature.any()):
        return None
    lengths = np.linalg.norm(at.gradient, axis=1)
    if (at.excess > 0).any() and shortest_step(at) is None:
        return np.inf
    if not lengths[0] and not at.curvature[0]:
        return float(at.value[0])  # w minimizes F_0 among all points
    if len(at.limit) == 0:
        return float(at.value[0] - lengths[0] ** 2 / (2 * at.curvature[0]))
    unit = np.where(lengths > 0, lengths, 1.0)[1:] / (lengths[0] or 1.0)  # of x = nu * unit
    columns = np.column_stack([at.gradient[0], (at.gradient[1:] / unit[:, None]).T])
    R: Floats = np.asarray(np.linalg.qr(columns, mode="r"))
    e, mu, size = at.excess / unit, at.curvature[1:] / unit, lengths[0] or 1.0

    def negative(x: Floats) -> tuple[float, Floats]:
        T, v = at.curvature[0] + mu @ x, R[:, 0] + R[:, 1:] @ x
        if T <= 0:
            return np.inf, np.zeros_like(x)
        return float(v @ v / (2 * T) - e @ x) / size, (R[:, 1:].T @ v / T - v @ v / (2 * T * T) * mu - e) / size

    least = np.where((at.curvature[0] == 0) & (mu > 0), 1e-12, 0.0)
    best = np.inf
    for start in (0.01, 1.0, 100.0):
        x, bounds = np.maximum(np.full(len(e), start), least), [(low, None) for low in least]
        options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 0.0, "gtol": 0.0, "maxcor": 50}
        x = minimize(negative, x, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x
        best = min(best, negative(x)[0])
        x = minimize(negative, x, jac=True, bounds=bounds, method="SLSQP", options={"ftol": 1e-16}).x
        best = min(best, negative(np.maximum(x, least))[0])
    return float(at.value[0] - size * best)
