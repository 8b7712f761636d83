"""The form of objectives: a loss of each sample's outputs, and the outputs, a function of the model and the features.

Clients that hold different rows need the gradient, and any differentiable function will do. A first layer that is
linear in the features serves other splits as well: clients that hold different columns of the same rows add its
*scores*. Shapes: n clients, s samples, p features, h scores, L outputs; leading axes broadcast.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from numpy.random import Generator

from mpifed.core.record import ABSENT, AnyRecord, Array, Record, bare_leaves, leaves, map_leaves
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Features
from mpifed.hyperparameters import MadeByKeywords, Weight
from mpifed.maths.arrays import assign, product, transposed_product
from mpifed.maths.duals import Dual
from mpifed.maths.losses import SampleLoss
from mpifed.maths.parameters import Backward, Head, Parameters, Slope


@dataclass(frozen=True)
class Objective(MadeByKeywords, ABC):
    """A model and the objective it minimizes: mean loss + l2 * (sum of squares of all parameters but intercepts).

    A subclass is a frozen dataclass whose fields are keys of `[model]`, beside `l2`. It must define `sample_loss`,
    `start` and `forward`, which `Linear`, `LinearScores` and `NeuralNetwork` have in part.

    Attributes
    ----------
    convex : whether each loss is a convex function of the model: lower bounds rely on it
    """

    l2: Weight = field(default=0.0, kw_only=True)
    """Adds l2 * ||w||^2 without intercepts to the mean loss; PyTorch's weight_decay is 2 l2."""

    convex: ClassVar[bool] = False

    @property
    @abstractmethod
    def sample_loss(self) -> SampleLoss:
        """The loss of the outputs: an attribute of the class, or a property that reads its fields."""

    @property
    def classifies(self) -> bool:
        """Whether y are classes 0 to outputs - 1."""
        return self.sample_loss.classifies

    @property
    def task(self) -> str:
        """What y are: "classification", "regression" of real targets, or "multilabel", several labels of a sample."""
        if self.sample_loss.multilabel:
            return "multilabel"
        return "classification" if self.classifies else "regression"

    @property
    def nonnegative(self) -> bool:
        """Whether every loss is nonnegative: a limit <= 0 then cannot be met."""
        return self.sample_loss.nonnegative

    @property
    def dual(self) -> Dual | None:
        """The dual of the loss, which algorithms on the dual problem need; None if there is none."""
        return self.sample_loss.dual

    @property
    def nonconvex_penalty(self) -> float:
        """beta, the factor of the sum of w^2 / (1 + w^2) over the same parameters, a second penalty."""
        return 0.0

    @property
    def hidden(self) -> int | None:
        """The number of hidden units of a network with one hidden layer; None for other models."""
        return None

    def of_shape(self, shape: tuple[int, ...] | None) -> Objective:
        """The objective for data whose samples have this shape, if that matters to it; None: they are vectors."""
        return self

    @abstractmethod
    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model; its random numbers come from `rng` only."""

    def pass_keys(self, now: Round, step: int, clients: Array, secret: bool = False) -> tuple[Array, ...]:
        """The last arguments of a pass in training, which without them is one of evaluation.

        Of networks, which may draw random numbers, they are an integer for each of `clients` [n] in a local step; of
        other models nothing. `secret`: drawn as the noise of privacy is.
        """
        return ()

    @abstractmethod
    def forward(self, model: Parameters, X: Features) -> tuple[Array, Backward]:
        """[..., s, h] the scores of the samples X [..., s, p], and the way back from a slope at them to the gradient.

        Leaves of `model` are common to all clients, or each has the leading axes of X.
        """

    def scores_of(self, model: Parameters, X: Features) -> Array:
        """[..., s, h] the scores alone."""
        return self.forward(model, X)[0]

    def apply_head(self, head: Head, scores: Array) -> tuple[Array, Callable[[Array], Slope]]:
        """[..., s, L] the outputs, and the way back from the derivative by them, once; by default the scores."""
        return scores, lambda slopes: Slope(ABSENT, slopes)

    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample."""
        return self.sample_loss.value(self.class_scores(head, scores), y)

    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of the sum over samples of weights [..., s] times the loss."""
        outputs, backward = self.apply_head(head, scores)
        return backward(self.sample_loss.weighted(outputs, y, weights))

    def predict(self, head: Head, scores: Array) -> Array:
        """[..., s] the predicted class, or value."""
        return self.sample_loss.predict(self.class_scores(head, scores))

    def class_scores(self, head: Head, scores: Array) -> Array:
        """[..., s, L] the outputs, which the metric auc reads: one of each class, of two also that of class 1 alone."""
        return self.apply_head(head, scores)[0]

    def gradient(
        self, model: Parameters, X: Features, y: Array, weights: Array, *keys: Array, out: Parameters | None = None
    ) -> Parameters:
        """The gradient of the sum over samples of weights [..., s] times the loss, without penalties.

        Parameters
        ----------
        keys : what `pass_keys` gives, in training
        out : where it goes, bit for bit; its leaves [n, *shape] may be views
        """
        scores, backward = self.forward(model, X, *keys)
        return put(out, backward(self.slope(model.head, scores, y, weights)))

    def alone(self) -> Objective:
        """Another one, for a single record's pass under privacy, of which this one keeps nothing."""
        return copy.deepcopy(self)

    def gradients(
        self, model: Parameters, X: Features, y: Array, weights: Array, *keys: Array
    ) -> Callable[[slice, Parameters], Parameters]:
        """(some of the clients, `out` of them) -> their `gradient` at a model common to all."""
        return lambda at, out: self.gradient(model, X[at], y[at], weights[at], *[key[at] for key in keys], out=out)

    def in_pieces(
        self, compute: Callable[[Parameters, Features, Array, Array], AnyRecord],
        model: Parameters, X: Features, y: Array, weights: Array,
    ) -> AnyRecord:  # fmt: skip
        """`compute(model, X, y, weights)`, whose leaves [n, ...] are sums over each client's samples.

        A model may pass one client and a few samples on at a time, to bound memory: what shapes alone decide.
        """
        return compute(model, X, y, weights)

    def penalized(self, model: Parameters) -> Parameters:
        """A record of the model's structure: True for parameters that are penalized, False for intercepts."""
        return map_leaves(lambda leaf: True, model)

    def undrawn_parameter(self, features: int, outputs: int) -> str:
        """The first parameter that the job's seed does not draw, and that so may have been trained; "" if unknown."""
        return ""

    def check(self, features: int, outputs: int) -> list[str]:
        """Messages on what does not fit data with so many features and outputs."""
        if not self.sample_loss.binary or outputs == 2:
            return []
        return [
            f'[model] name: {type(self).__name__} is for two classes, and the data have {outputs}; take "softmax", or '
            "make data of two with `mpifed data ... --labels even-odd` or `--labels class:K`"
        ]


class Layer(NamedTuple):
    """What a fully connected layer's gradient is the product of."""

    inputs: Array  # [..., s, i]; of the first layer ABSENT: the features
    slopes: Array  # [..., s, o] the derivative by its outputs


Layers: TypeAlias = Callable[[Array], Iterable[Layer]]  # from the derivative by the outputs [..., s, L]


class LinearScores(Objective):
    """The base of fully connected networks: columns, cells, dual variables, sparse data and clipping rest on it.

    The first layer's scores are X times `first`. The head, a NamedTuple or (), has the weights [i, o] of all further
    layers, in order, and then the intercepts [o] of every layer, in order, if there are any; their names have "bias". A
    subclass defines `start` and `layers`.
    """

    @property
    def penalize_bias(self) -> bool:
        """Whether the penalties include intercepts."""
        return False

    @abstractmethod
    def layers(self, head: Head, scores: Array) -> tuple[Array, Layers]:
        """[..., s, L] the outputs, and the way back, once: layer by layer from the last.

        The next layer may take the place of the inputs.
        """

    def apply_head(self, head: Head, scores: Array) -> tuple[Array, Callable[[Array], Slope]]:
        outputs, backward = self.layers(head, scores)
        return outputs, lambda slopes: head_slope(head, backward(slopes))

    def forward(self, model: Parameters, X: Features) -> tuple[Array, Backward]:
        return self.scores(model.first, X), lambda slope: Parameters(self.pull(X, slope.scores), slope.head)

    def gradient(
        self, model: Parameters, X: Features, y: Array, weights: Array, *keys: Array, out: Parameters | None = None
    ) -> Parameters:
        slope = self.slope(model.head, self.scores(model.first, X), y, weights)
        return put(out, Parameters(self.pull(X, slope.scores, out and out.first), slope.head))

    def gradients(
        self, model: Parameters, X: Features, y: Array, weights: Array, *keys: Array
    ) -> Callable[[slice, Parameters], Parameters]:
        """As of any objective; but for the last product all clients at once, since small ones take longer."""
        slope = self.slope(model.head, self.scores(model.first, X), y, weights)

        def of_some(at: slice, out: Parameters) -> Parameters:
            for there, leaf in zip(out.head, slope.head, strict=True):
                there[...] = leaf[at]
            return put(out, Parameters(self.pull(X[at], slope.scores[at], out.first), out.head))

        return of_some

    def scores(self, first: Array, X: Features, out: Array | None = None) -> Array:
        """[..., s, h] X @ first; in `out`, contiguous, if given."""
        return product(X, first, out)

    def pull(self, X: Features, slopes: Array, out: Array | None = None) -> Array:
        """[..., p, h] X' @ slopes: the derivative by `first`, from that by scores [..., s, h]; in `out` if dense."""
        return transposed_product(X, slopes, out)

    def penalized(self, model: Parameters) -> Parameters:
        names = (name for name, _ in leaves(model))
        return map_leaves(lambda leaf: "bias" not in next(names) or self.penalize_bias, model)


def put(out: Parameters | None, made: Parameters) -> Parameters:
    """A gradient, in the arrays of `out` if there is one."""
    if out is None:
        return made
    assign(out, made)
    return out


def head_slope(head: Head, layers: Iterable[Layer]) -> Slope:
    """The derivative by the head, and by the scores, of layers from the last to the first."""
    parts, slopes = list[Array](), list[Array]()
    for inputs, down in layers:
        slopes.insert(0, down)
        if inputs is not ABSENT:
            parts.insert(0, transposed_product(inputs, down))
    if len(head) > len(parts):
        parts += [down.sum(axis=-2) for down in slopes]
    return Slope(type(head)(*parts), slopes[0])


def layout_of(objective: Objective, model: Parameters) -> Layout:
    """Where the leaves of a model, without leading axes, stand in a vector."""
    shapes = {name: leaf.shape for name, leaf in leaves(model)}
    counted = zip(shapes, bare_leaves(objective.penalized(model)), strict=True)
    return Layout(shapes, free=[name for name, counts in counted if not counts])


def squares(model: Record) -> float:
    """||w||^2, the sum of squares of all parameters, intercepts included, in float64."""
    return sum(_square(leaf) for leaf in bare_leaves(model))


def _square(leaf: Array) -> float:
    return float((leaf.astype("f8") ** 2).sum())


def penalty(objective: Objective, model: Parameters) -> float:
    """l2 * ||w||^2 + nonconvex_penalty * sum of w^2 / (1 + w^2), without intercepts, in float64."""
    each = zip(bare_leaves(model), bare_leaves(objective.penalized(model)), strict=True)
    weights = [leaf for leaf, counts in each if counts]
    total, beta = objective.l2 * sum(map(_square, weights)), objective.nonconvex_penalty
    for leaf in weights if beta else ():
        square = leaf.astype("f8") ** 2
        total += beta * float((square / (1 + square)).sum())
    return total


def penalty_gradient(objective: Objective, model: Parameters) -> Parameters:
    """The gradient of `penalty`, in the dtype of the parameters: zeros for intercepts."""

    def slope_of(w: Array, counts: bool) -> Array:
        slope: Array = w * w.dtype.type(2 * objective.l2 if counts else 0)
        if counts and objective.nonconvex_penalty:
            slope += concave_gradient(objective, w)
        return slope

    return map_leaves(slope_of, model, objective.penalized(model))


def concave_gradient(objective: Objective, w: Array) -> Array:
    """beta * 2 w / (1 + w^2)^2, the derivative of beta * sum of w^2 / (1 + w^2), in the dtype of `w`.

    The second derivative, beta * (2 - 6 w^2) / (1 + w^2)^3, lies between -beta / 2 and 2 beta.
    """
    inverse = 1 / (1 + w * w)
    slope: Array = w * w.dtype.type(2 * objective.nonconvex_penalty)
    slope *= inverse
    slope *= inverse
    return slope
