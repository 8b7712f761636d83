"""Small quadratic programs on the simplex, solved exactly by an active-set method."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TURNS = 2000


def least_on_simplex(Q: Floats, b: Floats, start: Floats, tolerance: float = 1e-14) -> Floats:
    """The weights beta >= 0 with sum 1 that minimize beta'Q beta / 2 - b'beta.

    Wolfe's method for the nearest point of a polytope ("Finding the nearest point in a polytope", Math. Programming
    1976), with a linear term. The optimal values of the weights that are not 0, with sum 1, solve a linear system; if
    any would be negative, the step ends where the first weight becomes 0; otherwise the weight of steepest descent
    joins them, and if no weight promises descent, the solution is reached.

    Parameters
    ----------
    Q : [K, K] positive semidefinite
    b : [K]
    start : [K] initial weights, with any sum above 0
    tolerance : relative to the value, the least descent for which a weight joins

    Returns
    -------
    [K] weights, accurate up to rounding
    """
    beta = np.maximum(start, 0.0)
    beta /= beta.sum()
    best, lowest = beta, np.inf
    for _ in range(_TURNS):
        beta = _settled(Q, b, beta)
        value = _value(Q, b, beta)
        if value >= lowest:  # no further progress, by rounding
            break
        best, lowest = beta, value
        slope = Q @ beta - b
        joins = int(np.argmin(slope))
        if beta[joins] > 0 or slope[joins] >= beta @ slope - tolerance * max(1e-300, abs(value)):
            break
        beta[joins] = np.finfo(np.float64).tiny  # positive from now on
    return best


def _value(Q: Floats, b: Floats, beta: Floats) -> float:
    return float(beta @ (Q @ beta) / 2 - b @ beta)


def _settled(Q: Floats, b: Floats, beta: Floats) -> Floats:
    """The optimal weights on a subset of the positive ones, reached without any weight becoming negative."""
    beta = beta.copy()
    while True:
        positive = np.flatnonzero(beta > 0)
        target = _free(Q[np.ix_(positive, positive)], b[positive])
        if (target > 0).all() or len(positive) == 1:
            beta[positive] = target / target.sum()
            return beta
        down = target <= 0
        current = beta[positive]
        steps = np.where(down, current / np.maximum(current - target, 1e-300), np.inf)
        moved = current + min(1.0, float(steps.min())) * (target - current)
        moved[int(np.argmin(steps))] = 0.0
        moved = np.where(moved > 0, moved, 0.0)
        beta[positive] = moved / moved.sum()


def _free(Q: Floats, b: Floats) -> Floats:
    """The minimizer with sum 1 and weights of either sign; by least squares where Q is numerically singular."""
    k = len(b)
    system = np.ones((k + 1, k + 1))
    system[k, k] = 0.0
    size = max(float(np.trace(Q)) / k, 1e-300)
    system[:k, :k] = Q / size
    system[range(k), range(k)] += 1e-13
    right = np.append(b / size, 1.0)
    try:
        return np.asarray(np.linalg.solve(system, right)[:k])
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(system, right, rcond=None)[0][:k])
