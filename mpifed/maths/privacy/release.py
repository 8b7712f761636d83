"""The releases of a round, as input of the accountants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Release(NamedTuple):
    """The releases of a round for each participating client: Gaussian mechanisms in sequence."""

    mechanisms: int  # number of mechanisms
    multiplier: Floats  # [N] standard deviation of the noise / sensitivity; inf: nothing is released
    rate: Floats  # [N] probability that a given record (or client) is in a mechanism, secretly; 1: no amplification
    paper_multiplier: Floats  # [N] standard deviation / the sensitivity of (19); NaN where (20) is not defined
    paper_rate: Floats  # [N] q of (20): the fraction of a client's records that a mechanism uses
    by_chance: bool = False  # whether every client counts in every round, since participation is secret
