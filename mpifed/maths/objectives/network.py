"""A network of one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Gt, Le
from numpy.random import Generator

from mpifed.core.record import Array
from mpifed.maths.arrays import common_product, namespace, square_norms, transposed_product
from mpifed.maths.kernels import swish, swish_slope
from mpifed.maths.objectives.form import Linear, Parameters, Slope
from mpifed.maths.objectives.linear import cross_entropy, cross_entropy_slope
from mpifed.maths.ranges import Weight


def glorot(rng: Generator, inputs: int, outputs: int, dtype: str) -> Array:
    """[inputs, outputs] uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010)."""
    limit = np.sqrt(6.0 / (inputs + outputs))
    return rng.uniform(-limit, limit, size=(inputs, outputs)).astype(dtype)


class Output(NamedTuple):
    """The head of a network."""

    second: Array  # [h, L]


class BiasedOutput(NamedTuple):
    """The head of a network with biases."""

    second: Array  # [h, L]
    hidden_bias: Array  # [h] added to the scores
    output_bias: Array  # [L]


@dataclass(frozen=True)
class MLP(Linear):
    """Three-layer network with swish and softmax, cross-entropy and an l2 penalty: SSCA (27), (28), (30).

    In the paper J = `hidden`, lambda = `penalty`; omega_1 is `first` transposed, omega_2 `head.second` transposed.
    # differs from the paper: `bias` adds biases to hidden cells and outputs. They are parameters like all others,
    # in the penalty too, and belong to the head, so that scores stay linear in the features.
    """

    hidden: Annotated[int, Gt(0), Le(10**6)] = 128
    bias: bool = False
    nonconvex_penalty: Weight = 0.0  # as that of `Softmax`

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Glorot-uniform weights, since at zero every gradient of this network vanishes; the biases are zero."""
        first = glorot(rng, features, self.hidden, dtype)
        second = glorot(rng, self.hidden, outputs, dtype)
        if not self.bias:
            return Parameters(first, Output(second))
        return Parameters(first, BiasedOutput(second, np.zeros(self.hidden, dtype), np.zeros(outputs, dtype)))

    def loss(self, head: Output | BiasedOutput, scores: Array, y: Array) -> Array:
        """[..., s] cross-entropy."""
        return cross_entropy(self._logits(head, scores), y)

    def slope(self, head: Output | BiasedOutput, scores: Array, y: Array, weights: Array) -> Slope:
        """Backpropagation to the scores; the swish S(z) = z g(z) has S' = g (1 + z - S)."""
        z = _hidden(head, scores)
        gate, active = swish(z)
        loss, logits = cross_entropy_slope(_output(head, active), y, weights)
        second = transposed_product(active, logits)
        down = swish_slope(z, gate, active, common_product(logits, head.second.swapaxes(-1, -2)))
        if isinstance(head, BiasedOutput):
            return Slope(loss, BiasedOutput(second, down.sum(axis=-2), logits.sum(axis=-2)), down)
        return Slope(loss, Output(second), down)

    def predict(self, head: Output | BiasedOutput, scores: Array) -> Array:
        """[..., s] the most probable class."""
        return self._logits(head, scores).argmax(axis=-1)

    def head_squares(self, head: Output | BiasedOutput, scores: Array, y: Array, slopes: Array) -> Array:
        """By `second` the derivative is the product of hidden cells and slopes by the logits."""
        z = _hidden(head, scores)
        _, active = swish(z)
        logits = square_norms(cross_entropy_slope(_output(head, active), y, namespace(y).ones(y.shape))[1])
        found = square_norms(active) * logits
        return found + square_norms(slopes) + logits if isinstance(head, BiasedOutput) else found

    def _logits(self, head: Output | BiasedOutput, scores: Array) -> Array:
        z = _hidden(head, scores)
        return _output(head, swish(z)[1])


def _hidden(head: Output | BiasedOutput, scores: Array) -> Array:
    """[..., s, h] what goes into the hidden cells."""
    return scores + head.hidden_bias[..., None, :] if isinstance(head, BiasedOutput) else scores


def _output(head: Output | BiasedOutput, active: Array) -> Array:
    """[..., s, L] the logits."""
    logits = common_product(active, head.second)
    if isinstance(head, BiasedOutput):
        logits += head.output_bias[..., None, :]
    return logits
