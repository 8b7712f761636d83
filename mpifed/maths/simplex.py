"""A small quadratic problem on the simplex, solved exactly by an active set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TURNS = 2000


def least_on_simplex(Q: Floats, b: Floats, start: Floats, tolerance: float = 1e-14) -> Floats:
    """The weights beta >= 0 of sum 1 that minimize beta'Q beta / 2 - b'beta.

    Wolfe's method for the nearest point of a polytope ("Finding the nearest point in a polytope", Math. Programming
    1976), with a linear term: of the weights that are not 0, the best ones of sum 1 are found by one system of
    equations; where some would be negative, the step ends where the first becomes 0; where none is, the weight of
    steepest descent joins, and if there is none, that is the solution.

    Parameters
    ----------
    Q : [K, K] positive semidefinite
    b : [K]
    start : [K] weights to begin with, of any sum above 0
    tolerance : by how much, relative to the value, a weight must promise descent to join

    Returns
    -------
    [K] weights; as good as rounding allows, where that ends the method earlier
    """
    beta = np.maximum(start, 0.0)
    beta /= beta.sum()
    best, lowest = beta, np.inf
    for _ in range(_TURNS):
        beta = _settled(Q, b, beta)
        value = _value(Q, b, beta)
        if value >= lowest:  # rounding has the last word
            break
        best, lowest = beta, value
        slope = Q @ beta - b
        joins = int(np.argmin(slope))
        if beta[joins] > 0 or slope[joins] >= beta @ slope - tolerance * max(1e-300, abs(value)):
            break
        beta[joins] = np.finfo(np.float64).tiny  # it is among the positive ones from now on
    return best


def _value(Q: Floats, b: Floats, beta: Floats) -> float:
    return float(beta @ (Q @ beta) / 2 - b @ beta)


def _settled(Q: Floats, b: Floats, beta: Floats) -> Floats:
    """The best weights on some of those that are positive, from which none of them would become negative."""
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
    """The weights of sum 1, of either sign, that minimize; by least squares where Q is as good as singular."""
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
