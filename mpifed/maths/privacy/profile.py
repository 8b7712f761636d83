"""Privacy profiles, and their composition on a grid of privacy losses.

The profile of a pair of distributions P, Q is delta(e) = sup over events of P(event) - exp(e) Q(event). A pair
whose profile lies above that of every pair of neighbours dominates them all, also under (adaptive) composition, which
is the convolution of its privacy losses (Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function", AISTATS 2022, arXiv:2106.08567). Losses are discretized pessimistically (Doroshenko,
Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots", PETS 2022, arXiv:2207.04380) and convolved by Google's
dp-accounting.

A `multiplier` is the standard deviation of the noise / the distance between the neighbours' outputs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mpifed.maths.privacy.release import Floats

POINTS = 2**17  # approximate upper bound of the points of a grid
FINE = 1 / 64  # spacing of a grid / standard deviation of a loss
WIDEST = 64.0  # spacing above which a grid gives no useful bound
ROUNDOFF = 1e-12  # rounding error of the convolutions, subtracted from delta
_TAILS = 9.0  # standard deviations within which nearly all losses of a composition are
_MOST = 2.0**26  # steps of a grid by which losses may be rounded, all together


def gaussian_delta(epsilon: ArrayLike, multiplier: float) -> Floats:
    """delta(epsilon) of the Gaussian mechanism, exactly (Balle, Wang, ICML 2018, arXiv:1805.06530, Theorem 8).

    Parameters
    ----------
    epsilon : of any sign and shape
    multiplier : standard deviation of the noise / sensitivity; positive

    Returns
    -------
    Phi(1/(2m) - epsilon m) - exp(epsilon) Phi(-1/(2m) - epsilon m), in a form without overflow: with exp(epsilon)
    phi(b) = phi(a) for these two arguments a and b.
    """
    from scipy.special import erfcx, ndtr

    e = np.abs(np.asarray(epsilon, dtype=np.float64))
    a, b = 0.5 / multiplier - e * multiplier, -0.5 / multiplier - e * multiplier
    with np.errstate(over="ignore", under="ignore"):
        density = 0.5 * np.exp(-a * a / 2)
        upper = np.where(a > 0, ndtr(a), density * erfcx(np.maximum(-a, 0) / math.sqrt(2)))
        delta = np.maximum(upper - density * erfcx(-b / math.sqrt(2)), 0.0)
    return mirrored(np.asarray(epsilon, dtype=np.float64), delta)


def mirrored(epsilon: Floats, delta: Floats) -> Floats:
    """The profile of a symmetric pair at epsilon, from `delta` = its values at abs(epsilon)."""
    with np.errstate(over="ignore", under="ignore"):
        below = np.minimum(epsilon, 0)
        return np.asarray(np.where(epsilon >= 0, delta, -np.expm1(below) + np.exp(below) * delta))


@lru_cache(maxsize=4096)
def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest epsilon for which the Gaussian mechanism has `delta`, rounded up in its last digits."""
    if multiplier == 0:
        return math.inf
    if float(gaussian_delta(0.0, multiplier)) <= delta:
        return 0.0
    low, high = 0.0, 0.5 / multiplier**2 + math.sqrt(2 * math.log(1 / delta)) / multiplier  # holds: by zCDP
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if float(gaussian_delta(middle, multiplier)) <= delta else (middle, high)
    return high


def amplified_delta(epsilon: ArrayLike, multiplier: float, rate: float) -> Floats:
    """An upper bound of the profiles of mechanisms with sampling probability `rate`, where a record is replaced.

    Given that the record is not drawn, drawn, or its replacement is drawn, the outputs are A, B and B', Gaussians no
    farther apart than the sensitivity; so (1 - q) A + q B and (1 - q) A + q B' have, by advanced joint convexity
    (Balle, Barthe, Gaboardi, NeurIPS 2018, arXiv:1807.01647, Theorems 2 and 10),
    delta'(log(1 + q (exp(e) - 1))) <= q delta(e) for e >= 0; for e < 0 the same holds with the two exchanged.
    """
    e = np.asarray(epsilon, dtype=np.float64)
    size = np.abs(e)
    with np.errstate(over="ignore"):
        inner = np.where(
            size < 1, np.log1p(np.expm1(size) / rate), size + np.log1p((rate - 1) * np.exp(-size)) - math.log(rate)
        )
    return mirrored(e, rate * gaussian_delta(inner, multiplier))


def farthest(multiplier: float, rate: float) -> float:
    """A loss that a single amplified mechanism exceeds with probability below 1e-23."""
    loss = 0.5 / multiplier**2 + 10 / multiplier
    return loss + math.log(rate + (1 - rate) * math.exp(-loss))


def spacing(parts: tuple[tuple[float, float, int], ...]) -> float:
    """The spacing of the grid for the composition of these (multiplier, rate, count): a power of two.

    It affects speed and tightness only: small relative to the standard deviation of a loss, but with at most about
    2 POINTS points for a single loss, and for the composition, as if its losses were normal. inf where there would be
    too many points all the same, since a loss that is not zero is rounded up to the next one.
    """
    variance, many = 0.0, 0
    for multiplier, rate, count in parts:
        # chi^2 divergence, approximately the variance of a loss
        small = math.expm1(min(1 / multiplier**2, 700)) * rate**2
        variance, many = variance + count * min(small, 1 / multiplier**2), many + count
    if math.sqrt(variance * many) > _MOST:
        return math.inf
    widest = max(farthest(multiplier, rate) for multiplier, rate, _ in parts)
    width = max(widest, variance / 2 + _TAILS * math.sqrt(variance))
    return float(2.0 ** math.floor(math.log2(max(FINE * math.sqrt(variance / many), 2 * width / POINTS))))


@lru_cache(maxsize=32)
def single(multiplier: float, rate: float, sampling: str, grid: float) -> Any:  # dp_accounting has no types
    """The privacy loss distribution of a single mechanism: dp_accounting's PrivacyLossDistribution.

    With coins of clients a contribution has norm G at most, and is there or is not: left out, (1 - q) N(0) + q N(G)
    against N(0).
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as losses
    from dp_accounting.privacy_accountant import NeighboringRelation

    if rate == 1.0:
        return losses.from_gaussian_mechanism(multiplier, value_discretization_interval=grid)
    if sampling == "poisson":
        return losses.from_gaussian_mechanism(
            multiplier, sampling_prob=rate, value_discretization_interval=grid,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        )  # fmt: skip
    last = math.ceil(farthest(multiplier, rate) / grid)
    deltas = amplified_delta(np.arange(-last, last + 1) * grid, multiplier, rate)
    found = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -last, last, np.clip(deltas, 0, 1))
    # of sparse ones self_compose computes size^count, a number of megabytes for many rounds
    return losses.PrivacyLossDistribution(found.to_dense_pmf())


@lru_cache(maxsize=256)
def composed_epsilon(parts: tuple[tuple[float, float, int], ...], delta: float, sampling: str) -> float:
    """Epsilon of a composition, by privacy losses; inf where the grid would be too coarse or too large.

    Parameters
    ----------
    parts : (multiplier, rate, count) of each; those of rate 1 have count 1
    delta, sampling : as in `accounting.epsilon`

    Returns
    -------
    An upper bound.
    """
    grid = spacing(parts)
    if grid > WIDEST or delta <= 10 * ROUNDOFF:
        return math.inf
    composition = None
    for multiplier, rate, count in parts:
        part = single(multiplier, rate, sampling, grid)
        part = part.self_compose(count) if count > 1 else part
        composition = part if composition is None else composition.compose(part)
    assert composition is not None  # clients without releases are handled by the caller
    return float(composition.get_epsilon_for_delta(delta - ROUNDOFF))
