"""Support vector machines: two classes, 0 and 1, by one score z whose margin is t z, t = 2y - 1.

The penalty is that of all objectives, penalty * ||w||^2: where papers write lambda / 2, lambda is 2 * penalty, and
scikit-learn's C, which multiplies a sum of losses beside ||w||^2 / 2, is 1 / (2 * penalty * samples). There is no
intercept; a column of ones is one, with a penalty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from mpifed.core.record import Array
from mpifed.maths.arrays import namespace
from mpifed.maths.duals import Dual, HingeDual, SquaredHingeDual
from mpifed.maths.objectives.form import Linear, Parameters, Slope
from mpifed.maths.ranges import Weight


@dataclass(frozen=True)
class Margins(Linear):
    """What losses of the margin alone share."""

    convex: ClassVar[bool] = True
    dual: ClassVar[Dual]
    l2: Weight = 0.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Zeros: the loss is convex."""
        return Parameters(np.zeros((features, 1), dtype=dtype), ())

    def of_shortfall(self, shortfall: Array) -> Array:
        """[..., s] the loss, by how much the margin falls short of 1: max(0, 1 - t z)."""
        raise NotImplementedError

    def loss(self, head: tuple[()], scores: Array, y: Array) -> Array:
        """[..., s] the loss of the margin."""
        z = scores[..., 0]
        t = 2 * y.astype(z.dtype) - 1
        return self.of_shortfall(namespace(z).maximum(1 - t * z, 0))

    def slope(self, head: tuple[()], scores: Array, y: Array, weights: Array) -> Slope:
        """A subgradient: of those at a kink, the smallest."""
        slopes = self.dual.toward(scores[..., 0], y)
        slopes *= -weights.astype(slopes.dtype)
        return Slope(self.loss(head, scores, y), (), slopes[..., None])

    def predict(self, head: tuple[()], scores: Array) -> Array:
        """[..., s] the class on whose side the score is."""
        return (scores[..., 0] > 0).astype(np.int64)

    def check(self, outputs: int) -> list[str]:
        """Two classes alone."""
        if outputs == 2:
            return []
        name = "hinge" if isinstance(self, Hinge) else "squared-hinge"
        return [
            f'[model] name = "{name}": is for two classes, and the data have {outputs}; make data of two with '
            "`mpifed data ... --labels even-odd` or `--labels class:K`"
        ]


@dataclass(frozen=True)
class Hinge(Margins):
    """The support vector machine: loss max(0, 1 - t z)."""

    dual: ClassVar[Dual] = HingeDual()

    def of_shortfall(self, shortfall: Array) -> Array:
        """[..., s] itself."""
        return shortfall


@dataclass(frozen=True)
class SquaredHinge(Margins):
    """The support vector machine with a smooth loss, max(0, 1 - t z)^2, scikit-learn's "squared_hinge"."""

    dual: ClassVar[Dual] = SquaredHingeDual()

    def of_shortfall(self, shortfall: Array) -> Array:
        """[..., s] its square."""
        return shortfall * shortfall
