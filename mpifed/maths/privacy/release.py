"""The releases of a round, as input of the accountants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Release(NamedTuple):
    """What every round releases of each participating client, always the same: Gaussian mechanisms in sequence."""

    mechanisms: int  # number of mechanisms
    multiplier: Floats  # [N] standard deviation of the noise / sensitivity; inf: nothing is released
    rate: Floats  # [N] probability that a given record (or client) is in a mechanism, secretly; 1: no amplification
    by_chance: bool = False  # whether every client counts in every round, since participation is secret
    paper_rate: Floats | None = None  # [N] q of (20): the share of a client's records in a mechanism; None: not defined
