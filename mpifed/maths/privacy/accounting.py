"""Privacy accounting by Google's dp-accounting: the epsilon of a client's releases, and the noise for an epsilon.

Every epsilon is an upper bound. A client releases mechanisms that are all alike. Their multiplier is the standard
deviation of the noise / the distance between the outputs of two neighbours (`Privacy.reach`); the rate is the
probability that the record, or the client, is in a mechanism, and 1 where everybody knows.

Mechanisms compose by convolution of their privacy losses, on a grid of losses, rounded pessimistically (Doroshenko,
Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots", PETS 2022, arXiv:2207.04380). A pair of distributions whose
profile delta(e) = sup over events of P(event) - exp(e) Q(event) lies above that of every pair of neighbours dominates
them all, also when composed adaptively (Zhu, Dong, Wang, AISTATS 2022, arXiv:2106.08567).

Given that a replaced record is not drawn, drawn, or its replacement is drawn, outputs are A, B and B', Gaussians no
farther apart than the sensitivity. So (1 - q) A + q B and (1 - q) A + q B' have, by advanced joint convexity (Balle,
Barthe, Gaboardi, NeurIPS 2018, arXiv:1807.01647, Theorems 2 and 10), delta'(log(1 + q (exp(e) - 1))) <= q delta(e) for
e >= 0. That is the profile of (1 - q) A + q B against A, which dp-accounting has; for e < 0 the same holds with the two
exchanged, so that the curve is mirrored: delta(-e) = 1 - exp(-e) + exp(-e) delta(e).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from mpifed.core.errors import UsageError

CALIBRATED = 1e-4  # relative error of `calibrate`
_POINTS = 2**17  # approximate upper bound of the points of a grid
_FINE = 1 / 64  # spacing of a grid / standard deviation of a loss
_WIDEST = 64.0  # spacing above which a grid gives no useful bound
_ROUNDOFF = 1e-12  # rounding error of the convolutions of up to 1,000 mechanisms, subtracted from delta
_TAILS = 9.0  # standard deviations within which nearly all losses of a composition are
_MOST = 2.0**26  # steps of a grid by which losses may be rounded, all together
_MANY = 64  # doublings of a multiplier after which no more noise helps


def epsilon(multiplier: float, rate: float, count: int, delta: float, *, sampling: str = "fixed") -> float:
    """An epsilon for which all releases of a client are (epsilon, delta)-differentially private.

    Parameters
    ----------
    multiplier, rate : of each of `count` mechanisms, composed adaptively
    delta : strictly between 0 and 1
    sampling : "fixed": of a fixed number of records, of which one is replaced; "poisson": of clients, of whom one is
        left out, each by a coin of its own

    Returns
    -------
    The smaller of two bounds: by privacy losses, and that without amplification (which is exact). inf when a mechanism
    has no noise.
    """
    plain = unamplified(multiplier, count if rate else 0, delta)
    if rate in (0, 1) or plain in (0.0, math.inf) or delta <= 10 * _roundoff(count):
        return plain
    return min(plain, _by_losses(float(multiplier), float(rate), int(count), delta, sampling))


@lru_cache(maxsize=4096)
def unamplified(multiplier: float, count: float, delta: float) -> float:
    """Epsilon against an adversary who knows which records, or clients, were drawn: exact.

    Gaussian mechanisms of multiplier m compose to a single one of m / sqrt(count).
    """
    from dp_accounting import get_epsilon_gaussian

    if not count or multiplier == math.inf:
        return 0.0
    if not multiplier:
        return math.inf
    with np.errstate(divide="ignore"):  # of a delta that is 0 in doubles, as a logarithm
        searched = float(get_epsilon_gaussian(1 / math.sqrt(count / multiplier**2), delta))
    return searched * (1 + 1e-12) + 1e-12  # its search ends within 1e-12


def calibrate(cost: Callable[[float], float], target: float) -> float:
    """The noise multiplier with which a plan stays within an epsilon.

    Parameters
    ----------
    cost : the epsilon that a noise multiplier comes to, roundings included; it decreases
    target : positive

    Returns
    -------
    A multiplier whose cost is at most `target`, less than 1.0001 times the smallest such multiplier.

    Raises
    ------
    UsageError : where nothing is released, or no noise is enough.
    """
    from scipy.optimize import brentq

    @cache
    def excess(logarithm: float) -> float:
        return math.log1p(min(cost(math.exp(logarithm)), 1e300)) - math.log1p(target)

    high, double = 0.0, math.log(2)
    while excess(high) > 0 and high < _MANY * double:
        high += double
    while excess(high - double) <= 0 and high > -_MANY * double:
        high -= double
    if abs(high) >= _MANY * double:
        raise UsageError(
            "[privacy] epsilon: no noise multiplier can be computed for it, since the job releases nothing, or "
            "something without noise; check rounds and who participates, or give noise_multiplier instead"
        )
    step = CALIBRATED / 8
    if excess(high) < 0:
        high = min(high, brentq(excess, high - double, high, xtol=step) + step)
    while excess(high) > 0:
        high += CALIBRATED / 4
    return math.exp(high)


def _roundoff(count: int) -> float:
    """What powers of a Fourier transform may be off: four times and more what was found, of up to 10^6 mechanisms."""
    return _ROUNDOFF * max(1.0, count / 1000)


def _farthest(multiplier: float, rate: float) -> float:
    """A loss that a single amplified mechanism exceeds with probability below 1e-23."""
    loss = 0.5 / multiplier**2 + 10 / multiplier
    return loss + math.log(rate + (1 - rate) * math.exp(-loss))


def _spacing(multiplier: float, rate: float, count: int) -> float:
    """The spacing of the grid of a composition, a power of two.

    It affects speed and tightness only: small relative to the standard deviation of a loss, but with at most about
    2 POINTS points for a single loss, and for the composition, as if its losses were normal. inf where there would be
    too many points all the same, since a loss that is not zero is rounded up to the next one.
    """
    # chi^2 divergence, approximately the variance of a loss
    small = math.expm1(min(1 / multiplier**2, 700)) * rate**2
    variance = count * min(small, 1 / multiplier**2)
    if math.sqrt(variance * count) > _MOST:
        return math.inf
    width = max(_farthest(multiplier, rate), variance / 2 + _TAILS * math.sqrt(variance))
    return float(2.0 ** math.floor(math.log2(max(_FINE * math.sqrt(variance / count), 2 * width / _POINTS))))


@lru_cache(maxsize=32)
def _single(multiplier: float, rate: float, sampling: str, grid: float) -> Any:  # dp_accounting has no types
    """The privacy loss distribution of a single mechanism."""
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as losses
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
    from dp_accounting.privacy_accountant import NeighboringRelation

    if sampling == "poisson":
        return losses.from_gaussian_mechanism(
            multiplier, sampling_prob=rate, value_discretization_interval=grid,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )  # fmt: skip
    last = math.ceil(_farthest(multiplier, rate) / grid)
    positive = np.arange(last + 1) * grid
    loss = GaussianPrivacyLoss(multiplier, sampling_prob=rate, adjacency_type=AdjacencyType.REMOVE)
    above = np.asarray(loss.get_delta_for_epsilon(positive))
    with np.errstate(under="ignore"):
        below = -np.expm1(-positive) + np.exp(-positive) * above
    deltas = np.clip(np.concatenate([below[:0:-1], above]), 0, 1)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -last, last, deltas)
    # of sparse ones self_compose computes size^count, a number of megabytes for many rounds
    return losses.PrivacyLossDistribution(pmf.to_dense_pmf())


@lru_cache(maxsize=256)
def _by_losses(multiplier: float, rate: float, count: int, delta: float, sampling: str) -> float:
    """Epsilon of a composition, by privacy losses; inf where the grid would be too coarse or too large."""
    grid = _spacing(multiplier, rate, count)
    if grid > _WIDEST:
        return math.inf
    losses = _single(multiplier, rate, sampling, grid)
    return float((losses.self_compose(count) if count > 1 else losses).get_epsilon_for_delta(delta - _roundoff(count)))
