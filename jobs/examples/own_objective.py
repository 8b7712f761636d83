"""An objective of your own: the Huber loss, for a regression that shrugs at outliers.

mpirun -n 4 mpifed run jobs/examples/own_objective.toml
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpifed.maths.objectives import Linear, Parameters, Slope


@dataclass(frozen=True)
class Huber(Linear):  # the fields are the keys of [model] in the job
    classifies: ClassVar[bool] = False  # y are real numbers
    delta: float = 1.0
    l2: float = 0.0

    def start(self, features, outputs, rng, dtype):
        return Parameters(first=np.zeros((features, 1), dtype), head=())

    def loss(self, head, scores, y):  # scores [..., s, 1], y [..., s] -> [..., s]
        residual = np.abs(scores[..., 0] - y)
        return np.where(residual <= self.delta, residual**2 / 2, self.delta * (residual - self.delta / 2))

    def slope(self, head, scores, y, weights):  # of the weighted sum of losses
        down = np.clip(scores - y[..., None], -self.delta, self.delta) * weights[..., None]
        return Slope(self.loss(head, scores, y), head=(), scores=down.astype(scores.dtype))

    def predict(self, head, scores):
        return scores[..., 0]
