"""Result of an attack on what a party received."""

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
    """An attack on all messages of one kind that a party received, and its result."""

    attack: str  # also the name of the finding, where it succeeds
    party: str
    seen: str  # what the attacker was given
    applies: bool
    success: bool
    text: str  # the result, or why the attack does not apply
    recovered: int = 0  # number of rows
    of: int = 0  # number of rows that might have been recovered
    rows: Floats = np.zeros((0, 0))  # [m, p] recovered rows, for images
    truth: Floats = np.zeros((0, 0))  # [m, p] the true rows nearest to them
    exchanges: tuple[str, ...] = ()  # whose uploads the attacker was given


def none(attack: str, why: str, party: str = "server", seen: str = "") -> Attempt:
    """An attack that does not apply."""
    return Attempt(attack, party, seen, False, False, why)
