"""Rows from linear equations: a party that sees both factors of enough products X w, or X' alpha, can solve for X.

So a server that sees the dual variables of HyFDCA and the model, or its inner products, can compute the data
(T. A. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning", AAAI 2024,
arXiv:2210.08106, section 3.2), and so can the receiver of vertical SSCA's partial scores, if they are plain: it has
broadcast the weights itself.

Equations come from float32 numbers in fixed point, so singular directions below `TOLERANCE` times the largest do not
count: they would amplify rounding errors. Rows are least squares of minimum norm, exact in the entries that the
remaining equations determine; the others are reported as not determined. Shapes: T rounds, s samples, p features,
h scores, b rows of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array

TOLERANCE = 1e-6  # of a singular value, relative to the largest
FIXED = 1e-6  # largest part of a determined entry's unit vector, squared, outside the row space of the equations


class Solved(NamedTuple):
    """Least-squares rows, and which of their entries the equations determine."""

    rows: Array  # [s, p] float64
    determined: Array  # [s, p] bool, entries that the equations determine
    rank: Array  # [s] int64, independent equations for each row
    needed: int  # independent equations that determine all entries
    residual: float  # relative, over all equations; NaN without equations


def rows_from_duals(alpha: Array, w: Array, factor: float) -> Solved:
    """X from X' alpha_t = factor w_t in T rounds, by a party that receives both: HyFDCA's server without encryption.

    Parameters
    ----------
    alpha : [T, s] dual variables; their signs are the labels
    w : [T, p] the models
    factor : lambda N

    Returns
    -------
    Solved
        rows of samples whose dual variables never changed, or only together with others, are not determined
    """
    return _whole_rows(np.asarray(alpha, np.float64), factor * np.asarray(w, np.float64))


def rows_from_products(w: Array, products: Array) -> Solved:
    """X from the inner products X w_t = z_t of T rounds, by a party that receives them and knows the models.

    Parameters
    ----------
    w : [T, p]
    products : [T, s]; NaN where a sample had none in that round
    """
    w, products = np.asarray(w, np.float64), np.asarray(products, np.float64)
    there = ~np.isnan(products)
    rows, determined, rank, away = _nothing(products.shape[1], w.shape[1])
    for rounds, who in _alike(there):
        solution, fixed, rank[who] = _solve(w[rounds], products[rounds][:, who])
        rows[who], determined[who] = solution.T, fixed
        away.append(w[rounds] @ solution - products[rounds][:, who])
    return Solved(rows, determined, rank, w.shape[1], _relative(np.concatenate(away, axis=None), products[there]))


def rows_from_scores(rows: Sequence[Array], scores: Sequence[Array], weights: Sequence[Array]) -> tuple[Array, Solved]:
    """A client's rows, in its columns, from its partial scores: vertical SSCA and SGD in the clear.

    The receiver of the sum has broadcast the row indices and the weights. A row with as many independent scores as the
    client has columns is determined in a single round; others take several rounds in which they are drawn.

    Parameters
    ----------
    rows : T arrays [b], the row indices of each round
    scores : T arrays [b, h], sent by the client
    weights : T arrays [p, h], of the client's columns; p is the number of its columns

    Returns
    -------
    numbers : [s] indices of the rows that were drawn, ascending
    solved : rows in that order; `needed` is p
    """
    numbers = np.unique(np.concatenate(list(rows)))
    products = []
    for indices, values in zip(rows, scores, strict=True):
        equations = np.full((np.shape(values)[1], len(numbers)), np.nan)
        equations[:, np.searchsorted(numbers, indices)] = np.asarray(values, np.float64).T
        products.append(equations)
    known = np.concatenate([np.asarray(weight, np.float64).T for weight in weights])
    return numbers, rows_from_products(known, np.concatenate(products))


def rows_from_slopes(gradient: Array, slopes: Array) -> Solved:
    """A client's columns of a minibatch from its gradient X' D there and the losses' slopes D by the scores.

    In vertical SSCA, a holder of the labels sends the slopes to the other clients; other parties may know them from the
    sums of scores and the labels. A minibatch of no more rows than scores is determined in a single round.

    Parameters
    ----------
    gradient : [p, h] by the weights of the client's columns
    slopes : [b, h]
    """
    return _whole_rows(np.asarray(slopes, np.float64).T, np.asarray(gradient, np.float64).T)


def _whole_rows(left: Array, right: Array) -> Solved:
    """Rows X with left X = right, of which the equations determine all entries or none."""
    solution, fixed, rank = _solve(left, right)
    known = np.repeat(fixed[:, None], right.shape[1], axis=1)
    residual = _relative(left @ solution - right, right)
    return Solved(solution, known, np.full(len(solution), rank), left.shape[1], residual)


def _solve(left: Array, right: Array) -> tuple[Array, Array, int]:
    """(X [n, k] of least norm with left X = right, which rows of X are fixed [n], the rank) of left [m, n]."""
    if not left.size:
        return np.zeros((left.shape[1], right.shape[1])), np.zeros(left.shape[1], bool), 0
    out, values, across = np.linalg.svd(left, full_matrices=False)
    rank = int(np.sum(values > TOLERANCE * values[0])) if values[0] > 0 else 0
    out, values, across = out[:, :rank], values[:rank], across[:rank]
    reached = (across**2).sum(axis=0)  # squared norm of each unit vector's projection onto the row space
    solution = across.T @ ((out.T @ right) / values[:, None])
    return solution, reached > 1 - FIXED, rank


def _alike(there: Array) -> list[tuple[Array, Array]]:
    """(rounds, samples) for each pattern of presence, from presence by round [T, s]."""
    patterns, pattern_of = np.unique(there.T, axis=0, return_inverse=True)
    return [
        (np.flatnonzero(pattern), np.flatnonzero(pattern_of.reshape(-1) == i)) for i, pattern in enumerate(patterns)
    ]


def _nothing(samples: int, features: int) -> tuple[Array, Array, Array, list[Array]]:
    shape = (samples, features)
    return np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(samples, np.int64), []


def _relative(away: Array, seen: Array) -> float:
    size = float(np.linalg.norm(seen))
    return float(np.linalg.norm(away)) / size if size else float("nan")
