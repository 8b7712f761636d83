"""Result of an attack on what a party received."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SHOWN = 16  # most rows in images
RECONSTRUCTION, INVERSION, LINEAR, PRODUCTS, MOVED, MEMBERSHIP = (
    "reconstruction", "inversion", "linear-system", "inner-products", "moved-row", "membership",
)  # fmt: skip
ATTACKS = {
    RECONSTRUCTION: "a row was reconstructed from the gradient of a minibatch of one row",
    INVERSION: "rows were reconstructed from the gradient of a small minibatch",
    PRODUCTS: "rows were reconstructed from their inner products with known weights",
    LINEAR: "rows were reconstructed by solving linear equations between messages",
    MOVED: "a row was reconstructed from the change of a sum over dual variables, of which a single one had changed",
    MEMBERSHIP: "the last model distinguishes rows that entered from others",
}  # by name, what its success means


class AttackResult(NamedTuple):
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


def not_applicable(attack: str, why: str, party: str = "server", seen: str = "") -> AttackResult:
    return AttackResult(attack, party, seen, False, False, why)


def pictures(pairs: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """(recovered rows, true rows) for images; empty if rows differ in width."""
    if len({len(row) for row, _ in pairs}) != 1:
        return np.zeros((0, 0)), np.zeros((0, 0))
    rows, truth = zip(*pairs[:SHOWN], strict=True)
    return np.stack(rows), np.stack(truth)
