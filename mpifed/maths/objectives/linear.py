"""Models without a hidden layer: linear classifiers, and linear regression."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator

from mpifed.core.loops import softmax_residuals
from mpifed.core.protocols import Dual, Parameters, Slope
from mpifed.core.record import ABSENT, Array
from mpifed.maths.arrays import namespace, sigmoid, square_norms
from mpifed.maths.duals import LeastSquaresDual, LogisticDual
from mpifed.maths.kernels import device_cross_entropy, device_cross_entropy_slope
from mpifed.maths.objectives.form import LinearScores
from mpifed.maths.ranges import Weight


def cross_entropy(logits: Array, y: Array) -> Array:
    """[..., s] the cross-entropy of each sample, from logits [..., s, L]."""
    if namespace(logits) is not np:
        return device_cross_entropy(logits, y)
    power = np.array(logits.reshape(-1, logits.shape[-1]).T, order="C")  # NumPy is slow along a short last axis
    largest = power.max(axis=0)
    power -= largest
    np.exp(power, out=power)
    return _losses(logits, y, largest, power.sum(axis=0))


def cross_entropy_slope(logits: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """(loss [..., s], derivative of the weighted loss with respect to the logits [..., s, L])."""
    if namespace(logits) is not np:
        return device_cross_entropy_slope(logits, y, weights)
    residuals, largest, total = _residuals(logits, y, weights)
    slopes: Array = residuals.reshape(logits.shape)
    return _losses(logits, y, largest, total), slopes


def cross_entropy_derivative(logits: Array, y: Array, weights: Array) -> Array:
    """That of `cross_entropy_slope` alone, of arrays of NumPy."""
    slopes: Array = _residuals(logits, y, weights)[0].reshape(logits.shape)
    return slopes


def _residuals(logits: Array, y: Array, weights: Array) -> tuple[Array, Array, Array]:
    """The derivative of the weighted cross-entropy by the logits, and what its value needs, of all m samples.

    Returns
    -------
    slopes : [m, L] weights times (probabilities minus one-hot labels)
    largest, total : [m] the largest logit, and the sum of exponentials of all less that
    """
    rows = logits.reshape(-1, logits.shape[-1])
    largest = np.maximum.reduce(np.array(rows.T, order="C"))  # NumPy is slow along a short last axis
    slopes = np.subtract(rows, largest[:, None], order="C")
    np.exp(slopes, out=slopes)
    each = weights if weights.shape == y.shape else np.broadcast_to(weights, y.shape)
    return slopes, largest, softmax_residuals(slopes, y.reshape(-1), each.reshape(-1))


def _losses(logits: Array, y: Array, largest: Array, total: Array) -> Array:
    """[..., s] the cross-entropy."""
    loss = np.log(total)
    loss += largest
    loss -= logits.reshape(-1).take(_places(logits, y))
    losses: Array = loss.reshape(y.shape)
    return losses


def _places(logits: Array, y: Array) -> Array:
    """[number of samples] the flat index of each sample's class in the logits [..., s, L]."""
    at = namespace(logits).arange(0, logits.size, logits.shape[-1])
    at += y.reshape(-1)
    return at


class Bias(NamedTuple):
    """The head of a model with an intercept for each score."""

    bias: Array  # [h] added to the scores


Head = Bias | tuple[()]


@dataclass(frozen=True)
class OfScores(LinearScores):
    """The base of models without a hidden layer, which define their loss of the scores and its derivative.

    Intercepts, one for each score, are in the head. Where `bias` is None the job's algorithm decides; here None means
    no intercepts.
    """

    unpenalized: ClassVar[tuple[str, ...]] = ("bias",)
    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model: zeros, since the loss is convex."""
        h = self.width(outputs)
        return Parameters(np.zeros((features, h), dtype), Bias(np.zeros(h, dtype)) if self.bias else ())

    def width(self, outputs: int) -> int:
        """h, the number of scores."""
        return 1

    @abstractmethod
    def of_scores(self, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample, from scores [..., s, h] with intercepts added."""

    @abstractmethod
    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss [..., s], derivative of the weighted loss with respect to the scores [..., s, h])."""

    @abstractmethod
    def prediction(self, scores: Array) -> Array:
        """[..., s] the predicted class, or value, from scores with intercepts added."""

    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        return self.of_scores(_biased(head, scores), y)

    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """The derivative with respect to an intercept is the sum of those with respect to its score."""
        loss, slopes = self.slope_of_scores(_biased(head, scores), y, weights)
        return Slope(loss, self.head_sum(slopes) if isinstance(head, Bias) else (), slopes)

    def head_sum(self, slopes: Array) -> Bias:
        """The derivative with respect to the intercepts, from `slopes` [..., s, h] of each sample's weighted loss."""
        return Bias(slopes.sum(axis=-2))

    def predict(self, head: Head, scores: Array) -> Array:
        return self.prediction(_biased(head, scores))

    def class_scores(self, head: Head, scores: Array) -> Array:
        return _biased(head, scores)

    def head_squares(self, head: Head, scores: Array, y: Array, slopes: Array) -> Array:
        """[..., s] squared norms of the derivatives with respect to the scores, which are those of the intercepts."""
        return square_norms(slopes) if isinstance(head, Bias) else super().head_squares(head, scores, y, slopes)


def _biased(head: Head, scores: Array) -> Array:
    return scores + head.bias[..., None, :] if isinstance(head, Bias) else scores


@dataclass(frozen=True)
class PerClass(OfScores):
    """The base of classifiers with one score for each class.

    `nonconvex_penalty` is beta of (25) in the paper of `TrueClassLogistic`.
    """

    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""

    def width(self, outputs: int) -> int:
        return outputs

    def prediction(self, scores: Array) -> Array:
        """[..., s] the class of the largest score."""
        result: Array = scores.argmax(axis=-1)
        return result


@dataclass(frozen=True)
class Softmax(PerClass):
    """Multinomial logistic regression: the scores are the logits."""

    convex: ClassVar[bool] = True

    def of_scores(self, scores: Array, y: Array) -> Array:
        return cross_entropy(scores, y)

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss, weighted probabilities minus one-hot labels)."""
        return cross_entropy_slope(scores, y, weights)

    def _derivatives(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """As `Objective._derivatives`, without losses."""
        if namespace(scores) is not np or type(self) is not Softmax:  # but of a class of the user's
            return super()._derivatives(head, scores, y, weights)
        slopes = cross_entropy_derivative(_biased(head, scores), y, weights)
        return Slope(ABSENT, self.head_sum(slopes) if head else (), slopes)


@dataclass(frozen=True)
class OneVsRest(PerClass):
    """A logistic regression for each class against the rest: loss sum over k of log(1 + exp(-b_k z_k)).

    b_k is 1 for the sample's class and -1 for all others.
    """

    convex: ClassVar[bool] = True

    def of_scores(self, scores: Array, y: Array) -> Array:
        """[..., s] sum over the classes of the logistic loss."""
        xp = namespace(scores)
        against = scores.copy() if scores.flags.c_contiguous else xp.ascontiguousarray(scores)
        against.reshape(-1)[_places(scores, y)] *= -1
        result: Array = xp.logaddexp(scores.dtype.type(0), against).sum(axis=-1)
        return result

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss, weighted probabilities of each class against the rest minus one-hot labels)."""
        slopes = sigmoid(scores)
        slopes.reshape(-1)[_places(scores, y)] -= 1
        slopes *= weights[..., None].astype(slopes.dtype)
        return self.of_scores(scores, y), slopes


@dataclass(frozen=True)
class TrueClassLogistic(PerClass):
    """The loss (25) of FedPDM-DP as printed, log(1 + exp(-z_y)): only the score of the sample's class enters.

    Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek: "Privacy-Preserving Federated Primal-Dual Learning for
    Non-convex Problems with Non-smooth Regularization" (IEEE MLSP 2023); its beta is `nonconvex_penalty`.
    It is degenerate: no class is ever penalized, so that all scores may grow together. Intercepts alone reach a tiny
    loss at 10 % accuracy with ten classes, and accuracy may decrease with the loss. It serves to reproduce the paper;
    otherwise use `Softmax`, or `OneVsRest`, which is (25) with b = 1 for the sample's class and -1 for all others.
    """

    convex: ClassVar[bool] = True

    def of_scores(self, scores: Array, y: Array) -> Array:
        """[..., s] logistic loss of the score of the sample's class."""
        true_scores = scores.reshape(-1)[_places(scores, y)].reshape(y.shape)
        return namespace(scores).logaddexp(scores.dtype.type(0), -true_scores)

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss, weighted probability of the sample's class minus 1, zeros for other classes)."""
        at, slopes = _places(scores, y), namespace(scores).zeros(scores.shape, scores.dtype)
        residuals = sigmoid(scores.reshape(-1)[at])
        residuals -= 1
        slopes.reshape(-1)[at] = residuals
        slopes *= weights[..., None].astype(slopes.dtype)
        return self.of_scores(scores, y), slopes


@dataclass(frozen=True)
class Logistic(OfScores):
    """Logistic regression of two classes, 0 and 1, with a single score z: loss log(1 + exp(-(2y - 1) z)).

    Softmax with two classes has twice the parameters for the same predictions, and a different optimum with a penalty.
    """

    convex: ClassVar[bool] = True
    dual: ClassVar[Dual] = LogisticDual()
    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""

    def of_scores(self, scores: Array, y: Array) -> Array:
        z = scores[..., 0]
        return namespace(z).logaddexp(z.dtype.type(0), (1 - 2 * y.astype(z.dtype)) * z)

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        """(loss, weighted probability of class 1 minus y)."""
        slopes = sigmoid(scores)
        slopes -= y[..., None].astype(scores.dtype)
        slopes *= weights[..., None].astype(scores.dtype)
        return self.of_scores(scores, y), slopes

    def prediction(self, scores: Array) -> Array:
        return (scores[..., 0] > 0).astype(np.int64)

    def check(self, features: int, outputs: int) -> list[str]:
        if outputs == 2:
            return []
        return [
            f'[model] name = "logistic": is for two classes, and the data have {outputs}; take name = "softmax", '
            "or data of two classes"
        ]


@dataclass(frozen=True)
class LeastSquares(OfScores):
    """Linear regression: loss (x'w - y)^2 / 2."""

    classifies: ClassVar[bool] = False
    convex: ClassVar[bool] = True
    dual: ClassVar[Dual] = LeastSquaresDual()

    def of_scores(self, scores: Array, y: Array) -> Array:
        return (scores[..., 0] - y) ** 2 / 2

    def slope_of_scores(self, scores: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        residual = scores - y[..., None].astype(scores.dtype)
        return residual[..., 0] ** 2 / 2, residual * weights[..., None].astype(scores.dtype)

    def prediction(self, scores: Array) -> Array:
        return scores[..., 0]
