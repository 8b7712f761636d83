"""Whether floats are noise alone, by their bits: can the generator produce them?

I. Mironov: "On Significance of the Least Significant Bits for Differential Privacy" (CCS 2012). NumPy draws standard
normal numbers in float32 by a ziggurat of 256 layers (G. Marsaglia, W. W. Tsang, J. Stat. Software 2000): a random word
determines a layer i, a sign and an integer r < 2^23, and the number is float32(r) * w_i, except in the tail beyond
3.65. Few of the floats near zero are such products. So coordinates that are noise alone can be recognized; other
coordinates are such products by chance only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]
Forward = Callable[[Singles], Singles]  # from noise [..., m] to the release without other content

SMALL = 2.0**-8  # bound on the standard normal numbers that are tested: a sixth of the floats there are possible
LEVEL = 1e-6  # significance level
_EDGE, _AREA, _BITS = 3.6541528853610088, 0.00492867323399, 23  # of the ziggurat: R, V, and the bits of r
_NEAR = 2  # integers that are tried on both sides of the nearest
_MOVES, _FARTHEST = 16, 64  # perturbations of each value for the control, the largest in units in the last place


class Hits(NamedTuple):
    """Number of values that the generator can produce."""

    hits: int
    of: int
    chance: float  # fraction for values with other content: the same values perturbed by units in the last place

    @property
    def p(self) -> float:
        """p-value of the number of hits if the values are not noise alone; exact binomial test."""
        from scipy.stats import binom

        return float(binom.sf(self.hits - 1, self.of, self.chance)) if self.hits else 1.0


@lru_cache(maxsize=1)
def layers() -> Singles:
    """[256] widths w_i of the layers of the ziggurat."""
    width, widths = _EDGE, np.empty(256)
    widths[0], widths[255] = _AREA / np.exp(-(_EDGE**2) / 2), _EDGE
    for i in range(254, 0, -1):
        width = np.sqrt(-2 * np.log(_AREA / width + np.exp(-(width**2) / 2)))
        widths[i] = width
    singles: Singles = (widths / 2**_BITS).astype(np.float32)
    return singles


def possible(values: Singles, forward: Forward) -> NDArray[np.bool_]:
    """[m] whether the generator can produce noise that `forward`, affine up to roundings, maps to `values` [m]."""
    w = layers()[:, None]
    fitting = _noise(values, forward) / w.astype(np.float64)
    mask = np.zeros(len(values), dtype=bool)
    for near in range(-_NEAR, _NEAR + 1):
        r = np.clip(np.rint(fitting) + near, 1 - 2.0**_BITS, 2.0**_BITS - 1).astype(np.float32)
        mask |= (forward(r * w) == values).any(axis=0)
    return mask


def _noise(values: Singles, forward: Forward) -> Floats:
    """[m] approximate noise behind `values`."""
    low, high = forward(np.array([-1, 1], np.float32)).astype(np.float64)
    noise: Floats = 2 * (values - (low + high) / 2) / (high - low)
    return noise


def small(values: Singles, forward: Forward) -> Singles:
    """Distinct values whose noise is nonzero and below `SMALL`."""
    still = forward(np.zeros(1, np.float32))
    return np.unique(values[(np.abs(_noise(values, forward)) < SMALL) & (values != still)])


def share(values: Singles, forward: Forward, rng: np.random.Generator) -> Hits:
    """Number of small values that the generator can produce; `forward` as for `possible`."""
    near = small(values, forward)
    noise, moved = _noise(near, forward).astype(np.float32), 0
    for _ in range(_MOVES):
        by = rng.integers(1, _FARTHEST, near.shape) * rng.choice([-1, 1], near.shape)
        other = forward((noise.view(np.int32) + by.astype(np.int32)).view(np.float32))
        moved += int(possible(other, forward).sum())
    return Hits(int(possible(near, forward).sum()), len(near), (moved + 1) / (_MOVES * len(near) + 1))
