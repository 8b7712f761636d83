"""Derivatives by finite differences that know where they are not to be trusted: at kinks, and where numbers round.

A difference quotient is taken at six steps, from both sides. It counts where three steps in a row agree with each
other and both sides agree too. So corners (hinges, absolute values), values that are not finite, and losses that are
computed in float32 make no alarm: such points are left out. scipy.differentiate.derivative was tried for it; at a
corner it converges to the mean of both sides, and says that it has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array

STEPS = 10.0 ** -np.arange(1.0, 7.0)
_STEADY = 1e-3  # how far three steps in a row may be apart, relative to the derivative
_SIDES = 1e-2  # the same of both sides
_APART = 1e-3  # how far a claim may be from a derivative that counts


class Derivative(NamedTuple):
    """Of many functions of one number at zero."""

    value: Array  # [...]
    error: Array  # [...] how far that may be from the truth
    sides: Array  # [...] how far the quotients of both sides are apart
    floor: float  # below that, nothing is known
    counts: Array  # [...] bool: whether it is to be trusted


def derivative(function: Callable[[float], Array]) -> Derivative:
    """The derivative at zero of `function`, which gives [...] values in one call."""
    middle = np.asarray(function(0.0), dtype=np.float64)
    above = np.stack([np.asarray(function(step), dtype=np.float64) for step in STEPS])
    below = np.stack([np.asarray(function(-step), dtype=np.float64) for step in STEPS])
    steps = STEPS.reshape(-1, *[1] * middle.ndim)
    with np.errstate(all="ignore"):
        central = (above - below) / (2 * steps)
        sides = np.abs(above + below - 2 * middle) / steps
        apart = np.abs(np.diff(central, axis=0))
    apart[~np.isfinite(apart)] = np.inf
    steady = np.maximum(apart[:-1], apart[1:])  # [steps - 2, ...] of three in a row
    best = steady.argmin(axis=0)[None]

    def at(values: Array, step: int) -> Array:
        return np.take_along_axis(values, best + step, axis=0)[0]

    value, error = at(central, 1), at(steady, 0)
    # a staircase is flat between two of its stairs, which larger steps see
    flat = (at(above, 2) == middle) & (at(below, 2) == middle) & ((above != middle) | (below != middle)).any(axis=0)
    size = np.abs(middle[np.isfinite(middle)]).max(initial=0.0)
    return Derivative(value, error, at(sides, 2), 1e-12 + 1e-10 * float(size), np.isfinite(error) & ~flat)


class Compared(NamedTuple):
    """What became of claimed derivatives."""

    known: int  # how many say something: they could be trusted, and are not zero
    worst: tuple[int, tuple[int, ...]] | None  # which of the claims is the most wrong, and where in it; None: none is


def compare(claims: Sequence[Array], found: Sequence[Derivative], own_scales: bool) -> Compared:
    """Hold claimed derivatives against those by differences.

    Parameters
    ----------
    claims : arrays, each of the shape of its entry of `found`
    own_scales : whether each position of these arrays is a function of its own (a sample's loss); then what is small
        for all of them together may be wrong for one
    """
    g = np.stack([np.asarray(claim, dtype=np.float64) for claim in claims])
    value, error, sides = (np.stack([getattr(one, name) for one in found]) for name in ("value", "error", "sides"))
    floor = max(one.floor for one in found)
    counts = np.stack([one.counts for one in found])
    with np.errstate(all="ignore"):
        seen = np.where(counts & (error <= 1e-2 * np.abs(value)), np.abs(value), 0.0)
        most = float(seen.max(initial=0.0))
        size = seen.max(axis=0, keepdims=True) if own_scales else most
        scale = np.maximum(np.abs(value), 1e-2 * size)
        counts &= (error <= _STEADY * scale + floor) & (sides <= _SIDES * scale + floor)
        allowed = _APART * np.maximum(np.abs(g), np.abs(value)) + 1e-5 * size + 1e-7 * most
        excess = np.abs(g - value) / (allowed + 10 * error + sides + floor)
    excess = np.where(counts, np.where(np.isfinite(g), excess, np.inf), 0.0)
    known = int((counts & (np.abs(value) > 10 * floor)).sum())
    if not excess.size or excess.max() <= 1.0:
        return Compared(known, None)
    which, *where = (int(i) for i in np.unravel_index(excess.argmax(), excess.shape))
    return Compared(known, (which, tuple(where)))
