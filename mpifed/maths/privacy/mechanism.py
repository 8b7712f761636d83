"""From a private vector to a release: whole numbers on a public grid, plus whole numbers of noise.

The value is divided by the public sensitivity S of its round, rounded to multiples of 2^-k, and discrete Gaussian noise
of standard deviation z 2^k is added to the integers; k and z are those of the job. What is computed from the sum later
tells nothing more. So no bit of a float tells what the noise was, which of floats it does (I. Mironov, CCS 2012).
Why the accountants for continuous noise hold, with every constant: docs/explanation/private-noise.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mpifed.core import loops
from mpifed.core.record import Array, beside, namespace
from mpifed.maths.kernels import device_noisy
from mpifed.maths.privacy.discrete import WIDEST, Words, draw, levels_of
from mpifed.maths.privacy.release import Floats
from mpifed.maths.privacy.settings import Privacy

# sqrt(values) * 2^-k at most: how far rounding moves neighbours apart, in sensitivities; no job's epsilon grows by more
# than 0.2 % by it, which where noise is little and records are few in many grows by three times as much as the distance
FINE = 6.4e-4
SMOOTH = 4.0  # s: noise is a randomized rounding, of width s, of continuous noise; within 2 exp(-2 pi^2 s^2) < 1e-136
_NARROWEST = 32.0  # standard deviation of anybody's noise, in steps of the grid, at least
_ROOM = 16  # times what a vector has anyway may be in one number of it, before it is cut off
_REACH = 13  # standard deviations that noise counts with where integers must not pass over an end
_DOUBLES = 2.0**-20  # sensitivities that all other roundings in float64 come to, generously
_LARGEST = 2.0**50  # integers that doubles hold, with room for their sum
_TOGETHER = 2**13  # numbers made noisy at once: what is between stays in the cache


@dataclass(frozen=True)
class Mechanism:
    """What makes a job's releases integers: one grid and one noise level for all its rounds."""

    exponent: int  # k
    multiplier: float  # z: standard deviation of the whole noise, in sensitivities
    most: float  # what one number of a vector is cut off at, in sensitivities
    truncate: bool  # round towards zero, so that no norm grows
    inexact: float  # by how much roundings can move neighbours further apart, in sensitivities
    shares: int = 1  # parts of the noise, each from a client of its own

    @property
    def sigma(self) -> float:
        """z 2^k."""
        return self.multiplier * 2.0**self.exponent

    @property
    def bound(self) -> float:
        """No integer of one client is larger, its noise included."""
        return math.ceil((self.most + _REACH * self.multiplier) * 2.0**self.exponent)

    def told(self, distance: Floats) -> Floats:
        """The noise multiplier of the continuous Gaussian mechanism that tells as much.

        Parameters
        ----------
        distance : [N] of two neighbours' exact values, in sensitivities
        """
        square = self.sigma**2 - self.shares * SMOOTH**2
        multiplier: Floats = math.sqrt(max(square, 0.0)) * 2.0**-self.exponent / (distance + self.inexact)
        return multiplier

    def of_sum(self) -> Mechanism:
        """The same for a sum, which is on the grid already."""
        return replace(self, most=_LARGEST * 2.0**-self.exponent, truncate=False)

    def wrong(self, clients: int) -> list[str]:
        """Why the sum of so many clients' integers would not fit, one message each."""
        if clients * self.bound < _LARGEST and self.sigma <= WIDEST:
            return []
        change = "lower" if self.multiplier > 1 else "raise"
        return [
            f"[privacy] noise_multiplier = {self.multiplier:g}: with noise on a grid of 2^-{self.exponent} "
            f"sensitivities the sum of {clients} clients' integers may come to {clients * self.bound:.3g}, and doubles "
            f"hold {_LARGEST:.3g}, and noise a standard deviation of {WIDEST:.3g}; {change} it, or lower the batch, or "
            "let fewer take part"
        ]


def mechanism(privacy: Privacy, values: int, rows: int, clients: int) -> Mechanism:
    """The mechanism of a job.

    Parameters
    ----------
    values : d, of all that is released together
    rows : records of a client that one release may count, at most
    clients : N
    """
    z, shares = privacy.multiplier, clients if privacy.trust == "distributed" else 1
    # both of two records are rounded apart from the sum without either, and each must stay within its half
    parts = 2 if privacy.adjacency == "replace-one" and privacy.sampling == "poisson" else 1
    fine = math.ceil(math.log2(parts * math.sqrt(values) / FINE))
    if z > 0:
        fine = max(fine, math.ceil(math.log2(_NARROWEST * math.sqrt(shares) / z)))
    if privacy.level == "client":
        return Mechanism(fine, z, 1.0, True, 0.0, shares)
    # a sum of so many vectors of norm G has an error of rows^2 2^-53 G at most, and so has its neighbour's
    summed = parts * rows**2 * 2.0**-52 * privacy.bound / privacy.reach
    # room for the gradients, and for dual and control variables, which hold the noise of rounds before
    most = 2.0 ** math.ceil(math.log2(_ROOM * rows + _ROOM**2 * z))
    return Mechanism(fine, z, most, False, parts * math.sqrt(values) * 2.0**-fine + summed + _DOUBLES, shares)


_ZEROS = np.zeros(_TOGETHER, np.int64)
_ZEROS.flags.writeable = False


class Noise:
    """So many discrete Gaussian numbers, piece by piece; on whatever arrays they go, they are the same."""

    def __init__(self, sigma: float, words: Words, count: int) -> None:
        """`sigma`: 0, or at least 1; `words`: the random words that they are made of."""
        self._levels, self._words, self._left = levels_of(sigma), words, count
        size, self._next = min(_TOGETHER, count), 0
        self._made = np.empty(size, np.int64) if self._levels else _ZEROS[:size]
        self._stop = 0 if self._levels else size

    def piece(self, most: int) -> NDArray[np.int64]:
        """The next ones, up to `most`, at least one; they stand until the call after."""
        if self._next == self._stop:
            self._next, self._stop = 0, min(len(self._made), self._left)
            if self._levels:
                draw(self._levels, self._words, self._made[: self._stop])
        numbers = self._made[self._next : min(self._next + most, self._stop)]
        self._next += len(numbers)
        self._left -= len(numbers)
        return numbers

    def array(self, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """As many as fill it."""
        numbers = np.empty(math.prod(shape), np.int64)
        start = 0
        while start < len(numbers):
            piece = self.piece(len(numbers) - start)
            numbers[start : start + len(piece)] = piece
            start += len(piece)
        return numbers.reshape(shape)


def release(how: Mechanism, values: Array, each: float, noise: Noise, gain: float | None, out: Array) -> None:
    """Put integers of `values` times `each` on the grid plus noise into `out`; in units of `gain` where one is given.

    Parameters
    ----------
    values : contiguous, in memory or on a device; what is not a number counts as 0, which tells nothing
    each : what brings values to sensitivities
    gain : what the release of one sensitivity stands for; None: integers, for float64
    out : of the shape of `values`, contiguous, where they are
    """
    factor, scale = 2.0**how.exponent * each, 1.0 if gain is None else gain * 2.0**-how.exponent
    most = how.most * 2.0**how.exponent
    if namespace(values) is not np:
        drawn = beside(values, noise.array(values.shape))
        device_noisy(values, drawn, factor, most, how.truncate, scale, out)
        return
    flat, flat_out, start = values.reshape(-1), out.reshape(-1), 0
    while start < len(flat):
        piece = noise.piece(len(flat) - start)
        stop = start + len(piece)
        loops.noisy(flat[start:stop], factor, most, how.truncate, piece, scale, flat_out[start:stop])
        start = stop
