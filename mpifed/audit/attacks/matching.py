"""Comparison of recovered rows with the true rows, which the auditor has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.protocols import CsrRows
from mpifed.core.record import Array

EXACT = 1e-2  # relative error below which a row counts as recovered
ALIKE = 0.999  # least cosine of a recovered row


class Match(NamedTuple):
    """A recovered row, compared with the nearest true row."""

    at: int  # index of the true row
    cosine: float
    relative_error: float  # ||estimate - row|| / ||row||
    scaled_error: float  # the same after the best scaling, of either sign
    psnr: float  # in dB, after the best scaling; the peak is the range of values in the true rows
    verdict: str  # "row": recovered; "direction": up to its length; "close": recognizable; "none"


def dense(X: Array | CsrRows) -> Array:
    """[m, p] float64 from a matrix that may be sparse."""
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)


def match(estimate: Array, rows: Array | CsrRows) -> Match:
    """Compare `estimate` [p] with the nearest of `rows` [m, p]: a minibatch, or all rows of a client.

    Among many rows with few features, any estimate is near a row by chance: compare with the rows of the minibatch if
    it is known, or also with as many rows that did not take part.
    """
    rows = dense(rows)
    cosine, relative, scaled = _errors(dense(estimate), rows)
    at = int(np.lexsort((relative, scaled.round(9)))[0])
    return _match(rows, at, cosine[at], relative[at], scaled[at])


def match_all(estimates: Array, rows: Array | CsrRows) -> list[Match]:
    """Compare `estimates` [f, p] with distinct `rows` [b, p]: the assignment with the smallest errors."""
    from scipy.optimize import linear_sum_assignment

    estimates, rows = dense(estimates), dense(rows)
    errors = [_errors(estimate, rows) for estimate in estimates]
    cost = np.array([scaled + 1e-6 * np.minimum(relative, 1e3) for _, relative, scaled in errors])
    matches = []
    for i, at in zip(*linear_sum_assignment(cost.reshape(len(estimates), len(rows))), strict=True):
        cosine, relative, scaled = errors[i]
        matches.append(_match(rows, int(at), cosine[at], relative[at], scaled[at]))
    return matches


def recovered(matches: Sequence[Match]) -> int:
    """Number of rows that were recovered, at least up to their length."""
    return sum(matched.verdict in ("row", "direction") for matched in matches)


def _errors(estimate: Array, rows: Array) -> tuple[Array, Array, Array]:
    """([m] cosines, relative errors, relative errors after the best scaling); rows of zeros match nothing."""
    norms, length = np.linalg.norm(rows, axis=1), np.linalg.norm(estimate)
    there = np.where(norms > 0, norms, 1.0)
    cosine = np.where((norms > 0) & (length > 0), rows @ estimate / (there * (length or 1.0)), 0.0)
    relative = np.where(norms > 0, np.linalg.norm(rows - estimate, axis=1) / there, 1.0)
    away = rows - np.outer(cosine * there / (length or 1.0), estimate)  # 1 - cosine^2 loses half of the digits
    return cosine, relative, np.where((norms > 0) & (length > 0), np.linalg.norm(away, axis=1) / there, 1.0)


def _match(rows: Array, at: int, cosine: float, relative: float, scaled: float) -> Match:
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
