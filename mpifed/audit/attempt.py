"""One attack on what a party heard, and how far it came."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RECONSTRUCTION, INVERSION, LINEAR, PRODUCTS, MOVED, MEMBERSHIP, BITS, SENT = (
    "reconstruction", "inversion", "linear-system", "inner-products", "moved-row", "membership", "noise-in-floats",
    "row-sent",
)  # fmt: skip


class Attempt(NamedTuple):
    """One attack on everything of one kind that a party heard."""

    attack: str  # also the name of the finding, where it succeeds
    party: str
    seen: str  # what it was handed
    applies: bool
    success: bool
    text: str  # how far it came; why it does not apply
    recovered: int = 0  # rows
    of: int = 0
    found: Floats = np.zeros((0, 0))  # [m, p] rows, for pictures
    truth: Floats = np.zeros((0, 0))  # [m, p] those nearest to them
    exchanges: tuple[str, ...] = ()  # whose answers it was handed


def none(attack: str, why: str, party: str = "server", seen: str = "") -> Attempt:
    """An attack that does not apply."""
    return Attempt(attack, party, seen, False, False, why)
