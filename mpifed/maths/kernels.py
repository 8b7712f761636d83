"""Elementwise functions, by NumPy's, which CuPy takes over for its arrays."""

from __future__ import annotations

import numpy as np

from mpifed.core.record import Array, beside


def sigmoid(z: Array) -> Array:
    """1 / (1 + exp(-z)) without overflow, by the hyperbolic tangent (three times as fast as the exponential)."""
    half = z.dtype.type(0.5)
    result: Array = np.tanh(z * half)
    result *= half
    result += half
    return result


def swish(z: Array) -> tuple[Array, Array]:
    """(g, S): the sigmoid g of z, and the swish S = z g."""
    gate = sigmoid(z)
    return gate, z * gate


def swish_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    """The derivative with respect to z, given the derivative `back` with respect to the swish: S' = g (1 + z - S).

    `active` and `back` are overwritten: new arrays would not stay in the cache.
    """
    slope = np.subtract(z, active, out=active)
    slope += slope.dtype.type(1)
    slope *= gate
    back *= slope
    return back


def clip_factors(squares: Array, most: float) -> Array:
    """Factors that scale vectors of squared norms `squares` to norms of at most `most`; exactly 1 for shorter ones."""
    with np.errstate(divide="ignore"):
        factors: Array = np.minimum(1.0, most / np.sqrt(squares))
    return factors


def with_noise(values: Array, noise: Array, spread: Array) -> Array:
    """values [n, ...] + spread [n] * noise [n, ...]; `noise` is in memory, and may be overwritten."""
    noise *= spread.astype(noise.dtype).reshape(-1, *[1] * (noise.ndim - 1))
    noisy = beside(values, noise)
    noisy += values
    return noisy
