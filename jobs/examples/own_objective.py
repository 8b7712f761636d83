"""An objective of your own: the Huber loss, for a regression that shrugs at outliers.

mpirun -n 4 mpifed run jobs/examples/own_objective.toml
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpifed.core.record import Array
from mpifed.maths.losses import SampleLoss
from mpifed.maths.objectives import Linear


@dataclass(frozen=True)
class HuberLoss(SampleLoss):
    classifies: ClassVar[bool] = False  # y are real numbers
    convex: ClassVar[bool] = True  # in z, by which lower bounds are known
    delta: float

    def value(self, z: Array, y: Array) -> Array:  # outputs z [..., s, 1], y [..., s] -> [..., s]
        residual: Array = np.abs(z[..., 0] - y)
        return np.where(residual <= self.delta, residual**2 / 2, self.delta * (residual - self.delta / 2))

    def slope(self, z: Array, y: Array) -> Array:  # of each sample's loss by its outputs: [..., s, 1]
        slope: Array = np.clip(z - y[..., None], -self.delta, self.delta)
        return slope


@dataclass(frozen=True)
class Huber(Linear):  # the fields, and those of Linear (l2, bias), are the keys of [model] in the job
    delta: float = 1.0

    @property
    def sample_loss(self) -> HuberLoss:
        return HuberLoss(self.delta)
