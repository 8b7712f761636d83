"""Rows from linear equations: whoever sees both factors of enough products X w, or X' alpha, solves for X.

That is how a server that saw the dual variables of HyFDCA beside the model, or its inner products, would find the data
(T. A. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning", AAAI 2024,
arXiv:2210.08106, section 3.2), and how the carrier of vertical SSCA's partial scores finds them where the channel does
not hide those: it has sent the weights itself.

Equations come from float32 numbers on a grid, so directions in which they say less than `tolerance` times the most do
not count: those would amplify rounding. Rows are least squares of minimum norm, exact in the entries that the remaining
equations determine; the others are reported as not determined. Shapes: T rounds, s samples, p features, h scores,
b rows of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array

FIXED = 1e-6  # an entry counts as determined when at most so much of its square lies outside the equations' reach


class Solved(NamedTuple):
    """What the equations tell of the rows."""

    rows: Array  # [s, p] float64
    determined: Array  # [s, p] bool, which entries the equations fix
    rank: Array  # [s] int64, how many independent equations there are for each row
    needed: int  # how many would fix everything
    residual: float  # relative, over all equations; NaN without equations


def rows_from_duals(alpha: Array, w: Array, factor: float, *, tolerance: float = 1e-6) -> Solved:
    """X from X' alpha_t = factor w_t in T rounds, by whoever hears both: HyFDCA's server without encryption.

    Parameters
    ----------
    alpha : [T, s] dual variables; their signs are the labels
    w : [T, p] the models
    factor : lambda N

    Returns
    -------
    Solved
        rows of samples whose dual variables never moved, or only together with others, are not determined
    """
    left, right = np.asarray(alpha, np.float64), factor * np.asarray(w, np.float64)
    found, fixed, rank = _solve(left, right, tolerance)
    known = np.repeat(fixed[:, None], right.shape[1], axis=1)
    return Solved(found, known, np.full(len(found), rank), left.shape[1], _relative(left @ found - right, right))


def rows_from_products(w: Array, products: Array, *, tolerance: float = 1e-6) -> Solved:
    """X from the inner products X w_t = z_t of T rounds, by whoever hears them and knows the models.

    Parameters
    ----------
    w : [T, p]
    products : [T, s]; NaN where a sample had none in that round
    """
    w, products = np.asarray(w, np.float64), np.asarray(products, np.float64)
    there = ~np.isnan(products)
    rows, determined, rank, away = _nothing(products.shape[1], w.shape[1])
    for rounds, who in _alike(there):
        found, fixed, rank[who] = _solve(w[rounds], products[rounds][:, who], tolerance)
        rows[who], determined[who] = found.T, fixed
        away.append(w[rounds] @ found - products[rounds][:, who])
    return Solved(rows, determined, rank, w.shape[1], _relative(np.concatenate(away, axis=None), products[there]))


def rows_from_scores(
    rows: Sequence[Array], scores: Sequence[Array], weights: Sequence[Array], *, tolerance: float = 1e-6
) -> tuple[Array, Solved]:
    """A client's columns of some of its rows, from its partial scores: vertical SSCA and SGD in the clear.

    The carrier of the sum has sent the row numbers and the weights. A row with as many independent scores as the client
    has columns is solved in one round; others take several rounds in which they are drawn.

    Parameters
    ----------
    rows : T arrays [b], the row numbers of each round
    scores : T arrays [b, h], what the one client sent
    weights : T arrays [p, h], its own columns' weights; p is the number of its columns

    Returns
    -------
    numbers : [s] of the rows that were drawn, ascending
    solved : in that order; `needed` is p
    """
    numbers = np.unique(np.concatenate(list(rows)))
    products = []
    for which, told in zip(rows, scores, strict=True):
        found = np.full((np.shape(told)[1], len(numbers)), np.nan)
        found[:, np.searchsorted(numbers, which)] = np.asarray(told, np.float64).T
        products.append(found)
    known = np.concatenate([np.asarray(one, np.float64).T for one in weights])
    return numbers, rows_from_products(known, np.concatenate(products), tolerance=tolerance)


def rows_from_slopes(gradient: Array, slopes: Array, *, tolerance: float = 1e-6) -> Solved:
    """A client's columns of a minibatch from its gradient X' D there and the losses' slopes D by the scores.

    The slopes are what a holder of the labels tells the other clients of vertical SSCA; others may know them from the
    sums of scores and the labels. A minibatch of no more rows than there are scores is solved in one round.

    Parameters
    ----------
    gradient : [p, h] by the weights of the client's columns
    slopes : [b, h]
    """
    gradient, slopes = np.asarray(gradient, np.float64), np.asarray(slopes, np.float64)
    found, fixed, rank = _solve(slopes.T, gradient.T, tolerance)
    known = np.repeat(fixed[:, None], len(gradient), axis=1)
    residual = _relative(slopes.T @ found - gradient.T, gradient)
    return Solved(found, known, np.full(len(found), rank), len(slopes), residual)


def _solve(left: Array, right: Array, tolerance: float) -> tuple[Array, Array, int]:
    """(X [n, k] of least norm with left X = right, which rows of X are fixed [n], the rank) of left [m, n]."""
    if not left.size:
        return np.zeros((left.shape[1], right.shape[1])), np.zeros(left.shape[1], bool), 0
    out, values, across = np.linalg.svd(left, full_matrices=False)
    rank = int(np.sum(values > tolerance * values[0])) if values[0] > 0 else 0
    out, values, across = out[:, :rank], values[:rank], across[:rank]
    reached = (across**2).sum(axis=0)  # of each unit vector's square, how much the equations reach
    solution = across.T @ ((out.T @ right) / values[:, None])
    return solution, reached > 1 - FIXED, rank


def _alike(there: Array) -> list[tuple[Array, Array]]:
    """Samples by the rounds in which they were there [T, s]: (rounds, samples) for each pattern."""
    patterns, which = np.unique(there.T, axis=0, return_inverse=True)
    return [(np.flatnonzero(pattern), np.flatnonzero(which.reshape(-1) == i)) for i, pattern in enumerate(patterns)]


def _nothing(samples: int, features: int) -> tuple[Array, Array, Array, list[Array]]:
    shape = (samples, features)
    return np.zeros(shape), np.zeros(shape, dtype=bool), np.zeros(samples, np.int64), []


def _relative(away: Array, seen: Array) -> float:
    size = float(np.linalg.norm(seen))
    return float(np.linalg.norm(away)) / size if size else float("nan")
