"""Least weights on the simplex, against every support there is: of planes that are alike, opposite, or none."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

from mpifed.maths.simplex import least_on_simplex


def value(Q: Any, b: Any, beta: Any) -> float:
    return float(beta @ Q @ beta / 2 - b @ beta)


def least_of_all_supports(Q: Any, b: Any) -> float:
    """The least value over all supports on which the optimal weights of either sign are none below 0."""
    K, values = len(b), []
    for size in range(1, K + 1):
        for at in map(list, combinations(range(K), size)):
            system = np.block([[Q[np.ix_(at, at)], np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]])
            beta = np.zeros(K)
            beta[at] = np.linalg.lstsq(system, np.append(b[at], 1.0), rcond=None)[0][:size]
            if (beta >= -1e-12).all() and abs(beta.sum() - 1) < 1e-9:
                values.append(value(Q, b, beta))
    return min(values)


@pytest.mark.parametrize("kind", ["any", "twice", "opposite", "same slope", "no slope", "nearly alike"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_no_support_is_better(kind: str, scale: float) -> None:
    rng = np.random.default_rng(7)
    for K in range(1, 7):
        V, b = rng.normal(size=(K, 4)), rng.normal(size=K)
        if kind == "twice":
            V[-1], b[-1] = V[0], b[0]
        elif kind == "opposite":
            V[-1] = -V[0]
        elif kind == "same slope":
            V[:] = V[0]
        elif kind == "no slope":
            V[:] = 0
        elif kind == "nearly alike":
            V, b = V[0] + 1e-6 * V, b[0] + 1e-6 * b
        Q = V @ V.T
        beta = least_on_simplex(scale * Q, scale * b)
        assert (beta >= 0).all()
        assert beta.sum() == pytest.approx(1, abs=1e-12)
        least = least_of_all_supports(Q, b)
        assert value(Q, b, beta) == pytest.approx(least, abs=1e-9 * (abs(least) + np.abs(Q).max()))
