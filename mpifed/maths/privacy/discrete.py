"""Discrete Gaussian noise, sampled exactly by OpenDP, so that no bit of a float can give anything away.

C. Canonne, G. Kamath, T. Steinke: "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020, arXiv:2004.00010): on
integers it has the Renyi divergences of the continuous Gaussian, or less.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array

FINE = 2.0**-20  # the grid's spacing relative to the noise


def spacing(spread: float) -> float:
    """The grid of values with noise of standard deviation `spread`: a power of two."""
    return float(2.0 ** np.floor(np.log2(spread)) * FINE)


def inflation(multiplier: float, values: int) -> float:
    """How much further neighbours can be apart once their values are rounded to the grid.

    Rounding moves each of two vectors by at most spacing / 2 in every value: the distance grows by at most
    sqrt(values) * spacing, and spacing <= FINE * multiplier * sensitivity.
    """
    return float(1.0 + np.sqrt(values) * FINE * multiplier)


def discretely_noisy(leaf: Array, spread: NDArray[np.float64]) -> Array:
    """`leaf` [n, ...] rounded to each client's grid, plus discrete Gaussian noise of standard deviations `spread` [n].

    The sum is exact, in float64; its rounding to the leaf's dtype only processes it.
    """
    found = np.empty_like(leaf)
    for out, values, deviation in zip(found, leaf, spread.tolist(), strict=True):
        grid = spacing(deviation)
        steps = np.rint(values.astype(np.float64).reshape(-1) / grid).astype(np.int64)
        noisy = np.array(_gaussian(deviation / grid)(steps.tolist()), dtype=np.float64)
        out[...] = (noisy * grid).reshape(out.shape)
    return found


@lru_cache(maxsize=16)
def _gaussian(scale: float) -> Any:
    """The library's mechanism on vectors of integers."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=scale)
