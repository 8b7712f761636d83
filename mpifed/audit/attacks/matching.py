"""Comparison of recovered rows with the true rows, which the auditor has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array

EXACT = 1e-2  # relative error below which a row counts as recovered
ALIKE = 0.999  # least cosine of a recovered row
NOISE = 0.1  # largest error of a recognizable row by the range of values in the true rows, as of 20 dB


class Match(NamedTuple):
    """A recovered row, compared with the nearest true row."""

    at: int  # index of the true row
    cosine: float
    relative_error: float  # ||estimate - row|| / ||row||
    scaled_error: float  # the same after the best scaling, of either sign
    verdict: str  # "row": recovered; "direction": up to its length; "close": recognizable; "none"


def match(estimate: Array, rows: Array) -> Match:
    """Compare `estimate` [p] with the nearest of `rows` [m, p]: a minibatch, or all rows of a client.

    Among many rows with few features, any estimate is near a row by chance: compare with the rows of the minibatch if
    it is known, or also with as many rows that did not take part.
    """
    errors = _errors(estimate, rows)
    _, relative, scaled = errors
    return _match(rows, int(np.lexsort((relative, scaled.round(9)))[0]), errors)


def match_all(estimates: Array, rows: Array) -> list[Match]:
    """Compare `estimates` [f, p] with distinct `rows` [b, p]: the assignment with the smallest errors."""
    from scipy.optimize import linear_sum_assignment

    errors = [_errors(estimate, rows) for estimate in estimates]
    cost = np.array([scaled + 1e-6 * np.minimum(relative, 1e3) for _, relative, scaled in errors])
    pairs = zip(*linear_sum_assignment(cost.reshape(len(estimates), len(rows))), strict=True)
    return [_match(rows, int(at), errors[i]) for i, at in pairs]


def recovered(matches: Sequence[Match]) -> int:
    """Number of rows that were recovered, at least up to their length."""
    return sum(matched.verdict in ("row", "direction") for matched in matches)


def _errors(estimate: Array, rows: Array) -> Array:
    """[3, m] cosines, relative errors, relative errors after the best scaling; rows of zeros match nothing."""
    norms, length = np.linalg.norm(rows, axis=1), np.linalg.norm(estimate)
    there, both = np.where(norms > 0, norms, 1.0), (norms > 0) & (length > 0)
    cosine = np.where(both, rows @ estimate / (there * (length or 1.0)), 0.0)
    relative = np.where(norms > 0, np.linalg.norm(rows - estimate, axis=1) / there, 1.0)
    away = rows - np.outer(cosine * there / (length or 1.0), estimate)  # 1 - cosine^2 loses half of the digits
    return np.stack([cosine, relative, np.where(both, np.linalg.norm(away, axis=1) / there, 1.0)])


def _match(rows: Array, at: int, errors: Array) -> Match:
    cosine, relative, scaled = errors[:, at].tolist()
    row, span = rows[at], float(np.ptp(rows)) or 1.0
    error = scaled * (np.linalg.norm(row) or 1.0) / np.sqrt(row.size)
    verdict = "none"
    if cosine > ALIKE and relative < EXACT:
        verdict = "row"
    elif abs(cosine) > ALIKE and scaled < EXACT:
        verdict = "direction"
    elif abs(cosine) > 0.95 and error <= NOISE * span:
        verdict = "close"
    return Match(at, cosine, relative, scaled, verdict)
