"""Certificates of optimality, computed from the true problem and not from its surrogates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array

Floats = NDArray[np.float64]


class Certificate(NamedTuple):
    """How far a point is from the Karush-Kuhn-Tucker conditions; 0 at a KKT point."""

    kkt_residual: float  # the largest of the three
    stationarity: float
    infeasibility: float
    complementarity: float


def certificate(gradient: Floats, gradients: Floats, excess: Floats, multipliers: Floats) -> Certificate:
    """The KKT residual of min F_0 subject to F_m <= limit_m, in the normalization of Fritz John.

    The multipliers (1, nu) are divided by their sum 1 + sum nu, so that the residual does not depend on how large they
    are; without constraints it is the norm of the gradient.

    Parameters
    ----------
    gradient : [d] of F_0
    gradients : [M, d] of the constraints
    excess : [M] F_m - limit_m
    multipliers : [M] nu >= 0

    Returns
    -------
    Certificate
        stationarity ||grad F_0 + sum nu_m grad F_m||_2 / (1 + sum nu), infeasibility max(F_m - limit_m, 0),
        complementarity max nu_m |F_m - limit_m| / (1 + sum nu).
    """
    total = 1.0 + float(multipliers.sum())
    lagrangian = gradient + multipliers @ gradients if len(multipliers) else gradient
    stationarity = float(np.linalg.norm(lagrangian)) / total
    infeasibility = float(np.max(excess, initial=0.0))
    complementarity = float(np.max(multipliers * np.abs(excess), initial=0.0)) / total
    return Certificate(max(stationarity, infeasibility, complementarity), stationarity, infeasibility, complementarity)


def dual_value(penalty: float, w: Array, conjugates: float, samples: int) -> float:
    """D(alpha) of `mpifed.maths.duals`: a lower bound of what is minimized, whatever the feasible alpha.

    Parameters
    ----------
    penalty : lambda / 2, above 0
    w : [...] w(alpha) = X' alpha / (lambda N)
    conjugates : the sum over all samples of l_i*(-alpha_i); infinite where alpha is not feasible
    samples : N
    """
    return -conjugates / samples - penalty * float((w.astype(np.float64) ** 2).sum())
