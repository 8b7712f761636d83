"""Losses: a number for each sample, of the model's outputs and the sample's class or target. Models hold one each.

Shapes: s samples, L outputs; leading axes broadcast. Outputs z are [..., s, L], of NumPy or CuPy, and y [..., s] are
classes 0 to L - 1, or real targets, or `vectors` of several. Losses of two classes, 0 and 1, have a single output z,
and the margin t z with t = 2y - 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, final

import numpy as np

from mpifed.core.loops import softmax_residuals
from mpifed.core.record import Array, namespace
from mpifed.data.block import of_vectors
from mpifed.maths.arrays import sigmoid
from mpifed.maths.duals import Dual, HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual


class SampleLoss(ABC):
    """The loss of each sample, which a model or a term has as its `sample_loss`.

    Attributes
    ----------
    classifies : whether y are classes; otherwise they are real targets, or several labels
    binary : whether there are two classes, of a single output
    multilabel : whether y are several labels of each sample, 0 or 1
    nonnegative : whether every loss is nonnegative: a limit <= 0 then cannot be met
    convex : whether it is convex in the outputs: lower bounds rely on it
    dual : its dual, which algorithms on the dual problem need; None if there is none
    """

    classifies: ClassVar[bool] = True
    binary: ClassVar[bool] = False
    multilabel: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = False
    dual: ClassVar[Dual | None] = None

    @abstractmethod
    def value(self, z: Array, y: Array) -> Array:
        """[..., s] the losses."""

    @abstractmethod
    def slope(self, z: Array, y: Array) -> Array:
        """[..., s, L] the derivative of each sample's loss by its outputs, a new array."""

    def weighted(self, z: Array, y: Array, weights: Array) -> Array:
        """`slope` times the samples' weights [..., s], in the dtype of the outputs."""
        slopes = self.slope(z, y)
        slopes *= weights[..., None].astype(slopes.dtype, copy=False)
        return slopes.astype(z.dtype, copy=False)

    def probabilities(self, z: Array) -> Array | None:
        """[..., s, classes], or of several labels each [..., s, L]; None where outputs say none. z is of float64."""
        return None

    def predict(self, z: Array) -> Array:
        """[..., s] the class of the largest output, of one alone 1 where it is positive; or the values."""
        several = z.shape[-1] > 1
        if not self.classifies:
            return z if several else z[..., 0]
        classes: Array = z.argmax(axis=-1) if several else (z[..., 0] > 0).astype(np.int64)
        return classes


@final
class CrossEntropy(SampleLoss):
    """Of the softmax of the outputs, the logits; of which `weighted` is one pass."""

    convex = True

    def value(self, z: Array, y: Array) -> Array:
        power = z.reshape(-1, z.shape[-1]).T.copy()  # NumPy is slow along a short last axis
        largest = power.max(axis=0)
        power -= largest
        losses: Array = np.log(np.exp(power, out=power).sum(axis=0))
        losses += largest
        losses -= z.reshape(-1).take(_places(z, y))
        losses = losses.reshape(y.shape)
        return losses

    def slope(self, z: Array, y: Array) -> Array:
        """Probabilities minus one-hot classes."""
        return self.weighted(z, y, np.ones_like(z[..., 0]))

    def weighted(self, z: Array, y: Array, weights: Array) -> Array:
        rows = z.reshape(-1, z.shape[-1])
        slopes: Array = namespace(z).ascontiguousarray(rows - rows.T.copy().max(axis=0)[:, None])
        each = weights if weights.shape == y.shape else np.broadcast_to(weights, y.shape)
        softmax_residuals(np.exp(slopes, out=slopes), y.reshape(-1), each.reshape(-1))
        slopes = slopes.reshape(z.shape)
        return slopes

    def probabilities(self, z: Array) -> Array:
        power: Array = np.exp(z - z.max(axis=-1, keepdims=True))
        power /= power.sum(axis=-1, keepdims=True)
        return power


class TrueClass(SampleLoss):
    """log(1 + exp(-z_y)), of the output of the sample's class alone."""

    convex = True

    def value(self, z: Array, y: Array) -> Array:
        own = z.reshape(-1)[_places(z, y)].reshape(y.shape)
        return namespace(z).logaddexp(z.dtype.type(0), -own)

    def slope(self, z: Array, y: Array) -> Array:
        at, slopes = _places(z, y), namespace(z).zeros(z.shape, z.dtype)
        slopes.reshape(-1)[at] = sigmoid(z.reshape(-1)[at]) - 1
        return slopes


class LogisticLoss(SampleLoss):
    """log(1 + exp(-t z))."""

    binary, convex, dual = True, True, LogisticDual()

    def value(self, z: Array, y: Array) -> Array:
        z = z[..., 0]
        return namespace(z).logaddexp(z.dtype.type(0), (1 - 2 * y.astype(z.dtype)) * z)

    def slope(self, z: Array, y: Array) -> Array:
        """The probability of class 1, minus y."""
        slopes: Array = sigmoid(z) - y[..., None].astype(z.dtype)
        return slopes

    def probabilities(self, z: Array) -> Array:
        return sigmoid(np.concatenate([-z, z], axis=-1))


class SquaredError(SampleLoss):
    """(z - y)^2 / 2, of several targets their mean."""

    classifies, convex, dual = False, True, LeastSquaresDual()

    def value(self, z: Array, y: Array) -> Array:
        losses: Array = ((z - of_vectors(y)) ** 2).mean(axis=-1) / 2
        return losses

    def slope(self, z: Array, y: Array) -> Array:
        slopes: Array = (z - of_vectors(y).astype(z.dtype)) / z.shape[-1]
        return slopes


class BinaryCrossEntropy(SampleLoss):
    """The mean over labels y [..., s, L], 0 or 1, of log(1 + exp(-t z)): each label has an output, its logit."""

    classifies, multilabel, convex = False, True, True

    def value(self, z: Array, y: Array) -> Array:
        losses: Array = namespace(z).logaddexp(z.dtype.type(0), self._signs(z, y) * z).mean(axis=-1)
        return losses

    def slope(self, z: Array, y: Array) -> Array:
        """The probabilities minus the labels, over their number."""
        against = self._signs(z, y)
        slopes: Array = against * sigmoid(against * z) / z.dtype.type(z.shape[-1])
        return slopes

    def predict(self, z: Array) -> Array:
        """[..., s, L] 1 where the output is positive."""
        labels: Array = (z > 0).astype(np.int64)
        return labels

    def probabilities(self, z: Array) -> Array:
        return sigmoid(z)

    @staticmethod
    def _signs(z: Array, y: Array) -> Array:
        """[..., s, L] -t, where t = 2y - 1 of each label."""
        signs: Array = (1 - 2 * of_vectors(y)).astype(z.dtype)
        return signs


class OfMargin(SampleLoss):
    """The base of losses of how far the margin is below 1."""

    binary, convex = True, True
    dual: ClassVar[Dual]

    def shortfall(self, z: Array, y: Array) -> Array:
        """[..., s] max(0, 1 - t z)."""
        z = z[..., 0]
        return namespace(z).maximum(1 - (2 * y.astype(z.dtype) - 1) * z, 0)

    def slope(self, z: Array, y: Array) -> Array:
        """At a kink 0, the shortest subgradient."""
        return -self.dual.toward(z[..., 0], y)[..., None]


class HingeLoss(OfMargin):
    """max(0, 1 - t z)."""

    dual = HingeDual()

    def value(self, z: Array, y: Array) -> Array:
        return self.shortfall(z, y)


class SquaredHingeLoss(OfMargin):
    """max(0, 1 - t z)^2."""

    dual = SquaredHingeDual()

    def value(self, z: Array, y: Array) -> Array:
        return self.shortfall(z, y) ** 2


def _places(z: Array, y: Array) -> Array:
    """[number of samples] where in all outputs those of the samples' classes are."""
    return namespace(z).arange(0, z.size, z.shape[-1]) + y.reshape(-1)


LOSSES: dict[str, SampleLoss] = {
    "cross-entropy": CrossEntropy(),
    "binary-cross-entropy": BinaryCrossEntropy(),
    "mse": SquaredError(),
}  # of networks
