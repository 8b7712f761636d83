"""Accountants against the worst pairs of distributions, integrated numerically."""

from __future__ import annotations

import math

import numpy as np
from lengths import covering
from numpy.typing import NDArray

from mpifed.maths.privacy.accounting import epsilon

Floats = NDArray[np.float64]

GRID = np.linspace(-14.0, 14.0, 5601)  # in units of the noise


def density(mean: float) -> Floats:
    return np.exp(-((GRID - mean) ** 2) / 2) / math.sqrt(2 * math.pi) * (GRID[1] - GRID[0])


def pairs(sampling: str, multiplier: float, q: float) -> list[tuple[Floats, Floats]]:
    """What two neighbours' outputs may be: (1 - q) A + q B and (1 - q) A + q B', noise of standard deviation 1."""
    reach = 1 / multiplier
    if sampling == "poisson":  # a client is there, or is not
        triples = [(0.0, reach, 0.0), (0.0, 0.0, reach)]
    else:  # someone else's record is in the place of one that is not drawn
        triples = [(0.0, reach, 0.0), (0.0, 0.0, reach), (0.0, -reach / 2, reach / 2)]
    return [
        ((1 - q) * density(a) + q * density(b), (1 - q) * density(a) + q * density(c)) for a, b, c in triples
    ]  # fmt: skip


def hockey_stick(p: Floats, q: Floats, eps: float, times: int) -> float:
    if times == 2:
        p, q = np.outer(p[::4], p[::4]).ravel() * 16, np.outer(q[::4], q[::4]).ravel() * 16
    return float(np.maximum(p - math.exp(eps) * q, 0).sum())


@covering(
    {
        "times": [1, 2],
        "multiplier, q": [(1.0, 0.05), (0.7, 0.3), (2.0, 0.5), (1.5, 0.9)],
        "sampling": ["fixed", "poisson"],
    }
)
def test_against_integrated_worst_pairs(sampling: str, multiplier: float, q: float, times: int) -> None:
    """No pair exceeds delta at the epsilon found, and a slightly smaller epsilon some pair does exceed."""
    delta = 1e-4
    found = epsilon(multiplier, q, times, delta, sampling=sampling)
    worst = [
        max(hockey_stick(a, b, eps, times) for a, b in pairs(sampling, multiplier, q))
        for eps in (found, 0.995 * found - 1e-4)
    ]
    assert worst[0] <= delta * (1 + 1e-5)  # what the kinks of the integrand cost on the grid
    if times == 1 or sampling == "poisson":  # of a composition the pairs above need not be the worst
        assert worst[1] > delta
    else:
        assert worst[1] > 0.7 * delta
