"""The privacy analysis of the FedPDM-DP paper, as printed but for one exponent: never *the* epsilon of a job.

Li, Huang, Wang, Chi, Quek, "Privacy-Preserving Federated Primal-Dual Learning for Non-Convex Problems with Non-Smooth
Regularization", MLSP 2023. What is wrong with it:

- Lemma 1, (5) and (18), is sufficient, not the minimum noise, and proved for epsilon < 1; above about 8.4 it fails.
- (19) is right, and attained, for minibatch gradients clipped as a whole (4 eta G, without the 1/b of per-sample
  clipping) and a dual variable that is public. In the paper it is not: it remembers the data, so that the true
  sensitivity is up to 1.5 times this (step "prox", 300 rounds) or 8 times ("fedpd"), and no round is amplified.
- (20) grows like the moments accountant's bound, which needs noise multipliers of 1 and more and small q; c_0 is not
  given. With its own constant a claimed epsilon of 7 is between 161 and 80,000 in truth.

# differs from the paper: (20) has q^2, which its own source (moments accountant) does not give: q here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def noise(sensitivity: float, epsilon: float, delta: float) -> float:
    """The paper's standard deviation for one upload, (5) and (18)."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def sensitivity(step: float, rho: float, steps: int, clip: float) -> float:
    """The paper's sensitivity of an upload after `steps` local steps, (19): 4 eta G times a sum of |1 - eta rho|^j."""
    return 4 * step * clip * math.fsum(abs(1 - step * rho) ** j for j in range(steps))


def total(multiplier: float, rate: float, participations: float, delta: float) -> float:
    """The paper's epsilon after all rounds, (20) with q to the first power.

    c_0 = sqrt(2 ln(1/delta) / ln(1.25/delta)) makes it what the moments accountant's theorem gives with constant 2,
    epsilon = 2 q sqrt(n ln(1/delta) / (1 - q)) / multiplier.

    Parameters
    ----------
    multiplier : float
        Standard deviation of the noise / the sensitivity (19).
    rate : float
        q: the share of a client's records that a round uses, all its local steps together.
    participations : float
        n = p T: in how many rounds a client takes part, expected or counted.
    delta : float
        That of (18).

    Returns
    -------
    float
        inf when q is 1, where (20) has no value, or there is no noise.

    """
    return composed({(multiplier, rate): participations}, delta)


def composed(spent: Mapping[tuple[float, float], float], delta: float) -> float:
    """(20) for rounds that differ: the root of the sum of squares, which is (20) when they are alike.

    `spent`: how many rounds of each (multiplier, rate). NaN where one of them is: the paper says nothing about it.
    """
    squares = math.fsum(
        count * _weight(rate) / _square(multiplier)
        for (multiplier, rate), count in spent.items()
        if count > 0 and multiplier != math.inf
    )
    return 2 * math.sqrt(math.log(1 / delta) * squares)


def needed(target: float, rate: float, participations: float, delta: float) -> float:
    """The noise multiplier, relative to (19), with which `total` is `target`; inf when q is 1."""
    return total(1.0, rate, participations, delta) / target


def _weight(rate: float) -> float:
    """q^2 / (1 - q)."""
    return math.inf if rate >= 1 else rate * rate / (1 - rate)


def _square(multiplier: float) -> float:
    """So that no noise makes an infinite epsilon."""
    return multiplier * multiplier or math.ulp(0.0)
