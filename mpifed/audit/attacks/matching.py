"""How well an attack did: the auditor, who has the data, compares what was found with the rows that were there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpifed.core.record import Array

EXACT = 1e-2  # relative error below which a row counts as recovered
ALIKE = 0.999  # and the cosine above which it must lie


class Match(NamedTuple):
    """One row that was found, beside the true one that is nearest to it."""

    at: int  # which of the true rows
    cosine: float
    relative_error: float  # ||found - row|| / ||row||, as found
    scaled_error: float  # the same after the best scaling, of either sign
    psnr: float  # in dB, after the best scaling; the peak is the range of values in the true rows
    verdict: str  # "row" as found; "direction": up to its length; "close": to be recognized; "none"


def dense(X: Any) -> Array:
    """[m, p] float64 from a matrix that may be sparse."""
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)


def match(found: Array, rows: Any) -> Match:
    """`found` [p] beside the nearest of `rows` [m, p]: a minibatch, or all that a client has.

    Among many rows of few features some are near by chance: compare with the rows of the minibatch where it is known,
    or see how near `found` comes to as many rows that were never there.
    """
    rows = dense(rows)
    cosine, relative, scaled = _errors(dense(found), rows)
    at = int(np.lexsort((relative, scaled.round(9)))[0])
    return _match(dense(found), rows, at, cosine[at], relative[at], scaled[at])


def match_all(found: Array, rows: Any) -> list[Match]:
    """Each of `found` [f, p] beside one of `rows` [b, p], no row twice: the assignment of the smallest errors."""
    from scipy.optimize import linear_sum_assignment

    found, rows = dense(found), dense(rows)
    errors = [_errors(one, rows) for one in found]
    cost = np.array([scaled + 1e-6 * np.minimum(relative, 1e3) for _, relative, scaled in errors])
    matches = []
    for i, at in zip(*linear_sum_assignment(cost.reshape(len(found), len(rows))), strict=True):
        cosine, relative, scaled = errors[i]
        matches.append(_match(found[i], rows, int(at), cosine[at], relative[at], scaled[at]))
    return matches


def recovered(matches: Sequence[Match]) -> int:
    """How many rows were recovered, at least up to their length."""
    return sum(one.verdict in ("row", "direction") for one in matches)


def _errors(found: Array, rows: Array) -> tuple[Array, Array, Array]:
    """[m] cosines, relative errors, and those after the best scaling; nothing is near a row of zeros."""
    norms, own = np.linalg.norm(rows, axis=1), np.linalg.norm(found)
    there = np.where(norms > 0, norms, 1.0)
    cosine = np.where((norms > 0) & (own > 0), rows @ found / (there * (own or 1.0)), 0.0)
    relative = np.where(norms > 0, np.linalg.norm(rows - found, axis=1) / there, 1.0)
    away = rows - np.outer(cosine * there / (own or 1.0), found)  # 1 - cosine^2 loses half of the digits
    return cosine, relative, np.where((norms > 0) & (own > 0), np.linalg.norm(away, axis=1) / there, 1.0)


def _match(found: Array, rows: Array, at: int, cosine: float, relative: float, scaled: float) -> Match:
    row, span = rows[at], float(np.ptp(rows)) or 1.0
    error = scaled * (np.linalg.norm(row) or 1.0) / np.sqrt(row.size)
    psnr = float(20 * np.log10(span / error)) if error > 0 else float("inf")
    verdict = "none"
    if cosine > ALIKE and relative < EXACT:
        verdict = "row"
    elif abs(cosine) > ALIKE and scaled < EXACT:
        verdict = "direction"
    elif abs(cosine) > 0.95 and psnr >= 20:
        verdict = "close"
    return Match(at, float(cosine), float(relative), float(scaled), psnr, verdict)
