"""The convex surrogates of SSCA (Ye and Cui; errata applied), shared by its four algorithms.

The surrogate of function k is A_k + <l_k, w> + curvature_k ||w||^2, tracked by F_t = (1 - rho_t) F_{t-1} + rho_t * (new
quadratic around w_t), whose curvature is tau: (7), (11), (15), (22) of the long paper. K functions are tracked
together, along the leading axis of every leaf. Their recursion needs A, l and the sum of the weights alone, whatever
the number of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.loops import combination
from mpifed.core.record import Array, Record, bare_leaves, flat, in_memory, map_leaves, namespace, on_host

Start = Literal["exact", "paper"]
Floats = NDArray[np.float64]
_TOGETHER = 2**14  # columns of the Gram matrix's factor that are widened at once


@in_memory("constant", "weight")
class Surrogate(NamedTuple):
    """K convex quadratics."""

    constant: Array  # [K] float64: A
    linear: Record  # leaves [K, ...] of the model's shapes: l
    weight: Array  # [] float64: Q_t = 1 - prod(1 - rho_s), how much of the quadratics is there


def start_surrogate(model: Record, functions: int) -> Surrogate:
    """K zero functions."""
    linear = map_leaves(lambda leaf: np.zeros((functions, *leaf.shape), leaf.dtype), model)
    return Surrogate(np.zeros(functions), linear, np.float64(0))


def track(
    surrogate: Surrogate,
    rho: float,
    gradient: Record,
    level: Array,
    at: Record,
    tau: float,
    penalties: Sequence[float],
    weight: float = 1.0,
) -> Surrogate:
    """The surrogates after a round: (3) and (10) with the quadratics (7) and (11).

    Parameters
    ----------
    gradient : leaves [K, ...]; estimates of `weight` times the gradients of the data terms at `at`
    level : [K] estimates of `weight` times F_k - limit_k there; () when nobody asks for the constants
    at : the model w_t at which they were taken
    penalties : [K] factors of ||w||^2, linearized at w_t: 2 penalty <w_t, w>, as in (28)
    """

    def tracked(linear: Array, slope: Array, w: Array) -> Array:
        new = namespace(w).empty_like(linear)
        for k, penalty in enumerate(penalties):  # the first two are rho times the new l; (30), (31)
            factors = 2 * rho * (penalty - tau), rho / weight, 1 - rho
            combination(factors, (w, slope[k], linear[k]), out=new[k])
        return new

    linear = map_leaves(tracked, surrogate.linear, gradient, at)
    constant = surrogate.constant
    if len(level):
        w = flat(at)
        new = level / weight - _products(gradient, w) / weight + tau * float(w @ w)
        constant = (1 - rho) * constant + rho * new  # (39)
    return Surrogate(constant, linear, np.float64((1 - rho) * surrogate.weight + rho))


def start_again(surrogate: Surrogate) -> Surrogate:
    """Zero functions in its place."""
    return Surrogate(*(map_leaves(np.zeros_like, part) for part in surrogate))


def curvature_of(surrogate: Surrogate, tau: float, start: Start) -> float:
    """Of each quadratic after a round; see `forms`."""
    return tau if start == "paper" else tau * float(surrogate.weight)


class Forms(NamedTuple):
    """The quadratics of a convex problem, F-bar_0 first: constant + <l, w> + curvature ||w||^2."""

    constants: Floats  # [M]; that of F-bar_0 is left out
    curvatures: Floats  # [M + 1]
    rows: tuple[int | None, ...]  # [M + 1] which of the K tracked functions it is; None: ||w||^2 itself


def forms(surrogate: Surrogate, aims: Sequence[float], tracked: Sequence[bool], tau: float, start: Start) -> Forms:
    """What the surrogates of all functions are after a round.

    `exact` starts from zero functions, as the recursion says: the curvature is then tau * Q_t, and of the limit Q_t
    times is there. # differs from the paper: `paper` takes both whole from the first round on, as (8), (12) and
    (38) are printed.

    Parameters
    ----------
    aims : [M + 1] what each constraint is compared with; the first, of the objective, is not read
    tracked : [M + 1] whether a function is among the K of `surrogate`; otherwise it is ||w||^2
    """
    curvature = curvature_of(surrogate, tau, start)
    rest = 1 - float(surrogate.weight) if start == "paper" else 0.0
    position = np.cumsum(tracked) - 1
    rows = tuple(int(position[k]) if is_tracked else None for k, is_tracked in enumerate(tracked))
    constants = [
        -aim if row is None else float(surrogate.constant[row]) - aim * rest
        for aim, row in zip(aims[1:], rows[1:], strict=True)
    ]
    curvatures = [1.0 if row is None else curvature for row in rows]
    return Forms(np.array(constants), np.array(curvatures), rows)


def gram(surrogate: Surrogate, rows: Sequence[int | None]) -> Floats:
    """[M + 1, M + 1] inner products of the linear parts, in float64: all that a convex problem needs of the d axes."""
    found = np.zeros((len(surrogate.constant),) * 2)
    for leaf in bare_leaves(surrogate.linear):
        flat = leaf.reshape(len(leaf), -1)
        for start in range(0, flat.shape[1], _TOGETHER):
            some = flat[:, start : start + _TOGETHER].astype(np.float64)
            found += on_host(some @ some.T)
    whole = np.zeros((len(rows),) * 2)
    there = [k for k, row in enumerate(rows) if row is not None]
    whole[np.ix_(there, there)] = found
    return whole


def move(surrogate: Surrogate, factors: Sequence[float], gamma: float, at: Record) -> Record:
    """(1 - gamma) w_t + gamma w-bar, by (5), for w-bar = - sum_k factors[k] l_k."""

    def moved(w: Array, linear: Array) -> Array:
        some = [(-gamma * factor, row) for factor, row in zip(factors, linear, strict=True) if factor]
        return combination([1 - gamma, *(factor for factor, _ in some)], [w, *(row for _, row in some)])

    return map_leaves(moved, at, surrogate.linear)


def slope_at(surrogate: Surrogate, curvature: float, at: Record) -> Record:
    """Leaves [K, ...]: the gradients of the surrogates at `at`, which estimate those of the functions."""
    return map_leaves(lambda linear, w: linear + w * w.dtype.type(2 * curvature), surrogate.linear, at)


def level_at(surrogate: Surrogate, curvature: float, at: Record) -> Floats:
    """[K] the values of the surrogates at `at`."""
    w = flat(at)
    found: Floats = surrogate.constant + _products(surrogate.linear, w) + curvature * float(w @ w)
    return found


def _products(record: Record, w: Floats) -> Floats:
    """[K] inner products of the functions' leaves [K, ...] with w [d], in float64."""
    parts, start = [], 0
    for leaf in bare_leaves(record):
        flat = leaf.reshape(len(leaf), -1)
        stop = start + flat.shape[1]
        parts.append([float(row.astype(np.float64) @ w[start:stop]) for row in flat])
        start = stop
    return np.asarray(np.sum(parts, axis=0, dtype=np.float64))
