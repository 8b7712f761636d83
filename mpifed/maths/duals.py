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
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from mpifed.core.record import Array, beside
from mpifed.maths.arrays import sigmoid

Numbers: TypeAlias = Any  # arrays, or Python's
FLOATS = SimpleNamespace(  # what duals call of NumPy, for Python's floats: 30 times as fast as arrays of length 1
    maximum=max, minimum=min, exp=math.exp, log=math.log, log1p=math.log1p,
    where=lambda condition, first, second: first if condition else second,
)  # fmt: skip
_NEWTON = 6
_LEAST = 2.0**-54  # a quarter of the spacing of double precision at 1


class Dual(ABC):
    """The dual of a loss. Models that dual methods can train have it as their attribute `dual`.

    Attributes
    ----------
    bend : the second derivative of l*, where it is a quadratic function on its domain; else None
    low, high : the interval of t alpha on which l*(-alpha) is finite
    """

    bend: ClassVar[float | None] = None
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

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] the delta that maximizes -l*(-(alpha + delta)) - m delta - curvature / 2 delta^2.

        `curvature` >= 0 is [..., s], or a scalar. `alpha` must be feasible; alpha + delta is then feasible too, also
        after rounding. Where the curvature is 0, as for a row of zeros, m is 0 as well.
        """
        m, y, c = (beside(alpha, values, alpha.dtype) for values in (scores, y, curvature))
        stepped: Array = self.best(alpha, m, y, c) - alpha
        return stepped

    @abstractmethod
    def best(
        self, alpha: Numbers, m: Numbers, y: Numbers, c: Numbers, xp: ModuleType | SimpleNamespace = np
    ) -> Numbers:
        """Where a `step` from alpha leads, with curvature c: of arrays in one dtype, or with `FLOATS` of floats."""

    @abstractmethod
    def within(self, alpha: Array, y: Array) -> Array:
        """[..., s] the conjugate, of feasible alpha."""


class QuadraticDual(Dual):
    """l*(-alpha) = bend / 2 alpha^2 - alpha v on its interval, where v is t or the target."""

    bend: ClassVar[float]

    def within(self, alpha: Array, y: Array) -> Array:
        values: Array = alpha * (alpha * (self.bend / 2) - self.signs(y.astype(alpha.dtype))[1])
        return values

    def best(
        self, alpha: Numbers, m: Numbers, y: Numbers, c: Numbers, xp: ModuleType | SimpleNamespace = np
    ) -> Numbers:
        """u = alpha + (v - bend alpha - m) / (c + bend), the nearest feasible value.

        Algorithm 5 of HyFDCA. # differs from the paper: its closed form lacks t and the norm of the row.
        """
        t, v = self.signs(y)
        # v - m, unless it is 0, is at least eps / 2: with so small a curvature the step ends on the boundary anyway
        updated = t * (alpha + (v - self.bend * alpha - m) / xp.maximum(c + self.bend, _LEAST))
        return t * xp.minimum(xp.maximum(updated, self.low), self.high)


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

    def best(
        self, alpha: Numbers, m: Numbers, y: Numbers, c: Numbers, xp: ModuleType | SimpleNamespace = np
    ) -> Numbers:
        """t v, where v in (0, 1) solves logit(v) + t m + c (v - t alpha) = 0.

        In q = logit(v) this is q + c sigmoid(q) = k, whose left side increases. By symmetry the root is brought to
        q <= 0, where the left side is convex: Newton's method from a point to the right of the root decreases to it
        monotonically. The start is at most 1.3 to the right, and an error e becomes at most e^2 / 2: `_NEWTON` steps
        suffice for double precision.

        It is the smallest of three upper bounds: 0, k, and a third. With x = k + log c >= 1 the root is at least
        -log c, so c sigmoid(q) = k - q is at most x.
        """
        t, _ = self.signs(y)
        k = c * (t * alpha) - t * m
        over = k > c / 2  # v > 1/2: solve for 1 - v instead
        k = xp.where(over, c - k, k)
        x = k + xp.log(xp.maximum(c, _LEAST))
        third = (x >= 1) & (2 * x < c)
        v = xp.where(third, x, 1.0) / xp.where(third, c, 2.0)  # sigmoid(q) <= x / c < 1/2
        q = xp.minimum(xp.minimum(k, 0.0), xp.log(v) - xp.log1p(-v))
        for _ in range(_NEWTON):
            power = xp.exp(q)
            v = power / (1 + power)
            q = xp.minimum(q - (c * v + q - k) / (c * (v - v * v) + 1), 0.0)  # rounding may have made it positive
        power = xp.exp(q)
        v = power / (1 + power)
        return t * xp.where(over, 1 - v, v)
