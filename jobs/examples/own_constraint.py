"""A term of your own for a constraint: the rate of positives, a cap on how many are flagged.

With [model] name = "logistic", at most a tenth of all samples may be given to class 1; with `classes = [0]` it
is the rate of false positives that is capped:

    [[constraint]]
    name = "jobs.examples.own_constraint:PositiveRate"
    limit = 0.1

The score has no intercept: let the data be of `--scale minmax`, or have a column of ones, so that a low rate exists.
"""

from dataclasses import dataclass

from mpifed.core.record import Array
from mpifed.maths.arrays import sigmoid
from mpifed.maths.losses import SampleLoss
from mpifed.maths.objectives import Logistic, Objective
from mpifed.maths.terms import OfOutputs


class Positive(SampleLoss):
    def value(self, z: Array, y: Array) -> Array:  # outputs z [..., s, 1] -> [..., s]; the constraint is their mean
        return sigmoid(z[..., 0])  # the probability of class 1

    def slope(self, z: Array, y: Array) -> Array:  # of each sample's value by its outputs
        slope: Array = sigmoid(z) * sigmoid(-z)
        return slope


@dataclass(frozen=True)
class PositiveRate(OfOutputs):  # its fields are the keys of [[constraint]] in the job: here `classes`
    sample_loss = Positive()

    def check(self, objective: Objective, outputs: int) -> list[str]:  # what does not fit, in words
        wrong = super().check(objective, outputs)
        if not isinstance(objective, Logistic):
            wrong.append('PositiveRate: is for one score; take [model] name = "logistic"')
        return wrong
