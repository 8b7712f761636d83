"""Neural networks of fully connected layers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Gt, Le
from numpy.random import Generator

from mpifed.core.loops import descended
from mpifed.core.protocols import Features, LocalStep, Parameters, Slope
from mpifed.core.record import Array, NamedArrays, map_leaves, named_arrays
from mpifed.maths.activations import ACTIVATIONS
from mpifed.maths.arrays import common_product, namespace, product, square_norms, transposed_product
from mpifed.maths.objectives.form import LinearScores
from mpifed.maths.objectives.linear import (
    cross_entropy,
    cross_entropy_derivative,
    cross_entropy_slope,
    squared_error,
    squared_error_slope,
)
from mpifed.maths.ranges import Weight

Units: TypeAlias = Annotated[int, Gt(0), Le(10**6)]


def glorot(rng: Generator, inputs: int, outputs: int, dtype: str) -> Array:
    """[inputs, outputs] uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio, AISTATS 2010)."""
    limit = np.sqrt(6.0 / (inputs + outputs))
    return rng.uniform(-limit, limit, size=(inputs, outputs)).astype(dtype)


class Output(NamedTuple):
    """The head of a network with one hidden layer, without biases."""

    second: Array  # [h, L]


class BiasedOutput(NamedTuple):
    """The head of a network with one hidden layer, with biases."""

    second: Array  # [h, L]
    hidden_bias: Array  # [h] added to the scores
    output_bias: Array  # [L]


# NamedArrays: of several hidden layers, `layer1.bias`, `layer2.weight`, `layer2.bias`, ..., `output.weight`,
# `output.bias`
MLPHead: TypeAlias = Output | BiasedOutput | NamedArrays
# [..., s, h] inputs of a hidden layer's units, what `mpifed.maths.activations` calls gate, and their values
_Hidden: TypeAlias = tuple[Array, Array, Array]


class WeightedLater(NamedTuple):
    """A pass through the head whose samples are scaled when the norms of their gradients are known."""

    slopes: Array  # [..., s, h] the derivative of each sample's weighted loss by its scores
    head_squares: Array  # [..., s] squared norms of the weighted derivatives by the head
    widest: Array  # [..., s] the largest squared norm of a hidden layer's values
    steepest: Array  # [..., s] the largest squared norm of a derivative by a layer's outputs, without `slopes`
    # (factors [..., s], which samples count, others' numbers are not read; None: all) -> `Slope.head`, `Slope.scores`;
    # to be called once
    weighted: Callable[[Array, Array | None], tuple[MLPHead, Array]]


@dataclass(frozen=True)
class MLP(LinearScores):
    """Multilayer perceptron: hidden layers, then softmax with cross-entropy; by default one layer with swish.

    With that and `l2` it is the network of SSCA (27), (28), (30): J = `hidden`, lambda = `l2`; omega_1 is `first`
    transposed, omega_2 `head.second` transposed. Several hidden layers have the parameters `first`,
    `head.layer2.weight`, ..., `head.output.weight`, each [inputs, outputs], and `head.layer1.bias`, ...
    # differs from the paper: `bias` adds biases to hidden units and outputs, as in `OfScores`. They belong to the head,
    so that scores stay linear in the features, and are not penalized unless `penalize_bias` is set.
    # differs from the paper: `loss = "squared-error"` is for real targets: one output z, and loss (z - y)^2 / 2.
    """

    unpenalized: ClassVar[tuple[str, ...]] = ("hidden_bias", "output_bias")
    hidden: Units | tuple[Units, ...] = 128
    """Hidden units; a list has those of each of several layers, as [200, 200]."""
    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""
    loss_name: Literal["cross-entropy", "squared-error"] = field(default="cross-entropy", metadata={"key": "loss"})
    """cross-entropy of classes; squared-error: (z - y)^2 / 2 of real targets."""
    activation: Literal["swish", "relu", "tanh", "gelu"] = field(default="swish", kw_only=True)
    """Function of each hidden unit: swish, z / (1 + exp(-z)), which PyTorch calls SiLU; relu; tanh; gelu, exactly, by
    the error function."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""

    @property
    def classifies(self) -> bool:  # type: ignore[override]  # the job says it
        return self.loss_name == "cross-entropy"

    @property
    def widths(self) -> tuple[int, ...]:
        """The units of each hidden layer."""
        return (self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden)

    def check(self, features: int, outputs: int) -> list[str]:
        if self.widths:
            return []
        return ['[model] hidden = []: lists no layer; give the units of each, or a model without, as "softmax"']

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model: Glorot-uniform weights, since all gradients vanish at zero, and zero biases."""
        sizes = (features, *self.widths, outputs)
        first, *weights = (glorot(rng, *pair, dtype) for pair in pairwise(sizes))
        biases = [np.zeros(size, dtype) for size in sizes[1:]] if self.bias else []
        kind = _deep(len(weights), bool(self.bias)) if len(weights) > 1 else BiasedOutput if self.bias else Output
        return Parameters(first, _head_of(kind, weights, biases))

    def loss(self, head: MLPHead, scores: Array, y: Array) -> Array:
        outputs = self._outputs(*_layers_of(head), scores)
        return cross_entropy(outputs, y) if self.classifies else squared_error(outputs, y)

    def slope(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives by backpropagation."""
        layers, biases = _layers_of(head)
        hidden: list[_Hidden] = []
        loss, down = self._slope_of_outputs(self._outputs(layers, biases, scores, hidden), y, weights)
        return Slope(loss, *self._backward(head, hidden, down))

    def _backward(self, head: MLPHead, hidden: list[_Hidden], down: Array) -> tuple[MLPHead, Array]:
        """(the derivative by the head, that by the scores) from that by the outputs; `hidden` is emptied."""
        layers, biases = _layers_of(head)
        of_layers, of_biases, through = [], [], ACTIVATIONS[self.activation].slope
        for after in reversed(layers):
            z, gate, active = hidden.pop()
            if biases:
                of_biases.append(down.sum(axis=-2))
            of_layers.append(transposed_product(active, down))
            down = through(z, gate, active, common_product(down, after.swapaxes(-1, -2)))
        if biases:
            of_biases.append(down.sum(axis=-2))
        return _head_of(type(head), of_layers[::-1], of_biases[::-1]), down

    def gradient(self, model: Parameters, X: Features, y: Array, weights: Array) -> Parameters:
        """As `Objective.gradient`, without losses."""
        if not self._by_numpy(X):
            return super().gradient(model, X, y, weights)
        of_head, down = self._derivatives(model.head, product(X, model.first), y, weights)
        return Parameters(transposed_product(X, down), of_head)

    def gradients(
        self, model: Parameters, X: Features, y: Array, weights: Array, few: int
    ) -> Iterator[tuple[slice, Parameters]]:
        """As `Objective.gradients`: large products a few clients at a time."""
        if isinstance(X, tuple) or not self._by_numpy(X) or not self._as_here("gradient"):
            yield from super().gradients(model, X, y, weights, few)
            return
        of_head, down = self._derivatives(model.head, product(X, model.first), y, weights)
        changes = np.empty((min(few, len(X)), X.shape[-1], down.shape[-1]), down.dtype)
        for start in range(0, len(X), few):
            at = slice(start, min(start + few, len(X)))
            change = changes[: at.stop - start]
            np.matmul(X[at].swapaxes(-1, -2), down[at], out=change)
            yield at, Parameters(change, map_leaves(operator.itemgetter(at), of_head))

    def local_step(self, keep: Sequence[float]) -> LocalStep:
        """As `Objective.local_step`, in arrays that serve all steps."""
        by_gradient = super().local_step(keep)
        if not self._as_here("gradient"):
            return by_gradient
        z, change = np.empty((2, 0))

        def step(model: Parameters, X: Features, y: Array, weights: Array) -> None:
            nonlocal z, change
            if isinstance(X, tuple) or not self._by_numpy(X):
                by_gradient(model, X, y, weights)
                return
            first = model.first
            if change.shape != first.shape or z.shape[:2] != y.shape:
                z, change = np.empty((*y.shape, first.shape[-1]), first.dtype), np.empty_like(first)
            of_head, down = self._derivatives(model.head, np.matmul(X, first, out=z), y, weights)
            np.matmul(X.swapaxes(-1, -2), down, out=change)
            for leaf, by_leaf, part in zip((first, *model.head), (change, *of_head), keep, strict=True):
                descended(leaf, by_leaf, part)

        return step

    def _derivatives(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> tuple[MLPHead, Array]:
        """(the derivative by the head, that by the scores) of NumPy arrays."""
        hidden: list[_Hidden] = []
        outputs = self._outputs(*_layers_of(head), scores, hidden)
        if self.classifies:
            return self._backward(head, hidden, cross_entropy_derivative(outputs, y, weights))
        return self._backward(head, hidden, squared_error_slope(outputs, y, weights)[1])

    def _by_numpy(self, X: Features) -> bool:
        """Whether a gradient is by `_derivatives`."""
        return type(X) is np.ndarray and self._as_here("scores", "forward", "pull", "slope")

    def _as_here(self, *names: str) -> bool:
        """Whether methods are those of `MLP`: those of a class of the user's may differ."""
        return all(getattr(type(self), name) is getattr(MLP, name) for name in names)

    def class_scores(self, head: MLPHead, scores: Array) -> Array:
        """[..., s, L] the outputs."""
        return self._outputs(*_layers_of(head), scores)

    def predict(self, head: MLPHead, scores: Array) -> Array:
        """[..., s] the most probable class, or the value."""
        outputs = self.class_scores(head, scores)
        return outputs.argmax(axis=-1) if self.classifies else outputs[..., 0]

    @property
    def weighs_later(self) -> bool:
        """Whether `weighted_later` stands for `slope`."""
        return self._as_here("slope")

    def weighted_later(self, head: MLPHead, scores: Array, y: Array, weights: Array) -> WeightedLater:
        """`slope` for samples that are scaled by the norms of their gradients, from a single pass, for clipping.

        What is scaled is each derivative by a layer's outputs, whose norm is known, and not the loss: where the terms
        of a derivative cancel, those of a scaled loss may leave other roundings, which large inputs of the layer would
        make a gradient of any norm. With factors of 1 the bits are those of `slope`.
        """
        layers, biases = _layers_of(head)
        hidden: list[_Hidden] = []
        down = self._slope_of_outputs(self._outputs(layers, biases, scores, hidden), y, weights)[1]
        squares, of_biases, widest, kept = [], [], [], list[tuple[Array, Array]]()  # (values, derivative by outputs)
        through = ACTIVATIONS[self.activation].slope
        for after in reversed(layers):
            z, gate, active = hidden.pop()
            of_biases.append(square_norms(down))
            widest.append(square_norms(active))
            squares.append(widest[-1] * of_biases[-1])
            kept.append((active, down))
            down = through(z, gate, active.copy(), common_product(down, after.swapaxes(-1, -2)))
        total = reduce(operator.add, [*squares, square_norms(down), *reversed(of_biases)] if biases else squares)
        maximum = namespace(y).maximum

        def weighted(factors: Array, known: Array | None) -> tuple[MLPHead, Array]:
            def scaled(slopes: Array) -> Array:
                slopes *= factors[..., None].astype(slopes.dtype, copy=False)
                return slopes if known is None else namespace(slopes).where(known[..., None], slopes, 0)

            of_layers, of_biases = [], []
            for active, slopes in kept:
                slopes = scaled(slopes)
                if known is not None:
                    active = namespace(active).where(known[..., None], active, 0)
                if biases:
                    of_biases.append(slopes.sum(axis=-2))
                of_layers.append(transposed_product(active, slopes))
            slopes = scaled(down)
            if biases:
                of_biases.append(slopes.sum(axis=-2))
            return _head_of(type(head), of_layers[::-1], of_biases[::-1]), slopes

        return WeightedLater(down, total, reduce(maximum, widest), reduce(maximum, of_biases), weighted)

    def penalized(self, model: Parameters) -> Parameters:
        counted = super().penalized(model)
        if self.penalize_bias or not isinstance(model.head, NamedArrays):
            return counted
        return counted._replace(head=type(model.head)(*(not name.endswith(".bias") for name in model.head._fields)))

    def _outputs(
        self, layers: Sequence[Array], biases: Sequence[Array], scores: Array, hidden: list[_Hidden] | None = None
    ) -> Array:
        """[..., s, L] the logits, or the predicted value, L = 1; each hidden layer's pass is appended to `hidden`."""
        values = ACTIVATIONS[self.activation].values
        z = scores + biases[0][..., None, :] if biases else scores
        for number, after in enumerate(layers, 1):
            gate, active = values(z)
            if hidden is not None:
                hidden.append((z, gate, active))
            del gate  # of a large batch, the memory serves again
            z = common_product(active, after)
            if biases:
                z += biases[number][..., None, :]
        return z

    def _slope_of_outputs(self, outputs: Array, y: Array, weights: Array) -> tuple[Array, Array]:
        return (cross_entropy_slope if self.classifies else squared_error_slope)(outputs, y, weights)


def _deep(depth: int, bias: bool) -> type[NamedArrays]:
    """The class of heads of networks with so many hidden layers, two at least."""
    names = [f"layer{number}" for number in range(1, depth + 1)] + ["output"]
    fields = [f"{name}.{part}" for name in names for part in ("weight", "bias")[: 1 + bias]]
    return named_arrays(tuple(fields[1:]))  # without the weights of the first, which are not in the head


def _layers_of(head: MLPHead) -> tuple[Sequence[Array], Sequence[Array]]:
    """(weights of every layer but the first, [h, next h]; biases of every layer, or none) in a head."""
    if isinstance(head, BiasedOutput):
        return head[:1], head[1:]
    if isinstance(head, Output):
        return head, ()
    return (head[1::2], head[::2]) if head._fields[0] == "layer1.bias" else (head, ())


def _head_of(kind: type[MLPHead], layers: Sequence[Array], biases: Sequence[Array]) -> MLPHead:
    """The head of these, or the derivatives by them."""
    if not issubclass(kind, NamedArrays):
        return kind(*layers, *biases)
    pairs = zip(layers, biases[1:], strict=True) if biases else zip(layers, strict=True)
    return kind(*biases[:1], *(part for pair in pairs for part in pair))
