"""The convex surrogates of SSCA (Ye and Cui; errata applied), shared by its four algorithms.

The surrogate of function k is A_k + <l_k, w> + curvature_k ||w||^2, tracked by F_t = (1 - rho_t) F_{t-1} + rho_t * (new
quadratic around w_t), whose curvature is tau: (7), (11), (15), (22) of the long paper. K functions are tracked
together, along the leading axis of every leaf. The recursion needs only A, l and the sum of the weights, whatever the
number of samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.loops import combination
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, in_memory, map_leaves, namespace
from mpifed.maths.arrays import row_products
from mpifed.maths.parameters import Parameters
from mpifed.maths.terms import Constraint

Start = Literal["exact", "paper"]
Floats = NDArray[np.float64]


@in_memory("constant", "weight")
class Surrogate(NamedTuple):
    """K convex quadratics, the tracked surrogates."""

    constant: Array  # [K] float64: A
    linear: Parameters  # leaves [K, ...] of the model's shapes: l
    weight: np.float64  # Q_t = 1 - prod(1 - rho_s), the sum of the weights of the quadratics


def start_surrogate(model: Parameters, functions: int) -> Surrogate:
    """Surrogates of K functions before the first round: zero functions."""
    linear = map_leaves(lambda leaf: np.zeros((functions, *leaf.shape), leaf.dtype), model)
    return Surrogate(np.zeros(functions), linear, np.float64(0))


def track(
    surrogate: Surrogate,
    rho: float,
    gradient: Parameters,
    level: Array,
    at: Parameters,
    tau: float,
    penalties: Sequence[float],
    weight: float,
    penalized: Parameters,
) -> Surrogate:
    """The surrogates after a round: (3) and (10) with the quadratics (7) and (11).

    Parameters
    ----------
    gradient : leaves [K, ...]; estimates of `weight` times the gradients of the data terms at `at`
    level : [K] estimates of `weight` times F_k - limit_k there; () where the constants are not needed
    at : the model w_t
    penalties : [K] factors of ||w||^2, linearized at w_t: 2 penalty <w_t, w>, as in (28)
    penalized : of the structure of `at`, whether ||w||^2 includes a leaf (it omits intercepts)
    """

    def tracked(linear: Array, slope: Array, w: Array, counts: bool) -> Array:
        new = namespace(w).empty_like(linear)
        for k, penalty in enumerate(penalties):  # the first two are rho times the new l; (30), (31)
            factors = 2 * rho * ((penalty if counts else 0.0) - tau), rho / weight, 1 - rho
            combination(factors, (w, slope[k], linear[k]), out=new[k])
        return new

    linear = map_leaves(tracked, surrogate.linear, gradient, at, penalized)
    constant = surrogate.constant
    if len(level):
        along = np.array([_product(_of(gradient, k), at) for k in range(len(level))])
        new = level / weight - along / weight + tau * _product(at, at)
        constant = (1 - rho) * constant + rho * new  # (39)
    return Surrogate(constant, linear, np.float64((1 - rho) * surrogate.weight + rho))


class Forms(NamedTuple):
    """The quadratics of a convex problem, F-bar_0 first: constant + <l, w> + curvature ||w||^2."""

    constants: Floats  # [M] of F-bar_1 to F-bar_M
    curvatures: Floats  # [M + 1]
    rows: tuple[int | None, ...]  # [M + 1] the index among the K tracked functions; None: ||w||^2 itself


def forms(
    surrogate: Surrogate, rows: tuple[int | None, ...], limited: Sequence[Constraint], tau: float, start: Start
) -> Forms:
    """The surrogates of all functions after a round.

    `exact` starts from zero functions, as the recursion says: the curvature is then tau * Q_t, and the limit is
    weighted by Q_t. # differs from the paper: `paper` takes tau and the limit in full from the first round on, as
    (8), (12) and (38) are printed.

    Parameters
    ----------
    rows : [M + 1] of `Forms`
    limited : [M] the constraints
    """
    weight = float(surrogate.weight)
    curvature, missing = (tau, 1 - weight) if start == "paper" else (tau * weight, 0.0)
    constants = [
        -constraint.aim if row is None else float(surrogate.constant[row]) - constraint.aim * missing
        for constraint, row in zip(limited, rows[1:], strict=True)
    ]
    return Forms(np.array(constants), np.array([1.0 if row is None else curvature for row in rows]), rows)


def gram(surrogate: Surrogate, rows: Sequence[int | None]) -> Floats:
    """[M + 1, M + 1] inner products of the linear parts, in float64: all that the problem needs of them."""
    gram_matrix = np.zeros((len(rows),) * 2)
    linear = [(m, _of(surrogate.linear, k)) for m, k in enumerate(rows) if k is not None]
    for (i, first), (j, second) in itertools.combinations_with_replacement(linear, 2):
        gram_matrix[i, j] = gram_matrix[j, i] = _product(first, second)
    return gram_matrix


def move(surrogate: Surrogate, factors: Sequence[float], gamma: float, at: Parameters) -> Parameters:
    """(1 - gamma) w_t + gamma w-bar, by (5), for w-bar = - sum_k factors[k] l_k."""

    def moved(w: Array, linear: Array) -> Array:
        terms = [(-gamma * factor, row) for factor, row in zip(factors, linear, strict=True) if factor]
        return combination([1 - gamma, *(factor for factor, _ in terms)], [w, *(row for _, row in terms)])

    return map_leaves(moved, at, surrogate.linear)


def _of(record: AnyRecord, k: int) -> AnyRecord:
    """The part of function k in leaves [K, ...]."""
    return map_leaves(lambda leaf: leaf[k], record)


def _product(first: Record, second: Record) -> float:
    """The inner product of records of the same shapes, in float64."""
    total = 0.0
    for x, y in zip(bare_leaves(first), bare_leaves(second), strict=True):
        x, y = x.reshape(-1), y.reshape(-1)
        if type(x) is np.ndarray and x.dtype == y.dtype == np.float32:
            total += float(row_products(x, y))
        else:
            total += float(x.astype(np.float64, copy=False) @ y.astype(np.float64, copy=False))
    return total
