"""Whether floats are noise and nothing else, asked of their bits: can the generator give them?

I. Mironov: "On Significance of the Least Significant Bits for Differential Privacy" (CCS 2012). NumPy draws standard
normal numbers in float32 by a ziggurat of 256 layers (G. Marsaglia, W. W. Tsang, J. Stat. Software 2000): a random word
tells a layer i, a sign and an integer r < 2^23, and the number is float32(r) * w_i, but for the tail beyond 3.65. Of
the floats near zero few are such products. So of a coordinate where nothing was added to the noise it can be seen that
nothing was; of others, each is such a product by chance alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]
Forward = Callable[[Singles], Singles]  # what is released where the noise [..., m] is that, and nothing else

SMALL = 2.0**-8  # standard normal numbers below it are looked at: a sixth of the floats there can be given
LEVEL = 1e-6  # of a false alarm
_EDGE, _AREA, _BITS = 3.6541528853610088, 0.00492867323399, 23  # of the ziggurat: R, V, and the bits of r
_NEAR = 2  # integers on both sides of the one that fits best
_MOVES, _FARTHEST = 16, 64  # of each value for the control, in units of its last place


class Hits(NamedTuple):
    """How many values the generator can give."""

    hits: int
    of: int
    chance: float  # of a value that is no noise: the share of the same values moved by a few units in the last place

    @property
    def p(self) -> float:
        """The chance of as many hits where the values are not noise alone; exact binomial test."""
        from scipy.stats import binom

        return float(binom.sf(self.hits - 1, self.of, self.chance)) if self.hits else 1.0


@lru_cache(maxsize=1)
def layers() -> Singles:
    """[256] w_i."""
    width, found = _EDGE, np.empty(256)
    found[0], found[255] = _AREA / np.exp(-(_EDGE**2) / 2), _EDGE
    for i in range(254, 0, -1):
        width = np.sqrt(-2 * np.log(_AREA / width + np.exp(-(width**2) / 2)))
        found[i] = width
    singles: Singles = (found / 2**_BITS).astype(np.float32)
    return singles


def possible(values: Singles, forward: Forward) -> NDArray[np.bool_]:
    """[m] whether the generator can give noise of which `forward` makes just these values [m].

    Parameters
    ----------
    forward : a multiple of the noise plus a constant, rounded any number of times
    """
    w = layers()[:, None]
    fitting = _noise(values, forward) / w.astype(np.float64)
    found = np.zeros(len(values), dtype=bool)
    for near in range(-_NEAR, _NEAR + 1):
        r = np.clip(np.rint(fitting) + near, 1 - 2.0**_BITS, 2.0**_BITS - 1).astype(np.float32)
        found |= (forward(r * w) == values).any(axis=0)
    return found


def _noise(values: Singles, forward: Forward) -> Floats:
    """[m] about the noise that gives `values`."""
    low, high = forward(np.array([-1, 1], np.float32)).astype(np.float64)
    found: Floats = 2 * (values - (low + high) / 2) / (high - low)
    return found


def small(values: Singles, forward: Forward) -> Singles:
    """Those that differ from what no noise gives, and not by much; each once."""
    still = forward(np.zeros(1, np.float32))
    return np.unique(values[(np.abs(_noise(values, forward)) < SMALL) & (values != still)])


def share(values: Singles, forward: Forward, rng: np.random.Generator) -> Hits:
    """How many of the small values the generator can give; `forward` as of `possible`."""
    near = small(values, forward)
    noise, moved = _noise(near, forward).astype(np.float32), 0
    for _ in range(_MOVES):
        by = rng.integers(1, _FARTHEST, near.shape) * rng.choice([-1, 1], near.shape)
        other = forward((noise.view(np.int32) + by.astype(np.int32)).view(np.float32))
        moved += int(possible(other, forward).sum())
    return Hits(int(possible(near, forward).sum()), len(near), (moved + 1) / (_MOVES * len(near) + 1))
