"""Small quadratic programs on the simplex, by nonnegative least squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_RIDGE = 1e-13  # relative, by which planes that are alike differ


def least_on_simplex(Q: Floats, b: Floats) -> Floats:
    """The weights beta >= 0 with sum 1 that minimize beta'Q beta / 2 - b'beta.

    With sum 1, twice that is beta'M beta less a constant, M = Q - b1' - 1b' + c11', whose minimizer is that of
    beta'M beta / 2 - 1'beta over beta >= 0 but for its length: |R beta - R^-T 1|^2 with R'R = M. (C. L. Lawson,
    R. J. Hanson: "Solving Least Squares Problems", 1974.) The weights that are not 0 solve a linear system then.

    Parameters
    ----------
    Q : [K, K] positive semidefinite
    b : [K]

    Returns
    -------
    [K] weights, whose value is right to 1e-9 of itself

    Raises
    ------
    RuntimeError
        where `scipy.optimize.nnls` has not ended after 3 K turns
    """
    from scipy.optimize import nnls

    down = b.max() - b
    size = max(float(np.trace(Q)) / len(b), float(down.max())) or 1.0
    values, vectors = np.linalg.eigh(Q + down[:, None] + down + size)
    roots = np.sqrt(np.maximum(values, _RIDGE * values[-1]))
    beta: Floats = nnls(roots[:, None] * vectors.T, vectors.sum(axis=0) / roots)[0]
    at = np.flatnonzero(beta)
    system = np.ones((len(at) + 1, len(at) + 1))
    system[:-1, :-1] = Q[np.ix_(at, at)] / size
    system[-1, -1] = 0.0
    exact = np.linalg.lstsq(system, np.append(b[at] / size, 1.0), rcond=None)[0][:-1]
    if (exact >= 0).all():
        beta[at] = exact
    beta /= beta.sum()
    return beta
