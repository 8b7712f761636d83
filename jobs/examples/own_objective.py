"""An objective of your own: the Huber loss, for a regression that shrugs at outliers.

mpirun -n 4 mpifed run jobs/examples/own_objective.toml
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from mpifed.core.record import Array
from mpifed.maths.objectives import LinearScores, Parameters, Slope


@dataclass(frozen=True)
class Huber(LinearScores):  # the fields, and `l2`, are the keys of [model] in the job
    classifies: ClassVar[bool] = False  # y are real numbers
    delta: float = 1.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        return Parameters(first=np.zeros((features, 1), dtype), head=())

    def loss(self, head: tuple[()], scores: Array, y: Array) -> Array:  # scores [..., s, 1], y [..., s] -> [..., s]
        residual: Array = np.abs(scores[..., 0] - y)
        return np.where(residual <= self.delta, residual**2 / 2, self.delta * (residual - self.delta / 2))

    def slope(self, head: tuple[()], scores: Array, y: Array, weights: Array) -> Slope:  # of the weighted sum of losses
        down = np.clip(scores - y[..., None], -self.delta, self.delta) * weights[..., None]
        return Slope(self.loss(head, scores, y), head=(), scores=down.astype(scores.dtype))

    def predict(self, head: tuple[()], scores: Array) -> Array:
        return scores[..., 0]
