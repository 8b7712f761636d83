"""What a round releases, as the accountants take it, and the sensitivities behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Release(NamedTuple):
    """What one round gives away of each client who takes part: Gaussian mechanisms, one after the other."""

    mechanisms: int  # how many
    multiplier: Floats  # [N] standard deviation of the noise / sensitivity; inf: nothing is released
    rate: Floats  # [N] chance, secret, that a given record (or client) is in a mechanism; 1: no amplification
    paper_multiplier: Floats  # [N] standard deviation / the sensitivity that (19) states; NaN where (20) says nothing
    paper_rate: Floats  # [N] q of (20): the share of a client's records that one mechanism uses
    by_chance: bool = False  # whether all clients count in every round, present or not, since who is present is secret
