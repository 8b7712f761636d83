"""The result of an attack on what a party received, and how recovered rows are compared with the true ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array

Floats = NDArray[np.float64]
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
EXACT = 1e-2  # relative error below which a row counts as recovered
NOISE = 0.1  # largest error of a recognizable row by the range of values in the true rows, as of 20 dB
SHOWN = 8  # most rows in a picture


class AttackResult(NamedTuple):
    """An attack on all messages of one kind that a party received, and its result."""

    attack: str  # also the name of the finding, where it succeeds
    seen: str  # what the attacker was given
    text: str  # the result, or why the attack does not apply
    applies: bool = False
    success: bool = False
    recovered: int = 0  # number of rows
    of: int = 0  # number of rows that might have been recovered
    pairs: tuple[tuple[Floats, Floats], ...] = ()  # (recovered, true) rows [p], for pictures
    party: str = "server"


class Match(NamedTuple):
    """A recovered row, compared with a true row."""

    of: int  # index of the recovered row
    at: int  # index of the true row
    error: float  # ||estimate - row|| / ||row||
    verdict: str  # "row": recovered; "direction": up to its length and sign; "close": recognizable; "none"


def match(estimates: Array, rows: Array) -> list[Match]:
    """Compare `estimates` [f, p] with distinct `rows` [m, p]: the assignment with the smallest errors.

    Among many rows with few features any estimate is near a row by chance: compare with the rows of the minibatch, and
    also with as many that did not take part.
    """
    from scipy.optimize import linear_sum_assignment

    if not len(rows) or not len(estimates):
        return []
    norms, lengths = np.linalg.norm(rows, axis=1), np.linalg.norm(estimates, axis=1)
    units = estimates / np.maximum(lengths, 1e-300)[:, None]
    # [f, m] distances, and those after the best scaling, of either sign: 1 - cosine^2 would lose half of the digits
    apart = np.array([np.linalg.norm(rows - estimate, axis=1) for estimate in estimates])
    away = np.array([np.linalg.norm(rows - np.outer(rows @ unit, unit), axis=1) for unit in units])
    errors, scaled = (np.where(norms > 0, each / np.maximum(norms, 1e-300), 1.0) for each in (apart, away))
    recognizable = (scaled < 0.3) & (away <= NOISE * np.ptp(rows) * np.sqrt(rows.shape[1]))
    matches = []
    for i, at in zip(*linear_sum_assignment(scaled + 1e-6 * np.minimum(errors, 1e3)), strict=True):
        verdict = "close" if recognizable[i, at] else "none"
        if scaled[i, at] < EXACT:
            verdict = "row" if errors[i, at] < EXACT else "direction"
        matches.append(Match(int(i), int(at), float(errors[i, at]), verdict))
    return matches


def count(matches: list[Match], *verdicts: str) -> int:
    """How many have one of these verdicts."""
    return sum(matched.verdict in verdicts for matched in matches)
