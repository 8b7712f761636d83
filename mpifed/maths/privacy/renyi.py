"""Renyi divergences of subsampled mechanisms, and the epsilon that follows from them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.maths.privacy.release import Floats

# orders of `gaussian_curve`: dp-accounting's, without a few large ones, since time grows with the order's square
ORDERS = np.array([*(1 + i / 10 for i in range(1, 100)), *range(11, 33), 36, 40, 48, 56, 64, 96, 128, 192, 512, 1024.0])
_FIXED = 2**53  # records of the data set by which a rate is represented


def general_curve(rho: float, rate: float, orders: NDArray[np.int64]) -> Floats:
    """Renyi divergences of a subsampled mechanism that has at most rho times the order without sampling.

    Wang, Balle, Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical Moments Accountant" (AISTATS
    2019, arXiv:1808.00087), Theorem 9 with epsilon(infinity) = infinity; for any mechanism, and so for discrete noise
    too. Its proof requires of the sampling only A, B and B' of `profile.amplified_delta`: it holds for fixed batches
    and for Poisson sampling, and when a record is left out (B' = A).

    Parameters
    ----------
    rho : 1 / (2 multiplier^2)
    rate : probability that a record is drawn
    orders : [a] all 2 or more

    Returns
    -------
    [a] an upper bound for each order.
    """
    from scipy.special import gammaln, logsumexp

    plain: Floats = rho * orders.astype(np.float64)
    if rate == 1.0:
        return plain
    alpha, j = orders[:, None].astype(np.float64), np.arange(2.0, orders.max() + 1)
    with np.errstate(invalid="ignore"):
        chosen = gammaln(alpha + 1) - gammaln(j + 1) - gammaln(np.maximum(alpha - j, 0) + 1) + j * math.log(rate)
        terms = np.where(j <= alpha, chosen + (j - 1) * j * rho + math.log(2), -np.inf)
    if 2 * rho < 1:  # min(4 (exp(eps(2)) - 1), 2 exp(eps(2)))
        smaller = min(math.log(4 * math.expm1(2 * rho)), 2 * rho + math.log(2))
        terms[:, 0] += smaller - 2 * rho - math.log(2)
    totals: Floats = np.logaddexp(0.0, logsumexp(terms, axis=1)) / (orders - 1)
    return np.minimum(totals, plain)


@lru_cache(maxsize=256)
def gaussian_curve(multiplier: float, rate: float, adjacency: str) -> Floats:
    """The Renyi divergences of a subsampled Gaussian mechanism at ORDERS, by dp-accounting.

    "replace-one" uses that of sampling without replacement (Wang, Balle, Kasiviswanathan 2019, Theorem 27), whose
    proof holds for Poisson sampling too (see `general_curve`), and whose multiplier is ours.
    """
    from dp_accounting import dp_event
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    event: Any = dp_event.GaussianDpEvent(multiplier)  # dp_accounting has no types
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if rate < 1 and adjacency == "replace-one":
        relation = NeighboringRelation.REPLACE_ONE
        event = dp_event.SampledWithoutReplacementDpEvent(_FIXED, math.ceil(rate * _FIXED), event)
    elif rate < 1:
        event = dp_event.PoissonSampledDpEvent(rate, event)
    with np.errstate(all="ignore"), _quiet():
        return np.asarray(RdpAccountant(ORDERS, relation).compose(event).rdp)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress dp-accounting's warnings on the orders that it leaves out."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def converted(at: Floats, curve: Floats, delta: float) -> float:
    """Epsilon of Renyi divergences `curve` at orders `at` (Canonne, Kamath, Steinke, NeurIPS 2020, Proposition 12)."""
    from dp_accounting.rdp import compute_epsilon

    usable = np.isfinite(curve)
    if not usable.any():
        return math.inf
    return float(compute_epsilon(at[usable], np.maximum(curve[usable], 0), delta)[0])
