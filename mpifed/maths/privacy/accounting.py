"""Privacy accounting: the epsilon of a job's releases, and the noise for a given epsilon.

Every epsilon is an upper bound for the given settings. `spent` describes the releases of a client: the number of
mechanisms of each (multiplier, rate). The multiplier is the standard deviation of the noise / the sensitivity,
the distance between the outputs of two neighbours (Privacy.reach: 2 G where a sample is replaced, G where a client is
left out); the rate is the probability that it is in a mechanism, 1 without amplification by sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TypeAlias

from mpifed.core.errors import UsageError
from mpifed.maths.privacy.profile import composed_epsilon, gaussian_epsilon

Spent: TypeAlias = Mapping[tuple[float, float], int]
Plan: TypeAlias = Iterable[tuple[float, float, int]]  # (multiplier / the job's multiplier, rate, count)
Parts: TypeAlias = tuple[tuple[float, float, int], ...]  # (multiplier, rate, count)

CALIBRATED = 1e-4  # relative error of the multiplier of `calibrate`
DISTINCT = 16  # distinct amplified mechanisms; of more, multipliers are rounded down by up to 2 %


def epsilon(spent: Spent, delta: float, *, sampling: str = "fixed") -> float:
    """An epsilon for which all releases of a client are (epsilon, delta)-differentially private.

    Parameters
    ----------
    spent : number of mechanisms of each (multiplier, rate), composed adaptively
    delta : strictly between 0 and 1
    sampling : "fixed": of a fixed number of records, of which one is replaced; "poisson": of clients, of whom one is
        left out, each by a coin of its own

    Returns
    -------
    The smaller of two bounds: by privacy loss distributions, and that without amplification (which is exact). inf when
    a mechanism has no noise.
    """
    parts = _parts(spent)
    plain = unamplified(spent, delta)
    if all(rate == 1 for _, rate, _ in parts) or plain in (0.0, math.inf):
        return plain
    return min(plain, _by_losses(parts, delta, sampling))


def unamplified(spent: Spent, delta: float) -> float:
    """Epsilon without amplification: the bound against an adversary who knows which records were drawn.

    Gaussian mechanisms of multipliers m_j compose to a single one of 1 / sqrt(sum 1/m_j^2), whose epsilon is exact.
    """
    parts = _parts(spent)
    return gaussian_epsilon(_together(parts), delta) if parts else 0.0


def calibrate(target: float, delta: float, plan: Plan, *, sampling: str = "fixed") -> float:
    """The noise multiplier with which the planned releases stay within an epsilon.

    Parameters
    ----------
    target : positive
    delta : strictly between 0 and 1
    plan : (factor, rate, count) of each part: `count` mechanisms whose multiplier is `factor` times the result
    sampling : as in `epsilon`

    Returns
    -------
    A multiplier whose `epsilon` is at most `target`, less than 1.0001 times the smallest such multiplier.

    Raises
    ------
    UsageError : for a plan that releases nothing.
    """
    planned = [entry for entry in plan if entry[1] > 0 and entry[2] > 0 and entry[0] < math.inf]
    if not planned or not all(factor > 0 for factor, _, _ in planned):
        raise UsageError(
            "[privacy] epsilon: no noise multiplier can be computed for it, since the job releases nothing, or releases"
            " something without noise; check rounds and who participates, or give noise_multiplier instead"
        )

    def spent(multiplier: float) -> Spent:
        gathered: dict[tuple[float, float], int] = {}
        for factor, rate, count in planned:
            gathered[multiplier * factor, rate] = gathered.get((multiplier * factor, rate), 0) + count
        return gathered

    def cheaply(multiplier: float) -> float:
        return unamplified(spent(multiplier), delta)

    @cache
    def truly(multiplier: float) -> float:
        return epsilon(spent(multiplier), delta, sampling=sampling)

    return _least(truly, target, _least(cheaply, target, 1.0))


# --- the bounds --------------------------------------------------------------------------------------------------


def _parts(spent: Spent) -> Parts:
    """`spent` sorted, without mechanisms that release nothing."""
    return tuple(
        sorted(
            (float(multiplier), float(rate), int(count))
            for (multiplier, rate), count in spent.items()
            if count > 0 and rate > 0 and multiplier < math.inf
        )
    )


def _together(parts: Parts) -> float:
    """The multiplier of the single Gaussian mechanism equivalent to their composition, without amplification."""
    if any(multiplier == 0 for multiplier, _, _ in parts):
        return 0.0
    return 1 / math.sqrt(math.fsum(count / multiplier**2 for multiplier, _, count in parts))


def _by_losses(parts: Parts, delta: float, sampling: str) -> float:
    unsampled_parts = tuple(part for part in parts if part[1] == 1)
    amplified = tuple(part for part in parts if part[1] < 1)
    if len(amplified) > DISTINCT:
        amplified = _rounded(amplified)
    unsampled = ((_together(unsampled_parts), 1.0, 1),) if unsampled_parts else ()
    return composed_epsilon(amplified + unsampled, delta, sampling)


def _rounded(parts: Parts) -> Parts:
    """Fewer mechanisms: multipliers are rounded down to powers of 1.02, which can only raise epsilon."""
    gathered: dict[tuple[float, float], int] = {}
    for multiplier, rate, count in parts:
        coarse = min(1.02 ** math.floor(math.log(multiplier, 1.02)), multiplier)
        gathered[coarse, rate] = gathered.get((coarse, rate), 0) + count
    return _parts(gathered)


# --- inverse ---------------------------------------------------------------------------------------------------


def _least(cost: Callable[[float], float], target: float, start: float) -> float:
    """The smallest multiplier with cost, a decreasing function, at most `target`; rounded up by at most CALIBRATED."""
    from scipy.optimize import brentq

    high = start
    while cost(high) > target:
        high *= 2
    low = high / 2
    while cost(low) <= target:
        low, high = low / 2, low

    def excess(logarithm: float) -> float:
        return math.log1p(min(cost(math.exp(logarithm)), 1e300)) - math.log1p(target)

    if excess(math.log(high)) < 0:
        step = CALIBRATED / 8
        high = min(high, math.exp(brentq(excess, math.log(low), math.log(high), xtol=step) + step))
    while cost(high) > target:
        high *= 1 + CALIBRATED / 4
    return high
