"""The network of SSCA: one fully connected hidden layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Gt, Le
from numpy.random import Generator

from mpifed.core.record import ABSENT, Array
from mpifed.hyperparameters import Weight
from mpifed.maths.arrays import sigmoid
from mpifed.maths.losses import LOSSES, SampleLoss
from mpifed.maths.objectives.form import Layer, Layers, LinearScores
from mpifed.maths.parameters import Parameters

Units: TypeAlias = Annotated[int, Gt(0), Le(10**6)]


class Output(NamedTuple):
    """The head of a network without biases."""

    second: Array  # [h, L]


class BiasedOutput(NamedTuple):
    """The head of a network with biases."""

    second: Array  # [h, L]
    hidden_bias: Array  # [h] added to the scores
    output_bias: Array  # [L]


def swish(z: Array) -> tuple[Array, Array]:
    """(g, S): the sigmoid g of z, and the swish S = z g."""
    gate = sigmoid(z)
    return gate, z * gate


def swish_slope(z: Array, gate: Array, active: Array, back: Array) -> Array:
    """The derivative with respect to z, given the derivative `back` with respect to the swish: S' = g (1 + z - S).

    `active` and `back` are overwritten: new arrays would not stay in the cache.
    """
    slope = np.subtract(z, active, out=active)
    slope += slope.dtype.type(1)
    slope *= gate
    back *= slope
    return back


@dataclass(frozen=True)
class MLP(LinearScores):
    """Multilayer perceptron: a hidden layer with swish, then softmax with cross-entropy, or logits of several labels.

    With `l2` it is the network of SSCA (27), (28), (30): J = `hidden`, lambda = `l2`; omega_1 is `first` transposed,
    omega_2 `head.second` transposed.
    # differs from the paper: `bias` adds biases to hidden units and outputs, as in `Linear`. They belong to the head,
    so that scores stay linear in the features, and are not penalized unless `penalize_bias` is set.
    """

    hidden: Units = 128
    """Hidden units."""
    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""
    loss_name: Literal["cross-entropy", "binary-cross-entropy"] = field(
        default="cross-entropy", kw_only=True, metadata={"key": "loss"}
    )
    """"cross-entropy" of classes, or "binary-cross-entropy" of several labels of a sample, 0 or 1: their mean."""

    @property
    def sample_loss(self) -> SampleLoss:
        return LOSSES[self.loss_name]

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """Weights uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010), and zero biases.

        At zero all gradients would vanish.
        """
        first, second = (
            rng.uniform(-limit, limit, shape).astype(dtype)
            for shape in ((features, self.hidden), (self.hidden, outputs))
            for limit in [np.sqrt(6.0 / sum(shape))]
        )
        if not self.bias:
            return Parameters(first, Output(second))
        return Parameters(first, BiasedOutput(second, np.zeros(self.hidden, dtype), np.zeros(outputs, dtype)))

    def layers(self, head: Output | BiasedOutput, scores: Array) -> tuple[Array, Layers]:
        z = scores + head.hidden_bias[..., None, :] if isinstance(head, BiasedOutput) else scores
        gate, active = swish(z)
        outputs = active @ head.second
        if isinstance(head, BiasedOutput):
            outputs += head.output_bias[..., None, :]

        def backward(slopes: Array) -> Iterator[Layer]:
            yield Layer(active, slopes)
            down = slopes @ head.second.swapaxes(-1, -2)
            yield Layer(ABSENT, swish_slope(z, gate, active, down))

        return outputs, backward
