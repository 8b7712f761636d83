"""A term of your own for a constraint: the rate of positives, a cap on how many are flagged.

With [model] name = "logistic", at most a tenth of all samples may be given to class 1; with `classes = [0]` it
is the rate of false positives that is capped:

    [[constraint]]
    name = "jobs.examples.own_constraint:PositiveRate"
    limit = 0.1

The score has no intercept: let the data be of `--scale minmax`, or have a column of ones, so that a low rate exists.
"""

from dataclasses import dataclass
from typing import ClassVar

from mpifed.core.record import Array, Record
from mpifed.maths.arrays import sigmoid
from mpifed.maths.objectives import Logistic, Objective, Slope
from mpifed.maths.terms import Sampled


@dataclass(frozen=True)
class PositiveRate(Sampled):  # the fields are the keys of [[constraint]] in the job; Sampled has `classes`
    nonnegative: ClassVar[bool] = True  # so that a limit <= 0 is refused

    # [..., s] of each sample; the constraint is their mean
    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        return sigmoid(scores[..., 0])  # the probability of class 1

    # of the weighted sum
    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        rate = self.loss(objective, head, scores, y)
        down = weights * rate * (1 - rate)
        return Slope(rate, head=(), scores=down[..., None].astype(scores.dtype))

    def check(self, objective: Objective, outputs: int) -> list[str]:  # what does not fit, in words
        wrong = super().check(objective, outputs)
        if not isinstance(objective, Logistic):
            wrong.append('PositiveRate: is for one score; take [model] name = "logistic"')
        return wrong
