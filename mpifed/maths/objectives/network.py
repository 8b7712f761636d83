"""Neural networks with one hidden layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from annotated_types import Gt, Le
from numpy.random import Generator

from mpifed.core.protocols import Parameters, Slope
from mpifed.core.record import Array
from mpifed.maths.arrays import common_product, namespace, square_norms, transposed_product
from mpifed.maths.kernels import swish, swish_slope
from mpifed.maths.objectives.form import Linear
from mpifed.maths.objectives.linear import (
    cross_entropy,
    cross_entropy_slope,
    squared_error,
    squared_error_slope,
)
from mpifed.maths.ranges import Weight


def glorot(rng: Generator, inputs: int, outputs: int, dtype: str) -> Array:
    """[inputs, outputs] uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010)."""
    limit = np.sqrt(6.0 / (inputs + outputs))
    return rng.uniform(-limit, limit, size=(inputs, outputs)).astype(dtype)


class Output(NamedTuple):
    """The head of a network without biases."""

    second: Array  # [h, L]


class BiasedOutput(NamedTuple):
    """The head of a network with biases."""

    second: Array  # [h, L]
    hidden_bias: Array  # [h] added to the scores
    output_bias: Array  # [L]


@dataclass(frozen=True)
class MLP(Linear):
    """Three-layer network with swish, softmax and cross-entropy, and an l2 penalty: SSCA (27), (28), (30).

    In the paper J = `hidden`, lambda = `l2`; omega_1 is `first` transposed, omega_2 `head.second` transposed.
    # differs from the paper: `bias` adds biases to hidden units and outputs, as in `OfScores`. They belong to the head,
    so that scores stay linear in the features, and are not penalized unless `penalize_bias` is set.
    # differs from the paper: `loss = "squared-error"` is for real targets: one output z, and loss (z - y)^2 / 2.
    """

    unpenalized: ClassVar[tuple[str, ...]] = ("hidden_bias", "output_bias")
    hidden: Annotated[int, Gt(0), Le(10**6)] = 128
    """Hidden units."""
    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""
    loss_name: Literal["cross-entropy", "squared-error"] = field(default="cross-entropy", metadata={"key": "loss"})
    """cross-entropy of classes; squared-error: (z - y)^2 / 2 of real targets."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""

    @property
    def classifies(self) -> bool:  # type: ignore[override]  # the job says it
        return self.loss_name == "cross-entropy"

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model: Glorot-uniform weights, since all gradients vanish at zero, and zero biases."""
        first = glorot(rng, features, self.hidden, dtype)
        second = glorot(rng, self.hidden, outputs, dtype)
        if not self.bias:
            return Parameters(first, Output(second))
        return Parameters(first, BiasedOutput(second, np.zeros(self.hidden, dtype), np.zeros(outputs, dtype)))

    def loss(self, head: Output | BiasedOutput, scores: Array, y: Array) -> Array:
        outputs = self._outputs(head, scores)
        return cross_entropy(outputs, y) if self.classifies else squared_error(outputs, y)

    def slope(self, head: Output | BiasedOutput, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives by backpropagation; the swish S(z) = z g(z) has S' = g (1 + z - S)."""
        z = _hidden(head, scores)
        gate, active = swish(z)
        loss, outputs = self._slope_of_outputs(_output(head, active), y, weights)
        second = transposed_product(active, outputs)
        down = swish_slope(z, gate, active, common_product(outputs, head.second.swapaxes(-1, -2)))
        if isinstance(head, BiasedOutput):
            return Slope(loss, BiasedOutput(second, down.sum(axis=-2), outputs.sum(axis=-2)), down)
        return Slope(loss, Output(second), down)

    def predict(self, head: Output | BiasedOutput, scores: Array) -> Array:
        """[..., s] the most probable class, or the value."""
        outputs = self._outputs(head, scores)
        return outputs.argmax(axis=-1) if self.classifies else outputs[..., 0]

    def head_squares(self, head: Output | BiasedOutput, scores: Array, y: Array, slopes: Array) -> Array:
        """[..., s] squared norms; the derivative by `second` is activations times output derivatives."""
        z = _hidden(head, scores)
        _, active = swish(z)
        output_slopes = self._slope_of_outputs(_output(head, active), y, namespace(y).ones(y.shape))[1]
        outputs = square_norms(output_slopes)
        of_second = square_norms(active) * outputs
        return of_second + square_norms(slopes) + outputs if isinstance(head, BiasedOutput) else of_second

    def _outputs(self, head: Output | BiasedOutput, scores: Array) -> Array:
        z = _hidden(head, scores)
        return _output(head, swish(z)[1])

    def _slope_of_outputs(self, outputs: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        return (cross_entropy_slope if self.classifies else squared_error_slope)(outputs, y, weights)


def _hidden(head: Output | BiasedOutput, scores: Array) -> Array:
    """[..., s, h] the inputs of the hidden units."""
    return scores + head.hidden_bias[..., None, :] if isinstance(head, BiasedOutput) else scores


def _output(head: Output | BiasedOutput, active: Array) -> Array:
    """[..., s, L] the logits, or the predicted value, L = 1."""
    logits = common_product(active, head.second)
    if isinstance(head, BiasedOutput):
        logits += head.output_bias[..., None, :]
    return logits
