"""Noisy releases of private vectors: integers on a public grid, plus integer noise.

The vector is divided by the public sensitivity S of its round and rounded to multiples of 2^-k, and discrete Gaussian
noise of standard deviation z 2^k is added to the integers; k and z are those of the job. Computations on the sum are
post-processing. So no bit of a float reveals the noise, as it does with noise in floats (I. Mironov, CCS 2012).
docs/explanation/private-noise.md proves that the accountants for continuous noise hold, with every constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mpifed.core import loops
from mpifed.core.record import Array
from mpifed.core.refusals import Refusal
from mpifed.maths.clipping import MODERATE
from mpifed.maths.privacy.discrete import TOGETHER, WIDEST, Words, draw, levels_of
from mpifed.maths.privacy.settings import Privacy

# upper bound of sqrt(values) * 2^-k: how far rounding can move neighbours apart, in sensitivities. It raises epsilon
# by at most 0.2 %: with little noise and small sampling rates by three times the relative increase of the distance
FINE = 6.4e-4
SMOOTH = 4.0  # s: the noise is continuous noise, randomly rounded with width s, up to 2 exp(-2 pi^2 s^2) < 1e-136
_NARROWEST = 32.0  # least standard deviation of each share of the noise, in steps of the grid
_ROOM = 16  # an element is clamped at this multiple of its usual bound
_REACH = 13  # standard deviations of noise for which there must be no integer overflow
_LITTLE = 1e-3  # the largest error of sums in float32, in sensitivities
_DOUBLES = 2.0**-20  # upper bound, in sensitivities, of all other rounding errors in float64
_LARGEST = 2.0**50  # bound of integers that doubles represent, with room for their sum


@dataclass(frozen=True)
class Mechanism:
    """A job's integer mechanism: the grid and the noise level of all its rounds."""

    exponent: int  # k
    multiplier: float  # z: standard deviation of the total noise, in sensitivities
    most: float  # bound at which each element is clamped, in sensitivities
    truncate: bool  # round towards zero, so that no norm grows
    inexact: float  # how much further rounding can move neighbours apart, in sensitivities
    shares: int = 1  # number of clients that each add a part of the noise

    @property
    def sigma(self) -> float:
        """z 2^k, the standard deviation of the integer noise."""
        return self.multiplier * 2.0**self.exponent

    @property
    def bound(self) -> float:
        """Upper bound of a client's integers, noise included."""
        return math.ceil((self.most + _REACH * self.multiplier) * 2.0**self.exponent)

    @property
    def equivalent(self) -> float:
        """The noise multiplier of the continuous Gaussian mechanism with the same privacy."""
        square = self.sigma**2 - self.shares * SMOOTH**2
        return math.sqrt(max(square, 0.0)) * 2.0**-self.exponent / (1 + self.inexact)

    def of_sum(self) -> Mechanism:
        """The mechanism for a sum that is on the grid already."""
        return replace(self, most=_LARGEST * 2.0**-self.exponent, truncate=False)

    def too_wide(self, clients: int) -> Refusal:
        """Whether the sum of so many clients' integers would overflow."""
        most = clients * self.bound
        return Refusal(
            most >= _LARGEST or self.sigma > WIDEST,
            f"[privacy] noise_multiplier = {self.multiplier:g}",
            f"with noise on a grid of 2^-{self.exponent} sensitivities the sum of {clients} clients' integers may come "
            f"to {most:.3g}, and doubles hold {_LARGEST:.3g}, and noise a standard deviation of {WIDEST:.3g}",
            f"{'lower' if self.multiplier > 1 else 'raise'} it, or lower the batch, or let fewer take part",
        )


def narrow_error(privacy: Privacy, values: int, rows: int) -> float:
    """How far sums of clipped gradients in float32 can move neighbours apart, in sensitivities.

    A gradient is made of outer products a d' of vectors in float32, a layer's inputs and slopes. Added in any order,
    the products a_ij d_ik of b = `rows` records have an error of at most g sum_i |a_ij| |d_ik|, g = b u / (1 - b u),
    u = 2^-24 (N. Higham: "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1). The norm of |a_i| |d_i|'
    over all layers is that of the record's gradient, at most G, and so the error's at most g b G. Numbers too small for
    float32 add at most 2^-126 each, also where it has no subnormal numbers: each a_ij beside slopes of a norm of at
    most 2^60, each d_ik beside such inputs, each product and each sum.
    """
    g = rows * 2.0**-24 / (1 - rows * 2.0**-24)
    tiny = 3 * MODERATE * math.sqrt(values) * 2.0**-126
    return 2 * rows * (g * privacy.bound + tiny) / privacy.reach


def may_be_narrow(privacy: Privacy, values: int, rows: int) -> bool:
    """Whether clipped gradients, released one by one, may be added in float32: where epsilon hardly grows by it."""
    released = privacy.on_gradients and privacy.on_grid
    return released and rows < 2**20 and narrow_error(privacy, values, rows) <= _LITTLE


def mechanism(privacy: Privacy, values: int, rows: int, clients: int, narrow: bool = False) -> Mechanism:
    """The mechanism of a job's releases.

    Parameters
    ----------
    values : d, the numbers in a release
    rows : records in a minibatch
    clients : N
    narrow : whether clipped gradients are added in float32, see `may_be_narrow`
    """
    z, shares = privacy.multiplier, clients if privacy.trust == "distributed" else 1
    fine = math.ceil(math.log2(math.sqrt(values) / FINE))
    if z > 0:
        fine = max(fine, math.ceil(math.log2(_NARROWEST * math.sqrt(shares) / z)))
    if privacy.level == "client":
        return Mechanism(fine, z, 1.0, True, 0.0, shares)
    # the sum of `rows` vectors of norm G has an error of at most rows^2 2^-53 G, and so has its neighbour's
    summed = rows**2 * 2.0**-52 * privacy.bound / privacy.reach
    summed += narrow_error(privacy, values, rows) if narrow else 0.0
    # for gradients, and for dual and control variables, which contain the noise of previous rounds
    most = 2.0 ** math.ceil(math.log2(_ROOM * rows + _ROOM**2 * z))
    return Mechanism(fine, z, most, False, math.sqrt(values) * 2.0**-fine + summed + _DOUBLES, shares)


def release(
    how: Mechanism, values: Array, each: float, sigma: float, words: Words, gain: float | None, out: Array
) -> None:
    """Write `values` times `each`, rounded to the grid, plus discrete Gaussian noise to `out`.

    Parameters
    ----------
    values : [m] contiguous, in memory; NaN counts as 0, which reveals nothing
    each : 1 / sensitivity
    sigma : of the noise, in steps of the grid: 0 or at least 1
    words : gives the random words
    gain : unit of `out` per sensitivity; None: `out` gets the integers, in float64
    out : [m] contiguous, in memory
    """
    factor, scale = 2.0**how.exponent * each, 1.0 if gain is None else gain * 2.0**-how.exponent
    levels, buffer = levels_of(sigma), np.zeros(min(TOGETHER, len(values)), np.int64)
    for start in range(0, len(values), TOGETHER):
        few = slice(start, start + TOGETHER)
        noise = buffer[: len(values[few])]
        draw(levels, words, noise)
        loops.noisy(values[few], factor, how.most * 2.0**how.exponent, how.truncate, noise, scale, out[few])
