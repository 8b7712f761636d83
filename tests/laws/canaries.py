"""Lower bounds on the privacy loss, from releases of runs with and without a canary.

A canary is a record, or a client, whose contribution is known and spread over many directions; releases are projected
onto it, as in G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar: "One-shot Empirical Privacy
Estimation for Federated Learning" (ICLR 2024, arXiv:2302.03098). Instead of their fit, this is a bound: a test has
false positive rate a and false negative rate b only if the mechanism's mu, as Gaussian differential privacy, is at
least Phi^-1(1 - a) - Phi^-1(b) (J. Dong, A. Roth, W. Su, JRSS B 2022; M. Nasr, J. Hayes, T. Steinke, B. Balle,
F. Tramer, M. Jagielski, N. Carlini, A. Terzis, USENIX Security 2023), and a and b are bounded by the counts of runs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SETTLE = 0.2  # fraction of the runs that the discriminant is fitted to
_RIDGE = 1e-9  # relative to the trace: noise that cancels leaves no variance


def discriminant(present: Floats, absent: Floats) -> Floats:
    """[f] Fisher's linear discriminant (R. A. Fisher 1936) of features [runs, f]."""
    spread = np.cov(present, rowvar=False) + np.cov(absent, rowvar=False)
    spread = np.atleast_2d(spread)
    spread = spread + np.eye(len(spread)) * _RIDGE * np.trace(spread)
    combination: Floats = np.linalg.solve(spread, present.mean(axis=0) - absent.mean(axis=0))
    return combination


def clopper_pearson(hits: int, of: int, confidence: float) -> tuple[float, float]:
    """Exact confidence interval of a probability."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1 - tail, hits + 1, of - hits)) if hits < of else 1.0


def least_mu(present: Floats, absent: Floats, confidence: float = 0.99) -> float:
    """Lower bound on mu of Gaussian differential privacy.

    Parameters
    ----------
    present, absent : [runs, f] independent runs; features are parts of a release, each along the canary
    """
    from scipy.stats import norm

    first = [half[: int(SETTLE * len(half))] for half in (present, absent)]
    direction = discriminant(*first)
    middle = sum(float((half @ direction).mean()) for half in first) / 2
    rest = [half[int(SETTLE * len(half)) :] @ direction > middle for half in (present, absent)]
    # one end each of two intervals: both bounds hold together with this confidence
    miss = clopper_pearson(int((~rest[0]).sum()), len(rest[0]), confidence)[1]
    alarm = clopper_pearson(int(rest[1].sum()), len(rest[1]), confidence)[1]
    return max(0.0, float(norm.ppf(1 - alarm) - norm.ppf(miss)))


def epsilon_of(mu: float, delta: float) -> float:
    """The least epsilon of a mechanism that is mu-Gaussian differentially private and no better."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - delta)

    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, mu * (mu + 40)))
