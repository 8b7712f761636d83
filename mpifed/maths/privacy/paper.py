"""The privacy analysis of the FedPDM-DP paper, as printed except for an exponent: never *the* epsilon of a job.

Li, Huang, Wang, Chi, Quek, "Privacy-Preserving Federated Primal-Dual Learning for Non-Convex Problems with Non-Smooth
Regularization", MLSP 2023. Its errors:

- Lemma 1, (5) and (18), gives sufficient, not minimal noise, and is proved for epsilon < 1; above about 8.4 it fails.
- (19) is correct and tight for minibatch gradients clipped as a whole (4 eta G, without the 1/b of per-sample clipping)
  and a public dual variable. In the paper it is not public: it depends on all data so far, so that the true
  sensitivity is up to 1.5 times this (step "prox", 300 rounds) or 8 times ("fedpd"), and no round is amplified.
- (20) grows like the moments accountant's bound, which needs noise multipliers of 1 and more and small q; c_0 is not
  given. With that of the moments accountant, a claimed epsilon of 7 is in truth between 161 and 80,000.

# differs from the paper: (20) has q^2, which its own source (moments accountant) does not give: q here.
"""

from __future__ import annotations

import math


def composed(multiplier: float, rate: float, count: float, delta: float) -> float:
    """The paper's epsilon after all rounds, (20) with q to the first power: the root of the sum of squares of rounds.

    c_0 = sqrt(2 ln(1/delta) / ln(1.25/delta)) makes it what the moments accountant's theorem gives with constant 2,
    epsilon = 2 q sqrt(n ln(1/delta) / (1 - q)) / multiplier for n = p T rounds.

    Parameters
    ----------
    multiplier : the standard deviation of the noise / the sensitivity (19)
    rate : q, the share of a client's records that a round uses, all its local steps together
    count : n, in how many rounds a client participates, expected or counted
    delta : that of (18)

    Returns
    -------
    inf when q is 1, where (20) is not defined, or without noise; NaN where an argument is: the paper defines none.
    """
    if count == 0:
        return 0.0
    weight = math.inf if rate >= 1 else rate * rate / (1 - rate)
    square = count * weight / (multiplier * multiplier or math.ulp(0.0))  # positive: 0 / 0 is avoided
    return 2 * math.sqrt(math.log(1 / delta) * square)
