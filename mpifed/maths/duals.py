"""Fenchel duals of losses of one score, as dual coordinate ascent needs them.

With l_i the loss of sample i as a function of its score m = x_i . w, mpifed minimizes
P(w) = 1/N sum_i l_i(x_i . w) + penalty ||w||^2; papers on dual methods write lambda / 2 for the penalty: lambda = 2 *
penalty. The Fenchel dual has one variable per sample,

    D(alpha) = -1/N sum_i l_i*(-alpha_i) - lambda/2 ||w(alpha)||^2,   w(alpha) = X' alpha / (lambda N),

with l* the convex conjugate; D(alpha) <= P(w) for all alpha and w, with equality only at the optimum. When alpha_i
changes by delta, N D changes by the function that `step` maximizes, of curvature ||x_i||^2 / (lambda N).

S. Shalev-Shwartz, T. Zhang: "Stochastic Dual Coordinate Ascent Methods for Regularized Loss Minimization" (JMLR 2013).

Everywhere alpha, scores m and y are arrays [..., s] of equal shape, of NumPy, or of CuPy, which takes over NumPy's
functions; y are classes 0 and 1, of signs t = 2y - 1, or real targets. Results have the dtype of alpha.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from mpifed.core.protocols import Dual
from mpifed.core.record import Array
from mpifed.maths.arrays import namespace, sigmoid


def values_along(dual: Dual, alpha: Array, delta: Array, y: Array, steps: Array) -> Array:
    """[..., J] float64: the sum over the last axis of -l*(-(alpha + s_j delta)) at each of the `steps` s [J].

    A line search along delta needs them for losses that are not `quadratic`. Each point alpha + s_j delta is replaced
    by the nearest feasible one, since rounding may have moved it out of the domain.
    """
    xp = namespace(alpha)
    conjugates = [dual.conjugate(dual.feasible(alpha + alpha.dtype.type(s) * delta, y), y) for s in steps]
    return -xp.stack([values.sum(axis=-1, dtype=np.float64) for values in conjugates], axis=-1)


class HingeDual:
    """Dual of the hinge loss max(0, 1 - t m): l*(-alpha) = -t alpha, on the domain 0 <= t alpha <= 1."""

    quadratic: ClassVar[bool] = True

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] -t alpha."""
        xp, b = namespace(alpha), _turned(alpha, y)
        return xp.where((b >= 0) & (b <= 1), -b, b.dtype.type(np.inf))

    def feasible(self, alpha: Array, y: Array) -> Array:
        """[..., s] between 0 and t."""
        return _between(alpha.copy(), y.astype(alpha.dtype))

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] t where the margin t m is below 1, else 0."""
        t = _signs(scores, y)
        t *= t * scores < 1
        return t

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] t clip(t alpha + (1 - t m) / curvature, 0, 1) - alpha.

        Algorithm 5 of HyFDCA. # differs from the paper: its closed form lacks t and the norm of the row.
        """
        xp = namespace(alpha)
        # 1 - t m, unless it is 0, is at least eps / 2: with so small a curvature the step ends on the boundary anyway
        smallest = xp.finfo(alpha.dtype).eps / 4
        curvature, upper = np.maximum(_like(alpha, curvature), smallest), y.astype(alpha.dtype)
        updated = upper + upper
        updated -= 1
        updated -= _like(alpha, scores)  # t - m
        updated /= curvature
        updated += alpha
        updated = _between(updated, upper)
        updated -= alpha
        return updated

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        updated = alpha + (y + y - 1 - score) / max(curvature, _LEAST)
        return min(max(updated, y - 1), y) - alpha

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        """The sum of t delta, and 0."""
        linear = _turned(delta, y).sum(axis=-1, dtype=np.float64)
        return linear, namespace(alpha).zeros_like(linear)


class SquaredHingeDual:
    """Dual of the loss max(0, 1 - t m)^2: l*(-alpha) = -t alpha + alpha^2 / 4, on the domain t alpha >= 0."""

    quadratic: ClassVar[bool] = True

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] -t alpha + alpha^2 / 4."""
        xp, b = namespace(alpha), _turned(alpha, y)
        return xp.where(b >= 0, b * (b / 4 - 1), b.dtype.type(np.inf))

    def feasible(self, alpha: Array, y: Array) -> Array:
        """[..., s] on the side of t."""
        t = _signs(alpha, y)
        return t * namespace(alpha).maximum(t * alpha, 0)

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] 2 t max(0, 1 - t m)."""
        t = _signs(scores, y)
        return 2 * t * namespace(scores).maximum(1 - t * scores, 0)

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] t max(0, t alpha + (1 - t m - t alpha / 2) / (curvature + 1/2)) - alpha."""
        t = _signs(alpha, y)
        updated: Array = alpha * alpha.dtype.type(-0.5)
        updated += t
        updated -= _like(alpha, scores)
        updated /= _like(alpha, curvature) + alpha.dtype.type(0.5)
        updated += alpha
        updated *= t
        np.maximum(updated, 0, out=updated)
        updated *= t
        updated -= alpha
        return updated

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        t = y + y - 1
        return t * max(0.0, t * (alpha + (t - alpha / 2 - score) / (curvature + 0.5))) - alpha

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        """The sums of delta (t - alpha / 2) and of delta^2 / 2."""
        linear = delta * (_signs(alpha, y) - alpha / 2)
        return linear.sum(axis=-1, dtype=np.float64), (delta * delta).sum(axis=-1, dtype=np.float64) / 2


class LogisticDual:
    """Dual of the logistic loss log(1 + exp(-t m)).

    With b = t alpha, l*(-alpha) = b log b + (1 - b) log(1 - b), on the domain 0 <= b <= 1.
    """

    quadratic: ClassVar[bool] = False

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] minus the entropy of t alpha; 0 where t alpha is 0 or 1."""
        xp, b = namespace(alpha), _turned(alpha, y)
        inside = (b >= 0) & (b <= 1)
        b = xp.where(inside, b, b.dtype.type(0))
        tiny = xp.finfo(b.dtype).tiny  # 0 log(tiny) = 0
        values = b * xp.log(xp.maximum(b, tiny))
        values += (1 - b) * xp.log1p(-xp.minimum(b, 1 - xp.finfo(b.dtype).eps / 2))
        return xp.where(inside, values, b.dtype.type(np.inf))

    def feasible(self, alpha: Array, y: Array) -> Array:
        """[..., s] between 0 and t."""
        return _between(alpha.copy(), y.astype(alpha.dtype))

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] t / (1 + exp(t m)): y minus the probability of class 1, without cancellation."""
        t = _signs(scores, y)
        return t * sigmoid(-t * scores)

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] t v - alpha, where v in (0, 1) solves logit(v) + t m + curvature (v - t alpha) = 0.

        In q = logit(v) this is q + c sigmoid(q) = k, whose left side increases. By symmetry the root is brought to
        q <= 0, where the left side is convex: Newton's method from a point to the right of the root decreases to it
        monotonically. The start is at most 1.3 to the right, and an error e becomes at most e^2 / 2: `_NEWTON` steps
        suffice for double precision.
        """
        t = _signs(alpha, y)
        unit, c = alpha.dtype.type(1), _like(alpha, curvature)
        b = t * alpha
        k = c * b
        k -= t * _like(alpha, scores)
        over = k > c / 2  # v > 1/2: solve for 1 - v instead
        k = np.where(over, c - k, k)
        q = self._start(k, c)
        for _ in range(_NEWTON):
            power = np.exp(q)
            v: Array = power / (unit + power)
            slope = v - v * v
            slope *= c
            slope += unit
            v *= c
            v += q
            v -= k
            v /= slope
            q -= v
            np.minimum(q, 0, out=q)  # rounding may have made it positive
        power = np.exp(q)
        v = power / (unit + power)
        v = np.where(over, unit - v, v)
        v *= t
        v -= alpha
        return v

    def _start(self, k: Array, c: Array) -> Array:
        """The smallest of three upper bounds of the root of q + c sigmoid(q) = k <= c / 2: 0, k, and a third.

        With x = k + log c >= 1 the root is at least -log c, so c sigmoid(q) = k - q is at most x.
        """
        unit = k.dtype.type(1)
        x = k + np.log(np.maximum(c, np.finfo(k.dtype).tiny))
        has = (x >= 1) & (2 * x < c)
        part = np.where(has, x, unit) / np.where(has, c, 2 * unit)  # sigmoid(q) <= x / c < 1/2
        result: Array = np.minimum(np.minimum(k, 0), np.log(part) - np.log1p(-part))
        return result

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        t, c = y + y - 1, curvature
        k = c * t * alpha - t * score
        over = k > c / 2
        k = c - k if over else k
        q, x = min(k, 0.0), k + math.log(max(c, _LEAST))
        if x >= 1 and 2 * x < c:
            q = min(q, math.log(x / c) - math.log1p(-x / c))
        for _ in range(_NEWTON):
            power = math.exp(q)
            v = power / (1 + power)
            change = (q + c * v - k) / (1 + c * (v - v * v))
            q = min(q - change, 0.0)
            if change < 1e-8:  # the next change is below its square
                break
        power = math.exp(q)
        v = power / (1 + power)
        return t * (1 - v if over else v) - alpha

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        raise NotImplementedError("the conjugate of the logistic loss is not quadratic; use values_along")


_NEWTON = 6
_LEAST = 2.0**-54  # a quarter of the spacing of double precision at 1


class LeastSquaresDual:
    """Dual of (m - y)^2 / 2 with real targets y: l*(-alpha) = alpha^2 / 2 - alpha y, for all alpha."""

    quadratic: ClassVar[bool] = True

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] alpha^2 / 2 - alpha y."""
        result: Array = alpha * (alpha / 2 - y.astype(alpha.dtype, copy=False))
        return result

    def feasible(self, alpha: Array, y: Array) -> Array:
        result: Array = alpha.copy()
        return result

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] the residual y - m."""
        return y.astype(scores.dtype, copy=False) - scores

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] (y - m - alpha) / (1 + curvature)."""
        residual = y.astype(alpha.dtype)
        residual -= _like(alpha, scores)
        residual -= alpha
        residual /= _like(alpha, curvature) + alpha.dtype.type(1)
        return residual

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        return (y - score - alpha) / (1 + curvature)

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        """The sums of delta (y - alpha) and of delta^2."""
        linear = delta * (y.astype(alpha.dtype, copy=False) - alpha)
        return linear.sum(axis=-1, dtype=np.float64), (delta * delta).sum(axis=-1, dtype=np.float64)


def _like(alpha: Array, values: Array | float) -> Array:
    """`values` in the dtype of alpha: a float64 scalar array would promote float32 arrays to float64."""
    return namespace(alpha).asarray(values, dtype=alpha.dtype)


def _signs(like: Array, y: Array) -> Array:
    """[..., s] t = 2y - 1 in the dtype of `like`, as a new array."""
    t = y.astype(like.dtype)
    t += t
    t -= 1
    return t


def _turned(alpha: Array, y: Array) -> Array:
    """[..., s] t alpha, as a new array."""
    t = _signs(alpha, y)
    t *= alpha
    return t


def _between(values: Array, upper: Array) -> Array:
    """`values`, clipped in place to between 0 and t; `upper` [..., s], the classes, is overwritten."""
    xp = namespace(values)
    xp.minimum(values, upper, out=values)
    upper -= 1
    return xp.maximum(values, upper, out=values)
