"""Derivatives by finite differences that detect where they cannot be trusted: at kinks, and where rounding dominates.

A difference quotient is taken at six steps, from both sides. It counts where three consecutive steps agree and both
sides agree too. So kinks (hinges, absolute values), values that are not finite, and losses computed in float32 raise no
false alarm: such points are left out. scipy.differentiate.derivative was tried instead; at a kink it converges to the
mean of both sides, and reports success.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mpifed.core.record import Array

STEPS = 10.0 ** -np.arange(1.0, 7.0)
_STEADY = 1e-3  # how far three consecutive quotients may differ, relative to the derivative
_SIDES = 1e-2  # how far the quotients of both sides may differ, likewise
_APART = 1e-3  # how far a claimed derivative may be from one that counts


class Derivative(NamedTuple):
    """Derivatives at zero of many functions of one variable."""

    value: Array  # [...]
    error: Array  # [...] estimated error of the value
    sides: Array  # [...] difference between the quotients of both sides
    floor: float  # magnitude below which rounding hides a derivative
    counts: Array  # [...] bool: whether the derivative is to be trusted


def derivative(function: Callable[[float], Array]) -> Derivative:
    """The derivative at zero of `function`, which returns values [...]."""
    middle = np.asarray(function(0.0), dtype=np.float64)
    above = np.stack([np.asarray(function(step), dtype=np.float64) for step in STEPS])
    below = np.stack([np.asarray(function(-step), dtype=np.float64) for step in STEPS])
    steps = STEPS.reshape(-1, *[1] * middle.ndim)
    with np.errstate(all="ignore"):
        central = (above - below) / (2 * steps)
        sides = np.abs(above + below - 2 * middle) / steps
        apart = np.abs(np.diff(central, axis=0))
    apart[~np.isfinite(apart)] = np.inf
    steady = np.maximum(apart[:-1], apart[1:])  # [steps - 2, ...] of three consecutive steps
    best = steady.argmin(axis=0)[None]

    def at(values: Array, step: int) -> Array:
        result: Array = np.take_along_axis(values, best + step, axis=0)[0]
        return result

    value, error = at(central, 1), at(steady, 0)
    # a staircase function is flat for small steps, and not for larger ones
    flat = (at(above, 2) == middle) & (at(below, 2) == middle) & ((above != middle) | (below != middle)).any(axis=0)
    size = np.abs(middle[np.isfinite(middle)]).max(initial=0.0)
    return Derivative(value, error, at(sides, 2), 1e-12 + 1e-10 * float(size), np.isfinite(error) & ~flat)


class Compared(NamedTuple):
    """The outcome of a comparison of claimed derivatives with finite differences."""

    known: int  # how many comparisons count: finite differences that are trusted, and not zero
    worst: tuple[int, tuple[int, ...]] | None  # the claim with the largest error, and the index in it; None: all hold


def compare(claims: Sequence[ArrayLike], derivatives: Sequence[Derivative], own_scales: bool) -> Compared:
    """Compare claimed derivatives with finite differences.

    Parameters
    ----------
    claims : arrays, each of the shape of its entry of `derivatives`
    own_scales : whether each position of these arrays belongs to a function of its own (a sample's loss); an error that
        is small beside the largest of all may then be large for that function
    """
    g = np.stack([np.asarray(claim, dtype=np.float64) for claim in claims])
    value, error, sides = (
        np.stack([getattr(difference, name) for difference in derivatives]) for name in ("value", "error", "sides")
    )
    floor = max(difference.floor for difference in derivatives)
    counts = np.stack([difference.counts for difference in derivatives])
    with np.errstate(all="ignore"):
        magnitudes = np.where(counts & (error <= 1e-2 * np.abs(value)), np.abs(value), 0.0)
        largest = float(magnitudes.max(initial=0.0))
        size = magnitudes.max(axis=0, keepdims=True) if own_scales else largest
        scale = np.maximum(np.abs(value), 1e-2 * size)
        counts &= (error <= _STEADY * scale + floor) & (sides <= _SIDES * scale + floor)
        allowed = _APART * np.maximum(np.abs(g), np.abs(value)) + 1e-5 * size + 1e-7 * largest
        excess = np.abs(g - value) / (allowed + 10 * error + sides + floor)
    excess = np.where(counts, np.where(np.isfinite(g), excess, np.inf), 0.0)
    known = int((counts & (np.abs(value) > 10 * floor)).sum())
    if not excess.size or excess.max() <= 1.0:
        return Compared(known, None)
    worst, *where = (int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
    return Compared(known, (worst, tuple(where)))
