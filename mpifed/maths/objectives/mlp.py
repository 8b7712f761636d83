"""The network of SSCA: one fully connected hidden layer."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Gt, Le
from numpy.random import Generator

from mpifed.core.protocols import Features, Parameters, Slope
from mpifed.core.record import ABSENT, Array, map_leaves
from mpifed.maths.arrays import common_product, namespace, product, square_norms, transposed_product
from mpifed.maths.kernels import swish, swish_slope
from mpifed.maths.objectives.form import LinearScores
from mpifed.maths.objectives.linear import cross_entropy, cross_entropy_derivative, cross_entropy_slope
from mpifed.maths.ranges import Weight

Units: TypeAlias = Annotated[int, Gt(0), Le(10**6)]


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


MLPHead: TypeAlias = Output | BiasedOutput
# [..., s, h] inputs z of the hidden units, their sigmoids, and their values, the swish of z
_Hidden: TypeAlias = tuple[Array, Array, Array]


class WeightedLater(NamedTuple):
    """A pass through the head whose samples are scaled when the norms of their gradients are known."""

    slopes: Array  # [..., s, h] the derivative of each sample's weighted loss by its scores
    head_squares: Array  # [..., s] squared norms of the weighted derivatives by the head
    widest: Array  # [..., s] squared norms of the hidden values
    steepest: Array  # [..., s] squared norms of the derivatives by the outputs
    # (factors [..., s], which samples count, others' numbers are not read; None: all) -> `Slope.head`, `Slope.scores`;
    # to be called once
    weighted: Callable[[Array, Array | None], tuple[MLPHead, Array]]


@dataclass(frozen=True)
class MLP(LinearScores):
    """Multilayer perceptron: a hidden layer with swish, then softmax with cross-entropy.

    With `l2` it is the network of SSCA (27), (28), (30): J = `hidden`, lambda = `l2`; omega_1 is `first` transposed,
    omega_2 `head.second` transposed.
    # differs from the paper: `bias` adds biases to hidden units and outputs, as in `OfScores`. They belong to the head,
    so that scores stay linear in the features, and are not penalized unless `penalize_bias` is set.
    """

    unpenalized: ClassVar[tuple[str, ...]] = ("hidden_bias", "output_bias")
    hidden: Units = 128
    """Hidden units."""
    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model: Glorot-uniform weights, since all gradients vanish at zero, and zero biases."""
        weights = glorot(rng, features, self.hidden, dtype), glorot(rng, self.hidden, outputs, dtype)
        if not self.bias:
            return Parameters(weights[0], Output(weights[1]))
        return Parameters(weights[0], BiasedOutput(weights[1], np.zeros(self.hidden, dtype), np.zeros(outputs, dtype)))

    def loss(self, head: MLPHead, scores: Array, y: Array) -> Array:
        return cross_entropy(self.class_scores(head, scores), y)

    def slope(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives by backpropagation."""
        hidden = _hidden(head, scores)
        loss, down = cross_entropy_slope(_outputs(head, hidden[-1]), y, weights)
        return Slope(loss, *_backward(head, hidden, down))

    def _derivatives(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> Slope:
        """As `Objective._derivatives`, without losses."""
        if namespace(scores) is not np or not self.weighs_later:
            return super()._derivatives(head, scores, y, weights)
        hidden = _hidden(head, scores)
        down = cross_entropy_derivative(_outputs(head, hidden[-1]), y, weights)
        return Slope(ABSENT, *_backward(head, hidden, down))

    def gradients(
        self, model: Parameters, X: Features, y: Array, weights: Array, few: int
    ) -> Iterator[tuple[slice, Parameters]]:
        """As `Objective.gradients`: large products a few clients at a time."""
        if type(X) is not np.ndarray or not self._as_here:
            yield from super().gradients(model, X, y, weights, few)
            return
        _, of_head, down = self._derivatives(model.head, product(X, model.first), y, weights)
        changes = np.empty((min(few, len(X)), X.shape[-1], down.shape[-1]), down.dtype)
        for start in range(0, len(X), few):
            at = slice(start, min(start + few, len(X)))
            change = transposed_product(X[at], down[at], changes[: at.stop - start])
            yield at, Parameters(change, map_leaves(operator.itemgetter(at), of_head))

    def class_scores(self, head: MLPHead, scores: Array) -> Array:
        """[..., s, L] the outputs."""
        return _outputs(head, _hidden(head, scores)[-1])

    def predict(self, head: MLPHead, scores: Array) -> Array:
        """[..., s] the most probable class."""
        classes: Array = self.class_scores(head, scores).argmax(axis=-1)
        return classes

    @property
    def weighs_later(self) -> bool:
        """Whether `weighted_later` stands for `slope`, which a class of the user's may have of its own."""
        return type(self).slope is MLP.slope

    def weighted_later(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> WeightedLater:
        """`slope` for samples that are scaled by the norms of their gradients, from a single pass, for clipping.

        What is scaled is each derivative by a layer's outputs, whose norm is known, and not the loss: where the terms
        of a derivative cancel, those of a scaled loss may leave other roundings, which large inputs of the layer would
        make a gradient of any norm. With factors of 1 the bits are those of `slope`.
        """
        z, gate, active = _hidden(head, scores)
        down = cross_entropy_slope(_outputs(head, active), y, weights)[1]
        slopes = swish_slope(z, gate, active.copy(), common_product(down, head.second.swapaxes(-1, -2)))
        widest, steepest = square_norms(active), square_norms(down)
        total = widest * steepest
        if isinstance(head, BiasedOutput):
            total = total + square_norms(slopes) + steepest

        def weighted(factors: Array, known: Array | None) -> tuple[MLPHead, Array]:
            def scaled(slopes: Array) -> Array:
                slopes *= factors[..., None].astype(slopes.dtype, copy=False)
                return slopes if known is None else namespace(slopes).where(known[..., None], slopes, 0)

            by_outputs = scaled(down)
            values = active if known is None else namespace(active).where(known[..., None], active, 0)
            second = transposed_product(values, by_outputs)
            by_scores = scaled(slopes)
            return _head(head, second, by_scores, by_outputs), by_scores

        return WeightedLater(slopes, total, widest, steepest, weighted)


def _hidden(head: MLPHead, scores: Array) -> _Hidden:
    z = scores + head.hidden_bias[..., None, :] if isinstance(head, BiasedOutput) else scores
    return z, *swish(z)


def _outputs(head: MLPHead, active: Array) -> Array:
    """[..., s, L] the logits, from the hidden values [..., s, h]."""
    outputs = common_product(active, head.second)
    if isinstance(head, BiasedOutput):
        outputs += head.output_bias[..., None, :]
    return outputs


def _backward(head: MLPHead, hidden: _Hidden, down: Array) -> tuple[MLPHead, Array]:
    """(the derivative by the head, that by the scores) from that by the outputs, `down`; overwrites hidden values."""
    z, gate, active = hidden
    second = transposed_product(active, down)
    slopes = swish_slope(z, gate, active, common_product(down, head.second.swapaxes(-1, -2)))
    return _head(head, second, slopes, down), slopes


def _head(like: MLPHead, second: Array, by_scores: Array, by_outputs: Array) -> MLPHead:
    """The derivative by the head, from that by `second` and those by scores and outputs, whose sums are of biases."""
    if isinstance(like, Output):
        return Output(second)
    return BiasedOutput(second, by_scores.sum(axis=-2), by_outputs.sum(axis=-2))
