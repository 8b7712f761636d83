"""Support vector machines: two classes, 0 and 1, with a single score z and the margin t z, t = 2y - 1.

The penalty is that of all models, l2 * ||w||^2 without the intercept: where papers write lambda / 2, lambda is 2 * l2,
and scikit-learn's C, which multiplies the sum of losses added to ||w||^2 / 2, is 1 / (2 * l2 * samples). Dual methods
have no intercept; a column of ones serves as one, but is penalized.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpifed.core.protocols import Dual
from mpifed.core.record import Array
from mpifed.maths.arrays import namespace
from mpifed.maths.duals import HingeDual, SquaredHingeDual
from mpifed.maths.objectives.linear import OfScores


@dataclass(frozen=True)
class MarginLoss(OfScores):
    """The base of losses that depend on the margin only."""

    convex: ClassVar[bool] = True
    dual: ClassVar[Dual]

    @abstractmethod
    def of_shortfall(self, shortfall: Array) -> Array:
        """[..., s] the loss as a function of `shortfall` = max(0, 1 - t z)."""

    def of_scores(self, scores: Array, y: Array) -> Array:
        z = scores[..., 0]
        t = 2 * y.astype(z.dtype) - 1
        return self.of_shortfall(namespace(z).maximum(1 - t * z, 0))

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss, weighted subgradient: at a kink the shortest)."""
        slopes = self.dual.toward(scores[..., 0], y)
        slopes *= -weights.astype(slopes.dtype)
        return self.of_scores(scores, y), slopes[..., None]

    def prediction(self, scores: Array) -> Array:
        """[..., s] class 1 where the score is positive, else 0."""
        return (scores[..., 0] > 0).astype(np.int64)

    def check(self, features: int, outputs: int) -> list[str]:
        if outputs == 2:
            return []
        name = "hinge" if isinstance(self, Hinge) else "squared-hinge"
        return [
            f'[model] name = "{name}": is for two classes, and the data have {outputs}; make data of two with '
            "`mpifed data ... --labels even-odd` or `--labels class:K`"
        ]


@dataclass(frozen=True)
class Hinge(MarginLoss):
    """The support vector machine: loss max(0, 1 - t z)."""

    dual: ClassVar[Dual] = HingeDual()

    def of_shortfall(self, shortfall: Array) -> Array:
        return shortfall


@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """The support vector machine with a smooth loss, max(0, 1 - t z)^2, scikit-learn's "squared_hinge"."""

    dual: ClassVar[Dual] = SquaredHingeDual()

    def of_shortfall(self, shortfall: Array) -> Array:
        return shortfall * shortfall
