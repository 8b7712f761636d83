"""The convex surrogates of SSCA (Ye and Cui; errata applied), shared by its four algorithms.

A surrogate is A + <linear, w> + curvature * ||w||^2, tracked by F_t = (1 - rho_t) F_{t-1} + rho_t * (new quadratic
around w_t). Its recursion needs A, `linear` and `curvature` alone, whatever the number of samples.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from mpifed.core.record import Array, Record, map_leaves, zeros
from mpifed.maths.arrays import namespace

Start = Literal["exact", "paper"]


class Surrogate(NamedTuple):
    """A convex quadratic."""

    linear: Record  # the model's shapes
    curvature: Array  # [] float64


def start_surrogate(model: Record, tau: float, start: Start) -> Surrogate:
    """The surrogate before the first round.

    `exact` starts from the zero function, as the recursion says; its curvature is then tau * Q_t with
    Q_t = 1 - prod(1 - rho_s). # differs from the paper: `paper` takes the curvature tau from the first round on,
    as the closed forms of the paper are printed.
    """
    return Surrogate(zeros(model), np.float64(0.0 if start == "exact" else tau))


def track(
    surrogate: Surrogate,
    rho: float,
    gradient: Record,
    at: Record,
    tau: float,
    penalty: float = 0.0,
    weight: float = 1.0,
) -> Surrogate:
    """The surrogate after a round: (2) of the short paper with the quadratic of (6).

    Parameters
    ----------
    gradient : the model's shapes; estimate of `weight` times the gradient of the data term at `at`
    at : the model w_t at which it was taken
    penalty : the factor of ||w||^2, linearized at w_t: 2 penalty <w_t, w>, as in (12)
    """

    def tracked(linear: Array, slope: Array, w: Array) -> Array:
        number = w.dtype.type
        new = w * number(2 * rho * (penalty - tau))  # with the next, rho * linear part of the new quadratic
        part = slope * number(rho / weight)
        new += part
        new += namespace(w).multiply(linear, number(1 - rho), out=part)  # (14), (15)
        return new

    linear = map_leaves(tracked, surrogate.linear, gradient, at)
    return Surrogate(linear, (1 - rho) * surrogate.curvature + rho * tau)


def move(surrogate: Surrogate, gamma: float, at: Record) -> Record:
    """w_{t+1} = (1 - gamma) w_t + gamma * argmin of the surrogate, by (4), (16) and (17)."""
    step = gamma / (2 * float(surrogate.curvature))

    def moved(w: Array, linear: Array) -> Array:
        new = w * w.dtype.type(1 - gamma)
        new -= linear * w.dtype.type(step)
        return new

    return map_leaves(moved, at, surrogate.linear)
