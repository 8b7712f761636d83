"""Objectives: a loss of scores that are linear in the features.

That form is the seam between horizontal and vertical federations: clients with other columns of the same rows add
their *scores*, clients with other rows add their *pulls*. All derivatives are written by hand; tests hold them
against finite differences. Shapes: n clients, s samples, p features, h scores, L outputs; leading axes broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Gt
from numpy.random import Generator

from mpifed.core.record import Array, Record, leaves
from mpifed.maths.arrays import namespace, product, sigmoid, softmax, transposed_product


class Parameters(NamedTuple):
    """A model: the weights of the features, and whatever turns scores into predictions."""

    first: Array  # [p, h]
    head: Record


class Slope(NamedTuple):
    """Derivatives of a weighted sum of losses."""

    loss: Array  # [..., s] the unweighted loss of each sample
    head: Record  # the head's shapes, each with the leading axes
    scores: Array  # [..., s, h] of each sample's weighted loss


class Objective(Protocol):
    """What is minimized: mean loss + penalty * (sum of squares of all parameters)."""

    penalty: float
    classifies: ClassVar[bool]  # whether y are classes 0 to outputs - 1; otherwise real targets, and one output

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """A model to begin with."""

    def scores(self, first: Array, X: Any) -> Array:
        """[..., s, h] linear in the features."""

    def loss(self, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample."""

    def slope(self, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of sum over samples of weights [..., s] times the loss."""

    def pull(self, X: Any, slopes: Array) -> Array:
        """[..., p, h] the derivative by the feature weights, from that by the scores."""

    def predict(self, head: Record, scores: Array) -> Array:
        """[..., s] the predicted class, or value."""

    def check(self, outputs: int) -> list[str]:
        """What does not fit to data with so many outputs, one message each."""


class Linear:
    """What objectives share unless they say otherwise: scores = X @ first, and any number of classes as targets."""

    classifies: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True  # whether no loss is below zero: a limit <= 0 can then not be met

    def scores(self, first: Array, X: Any) -> Array:
        """[..., s, h] = X @ first."""
        return product(X, first)

    def pull(self, X: Any, slopes: Array) -> Array:
        """[..., p, h] = X' @ slopes."""
        return transposed_product(X, slopes)

    def check(self, outputs: int) -> list[str]:
        """It fits."""
        return []


def gradient(objective: Objective, model: Parameters, X: Any, y: Array, weights: Array) -> Parameters:
    """The derivative of sum over samples of weights [..., s] times the loss; no penalty in it."""
    slope = objective.slope(model.head, objective.scores(model.first, X), y, weights)
    return Parameters(objective.pull(X, slope.scores), slope.head)


def squares(model: Parameters) -> float:
    """||w||^2, the sum of squares of all parameters, in float64."""
    return sum(float((leaf.astype("f8") ** 2).sum()) for _, leaf in leaves(model))


def penalty(objective: Objective, model: Parameters) -> float:
    """penalty * ||w||^2, in float64."""
    return objective.penalty * squares(model)


def glorot(rng: Generator, inputs: int, outputs: int, dtype: str) -> Array:
    """[inputs, outputs] uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010)."""
    limit = np.sqrt(6.0 / (inputs + outputs))
    return rng.uniform(-limit, limit, size=(inputs, outputs)).astype(dtype)


def _cross_entropy(logits: Array, y: Array) -> tuple[Array, Array, Array]:
    """(loss [..., s], probabilities [..., s, L], where each row's class stands in them flattened)."""
    probabilities, normalizer = softmax(logits)
    at = namespace(logits).arange(0, logits.size, logits.shape[-1])
    at += y.reshape(-1)
    return normalizer - logits.reshape(-1)[at].reshape(y.shape), probabilities, at


def _cross_entropy_slope(logits: Array, y: Array, weights: Array) -> tuple[Array, Array]:
    """(loss [..., s], derivative of the weighted loss by the logits [..., s, L])."""
    loss, slopes, at = _cross_entropy(logits, y)
    slopes.reshape(-1)[at] -= 1  # of the array that softmax has just made: a view
    slopes *= weights[..., None].astype(slopes.dtype)
    return loss, slopes


class Output(NamedTuple):
    """The head of a network."""

    second: Array  # [h, L]


class BiasedOutput(NamedTuple):
    """The head of a network with biases."""

    second: Array  # [h, L]
    hidden_bias: Array  # [h] added to the scores
    output_bias: Array  # [L]


@dataclass(frozen=True)
class Network(Linear):
    """Three-layer network with swish and softmax, cross-entropy and an l2 penalty: SSCA (27), (28), (30).

    In the paper J = `hidden`, lambda = `penalty`; omega_1 is `first` transposed, omega_2 `head.second` transposed.
    # differs from the paper: `bias` adds biases to hidden cells and outputs. They are parameters like all others,
    # in the penalty too, and belong to the head, so that scores stay linear in the features.
    """

    hidden: Annotated[int, Gt(0)] = 128
    bias: bool = False
    penalty: Annotated[float, Ge(0)] = 0.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Glorot-uniform weights, since at zero every gradient of this network vanishes; the biases are zero."""
        first = glorot(rng, features, self.hidden, dtype)
        second = glorot(rng, self.hidden, outputs, dtype)
        if not self.bias:
            return Parameters(first, Output(second))
        return Parameters(first, BiasedOutput(second, np.zeros(self.hidden, dtype), np.zeros(outputs, dtype)))

    def loss(self, head: Output | BiasedOutput, scores: Array, y: Array) -> Array:
        """[..., s] cross-entropy."""
        return _cross_entropy(self._logits(head, scores), y)[0]

    def slope(self, head: Output | BiasedOutput, scores: Array, y: Array, weights: Array) -> Slope:
        """Backpropagation to the scores; the swish S(z) = z g(z) has S' = g (1 + z - S)."""
        z = _hidden(head, scores)
        gate = sigmoid(z)
        active = z * gate
        loss, logits = _cross_entropy_slope(_output(head, active), y, weights)
        second = active.swapaxes(-1, -2) @ logits
        down = z - active
        down += down.dtype.type(1)
        down *= gate
        down *= logits @ head.second.swapaxes(-1, -2)
        if isinstance(head, BiasedOutput):
            return Slope(loss, BiasedOutput(second, down.sum(axis=-2), logits.sum(axis=-2)), down)
        return Slope(loss, Output(second), down)

    def predict(self, head: Output | BiasedOutput, scores: Array) -> Array:
        """[..., s] the most probable class."""
        return self._logits(head, scores).argmax(axis=-1)

    def _logits(self, head: Output | BiasedOutput, scores: Array) -> Array:
        z = _hidden(head, scores)
        return _output(head, z * sigmoid(z))


def _hidden(head: Output | BiasedOutput, scores: Array) -> Array:
    """[..., s, h] what goes into the hidden cells."""
    return scores + head.hidden_bias[..., None, :] if isinstance(head, BiasedOutput) else scores


def _output(head: Output | BiasedOutput, active: Array) -> Array:
    """[..., s, L] the logits."""
    logits = active @ head.second
    if isinstance(head, BiasedOutput):
        logits += head.output_bias[..., None, :]
    return logits


@dataclass(frozen=True)
class Softmax(Linear):
    """Multinomial logistic regression: the scores are the logits."""

    penalty: Annotated[float, Ge(0)] = 0.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Zeros: the problem is convex."""
        return Parameters(np.zeros((features, outputs), dtype=dtype), ())

    def loss(self, head: tuple[()], scores: Array, y: Array) -> Array:
        """[..., s] cross-entropy."""
        return _cross_entropy(scores, y)[0]

    def slope(self, head: tuple[()], scores: Array, y: Array, weights: Array) -> Slope:
        """Probabilities minus one-hot labels."""
        loss, slopes = _cross_entropy_slope(scores, y, weights)
        return Slope(loss, (), slopes)

    def predict(self, head: tuple[()], scores: Array) -> Array:
        """[..., s] the most probable class."""
        return scores.argmax(axis=-1)


@dataclass(frozen=True)
class Logistic(Linear):
    """Logistic regression of two classes, 0 and 1, by one score z: loss log(1 + exp(-(2y - 1) z)).

    Softmax with two classes has twice the parameters for the same predictions, and with a penalty another optimum.
    """

    penalty: Annotated[float, Ge(0)] = 0.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Zeros: the problem is convex."""
        return Parameters(np.zeros((features, 1), dtype=dtype), ())

    def loss(self, head: tuple[()], scores: Array, y: Array) -> Array:
        """[..., s] cross-entropy."""
        z = scores[..., 0]
        return namespace(z).logaddexp(z.dtype.type(0), (1 - 2 * y.astype(z.dtype)) * z)

    def slope(self, head: tuple[()], scores: Array, y: Array, weights: Array) -> Slope:
        """The probability of class 1 minus y."""
        slopes = sigmoid(scores)
        slopes -= y[..., None].astype(scores.dtype)
        slopes *= weights[..., None].astype(scores.dtype)
        return Slope(self.loss(head, scores, y), (), slopes)

    def predict(self, head: tuple[()], scores: Array) -> Array:
        """[..., s] the more probable class."""
        return (scores[..., 0] > 0).astype(np.int64)

    def check(self, outputs: int) -> list[str]:
        """Two classes alone."""
        if outputs == 2:
            return []
        return [
            f'[objective] name = "logistic": is for two classes, and the data have {outputs}; take name = "softmax", '
            "or data of two classes"
        ]


@dataclass(frozen=True)
class LeastSquares(Linear):
    """Linear regression: loss (x'w - y)^2 / 2."""

    classifies: ClassVar[bool] = False
    penalty: Annotated[float, Ge(0)] = 0.0

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Zeros: the problem is convex."""
        return Parameters(np.zeros((features, 1), dtype=dtype), ())

    def loss(self, head: tuple[()], scores: Array, y: Array) -> Array:
        """[..., s] half the squared residual."""
        return (scores[..., 0] - y) ** 2 / 2

    def slope(self, head: tuple[()], scores: Array, y: Array, weights: Array) -> Slope:
        """Weighted residuals."""
        residual = scores - y[..., None].astype(scores.dtype)
        return Slope(residual[..., 0] ** 2 / 2, (), residual * weights[..., None].astype(scores.dtype))

    def predict(self, head: tuple[()], scores: Array) -> Array:
        """[..., s] the predicted value."""
        return scores[..., 0]


OBJECTIVES: dict[str, type] = {
    "network": Network,
    "softmax": Softmax,
    "logistic": Logistic,
    "least-squares": LeastSquares,
}
