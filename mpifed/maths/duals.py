"""Fenchel duals of losses of one score, as dual coordinate ascent needs them.

With l_i the loss of sample i as a function of its score m = x_i . w, mpifed minimizes
P(w) = 1/N sum_i l_i(x_i . w) + penalty ||w||^2; papers on dual methods write lambda / 2 for the penalty: lambda = 2 *
penalty. The Fenchel dual has one variable per sample,

    D(alpha) = -1/N sum_i l_i*(-alpha_i) - lambda/2 ||w(alpha)||^2,   w(alpha) = X' alpha / (lambda N),

with l* the convex conjugate; D(alpha) <= P(w) for all alpha and w, with equality only at the optimum. When alpha_i
changes by delta, N D changes by the function that `step` maximizes, of curvature ||x_i||^2 / (lambda N).

S. Shalev-Shwartz, T. Zhang: "Stochastic Dual Coordinate Ascent Methods for Regularized Loss Minimization" (JMLR 2013).

Everywhere alpha, scores m and y are arrays [..., s] of equal shape, of NumPy or CuPy, which takes over what is called
of NumPy; y are classes 0 and 1, of signs t = 2y - 1, or real targets. Results have the dtype of alpha.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mpifed.core.record import Array, beside
from mpifed.maths.arrays import sigmoid

Numbers: TypeAlias = Any  # arrays, or Python's
_NEWTON = 6
_LEAST = 2.0**-54  # a quarter of the spacing of double precision at 1


def values_along(dual: Dual, alpha: Array, delta: Array, y: Array, steps: Array) -> Array:
    """[..., J] float64: the sum over the last axis of -l*(-(alpha + s_j delta)) at each of the `steps` s [J].

    A line search along delta needs them for losses that are not `quadratic`. Each point alpha + s_j delta is replaced
    by the nearest feasible one, since rounding may have moved it out of the domain.
    """
    conjugates = [dual.conjugate(dual.feasible(alpha + alpha.dtype.type(s) * delta, y), y) for s in steps]
    return -np.stack([values.sum(axis=-1, dtype=np.float64) for values in conjugates], axis=-1)


class Dual(ABC):
    """The dual of a loss. Models that dual methods can train have it as their attribute `dual`.

    Attributes
    ----------
    quadratic : whether l* is a quadratic function on its domain, so that it has `coefficients`
    low, high : the interval of t alpha on which l*(-alpha) is finite
    """

    quadratic: ClassVar[bool]
    low: ClassVar[float] = 0.0
    high: ClassVar[float] = 1.0

    def signs(self, y: Numbers) -> tuple[Numbers, Numbers]:
        """(t, the derivative of -l*(-alpha) at 0): arrays or floats, as y is, which has the dtype of alpha."""
        t = y + y - 1
        return t, t

    def feasible(self, alpha: Array, y: Array) -> Array:
        """[..., s] the nearest point of the domain of l*(-alpha)."""
        t, _ = self.signs(y.astype(alpha.dtype))
        nearest: Array = t * alpha  # by less than np.clip takes for few numbers
        np.maximum(nearest, self.low, out=nearest)
        np.minimum(nearest, self.high, out=nearest)
        nearest *= t
        return nearest

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] l*(-alpha), infinite outside its domain."""
        inside = self.feasible(alpha, y)
        return np.where(inside == alpha, self.within(inside, y), alpha.dtype.type(np.inf))

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] u with -u a subgradient of the loss at the scores: the alpha that is optimal for them."""
        return self.step(np.zeros_like(scores), scores, y, 0.0)

    @abstractmethod
    def within(self, alpha: Array, y: Array) -> Array:
        """[..., s] the conjugate, of feasible alpha."""

    @abstractmethod
    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] the delta that maximizes -l*(-(alpha + delta)) - m delta - curvature / 2 delta^2.

        `curvature` >= 0 is [..., s], or a scalar. `alpha` must be feasible; alpha + delta is then feasible too, also
        after rounding. Where the curvature is 0, as for a row of zeros, m is 0 as well.
        """

    @abstractmethod
    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        """`step` for a single sample, in Python floats: 30 times as fast as with arrays of length 1."""

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        """(linear [...], quadratic [...]) float64: the dual loss along delta, if it is `quadratic`.

        The sum over the last axis of -l*(-(alpha + s delta)) is a constant + s linear - s^2 / 2 quadratic, for all s at
        which alpha + s delta is feasible.
        """
        raise NotImplementedError("the conjugate of this loss is not quadratic; use values_along")


class QuadraticDual(Dual):
    """l*(-alpha) = bend / 2 alpha^2 - alpha v on its interval, where v is t or the target."""

    quadratic: ClassVar[bool] = True
    bend: ClassVar[float]

    def within(self, alpha: Array, y: Array) -> Array:
        values: Array = alpha * (alpha * (self.bend / 2) - self.signs(y.astype(alpha.dtype))[1])
        return values

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] with u = alpha + (v - bend alpha - m) / (curvature + bend), the nearest feasible value less alpha.

        Algorithm 5 of HyFDCA. # differs from the paper: its closed form lacks t and the norm of the row.
        """
        updated: Array = alpha * -self.bend
        updated += self.signs(y.astype(alpha.dtype))[1]
        updated -= beside(alpha, scores, alpha.dtype)
        # v - m, unless it is 0, is at least eps / 2: with so small a curvature the step ends on the boundary anyway
        updated /= np.maximum(beside(alpha, curvature, alpha.dtype) + self.bend, np.finfo(alpha.dtype).eps / 4)
        updated += alpha
        return self.feasible(updated, y) - alpha

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        t, v = self.signs(y)
        updated: float = t * (alpha + (v - self.bend * alpha - score) / max(curvature + self.bend, _LEAST))
        stepped: float = t * min(max(updated, self.low), self.high) - alpha
        return stepped

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        linear = delta * (self.signs(y.astype(alpha.dtype))[1] - alpha * self.bend)
        return linear.sum(axis=-1, dtype=np.float64), (delta * delta).sum(axis=-1, dtype=np.float64) * self.bend


class HingeDual(QuadraticDual):
    """Dual of the hinge loss max(0, 1 - t m): l*(-alpha) = -t alpha, on the domain 0 <= t alpha <= 1."""

    bend: ClassVar[float] = 0.0

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] t where the margin t m is below 1, else 0: as `step` has it, in half the time."""
        t, _ = self.signs(y.astype(scores.dtype))
        below: Array = t * (t * scores < 1)
        return below


class SquaredHingeDual(QuadraticDual):
    """Dual of the loss max(0, 1 - t m)^2: l*(-alpha) = -t alpha + alpha^2 / 4, on the domain t alpha >= 0."""

    bend: ClassVar[float] = 0.5
    high: ClassVar[float] = np.inf


class LeastSquaresDual(QuadraticDual):
    """Dual of (m - y)^2 / 2 with real targets y: l*(-alpha) = alpha^2 / 2 - alpha y, for all alpha."""

    bend: ClassVar[float] = 1.0
    low: ClassVar[float] = -np.inf
    high: ClassVar[float] = np.inf

    def signs(self, y: Numbers) -> tuple[Numbers, Numbers]:
        return 1.0, y


class LogisticDual(Dual):
    """Dual of the logistic loss log(1 + exp(-t m)).

    With b = t alpha, l*(-alpha) = b log b + (1 - b) log(1 - b), on the domain 0 <= b <= 1.
    """

    quadratic: ClassVar[bool] = False

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] t / (1 + exp(t m)), without cancellation."""
        t, _ = self.signs(y.astype(scores.dtype))
        probable: Array = t * sigmoid(-t * scores)
        return probable

    def within(self, alpha: Array, y: Array) -> Array:
        """[..., s] minus the entropy of t alpha; 0 where t alpha is 0 or 1."""
        b, limits = abs(alpha), np.finfo(alpha.dtype)
        values: Array = b * np.log(np.maximum(b, limits.tiny))  # 0 log(tiny) = 0
        values += (1 - b) * np.log1p(-np.minimum(b, 1 - limits.eps / 2))
        return values

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] t v - alpha, where v in (0, 1) solves logit(v) + t m + curvature (v - t alpha) = 0.

        In q = logit(v) this is q + c sigmoid(q) = k, whose left side increases. By symmetry the root is brought to
        q <= 0, where the left side is convex: Newton's method from a point to the right of the root decreases to it
        monotonically. The start is at most 1.3 to the right, and an error e becomes at most e^2 / 2: `_NEWTON` steps
        suffice for double precision.
        """
        t, _ = self.signs(y.astype(alpha.dtype))
        c = beside(alpha, curvature, alpha.dtype)
        k = c * (t * alpha) - t * beside(alpha, scores, alpha.dtype)
        over = k > c / 2  # v > 1/2: solve for 1 - v instead
        k = np.where(over, c - k, k)
        q = self._start(k, c)
        for _ in range(_NEWTON):
            v = _below_half(q)
            q = np.minimum(q - (c * v + q - k) / (c * (v - v * v) + 1), 0)  # rounding may have made it positive
        v = _below_half(q)
        stepped: Array = t * np.where(over, 1 - v, v) - alpha
        return stepped

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


def _below_half(q: Array) -> Array:
    """[..., s] the sigmoid of q <= 0."""
    power = np.exp(q)
    sigmoid: Array = power / (1 + power)
    return sigmoid
