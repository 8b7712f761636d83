"""The form of objectives: a loss of each sample's scores, and the scores, a function of the model and the features.

Clients that hold different rows need the gradient, and any differentiable function will do. Scores that are linear in
the features serve other splits as well: clients that hold different columns of the same rows add their *scores*.
Shapes: n clients, s samples, p features, h scores, L outputs; leading axes broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from numpy.random import Generator

from mpifed.core.nearest import MadeByKeywords
from mpifed.core.protocols import Backward, Dual, Features, Head, Model, Parameters, Slope
from mpifed.core.record import AnyRecord, Array, Record, assign, bare_leaves, leaves, map_leaves
from mpifed.core.vector import Layout
from mpifed.maths.arrays import namespace, product, transposed_product
from mpifed.maths.ranges import Weight


@dataclass(frozen=True)
class Objective(MadeByKeywords, ABC):
    """A model and the objective it minimizes: mean loss + l2 * (sum of squares of all parameters but intercepts).

    A subclass is a frozen dataclass whose fields are keys of `[model]`, beside `l2`. It must define `start`, `forward`,
    `loss`, `slope` and `predict`; `LinearScores` has `forward`.

    Attributes
    ----------
    classifies : whether y are classes 0 to outputs - 1; otherwise y are real targets, and there is a single output
    nonnegative : whether every loss is nonnegative: a limit <= 0 then cannot be met
    convex : whether each loss is a convex function of the model: lower bounds rely on it
    stochastic : whether training draws random numbers for each sample, as dropout does: from the seeds that then stand
        behind its features, see `mpifed.core.row_seeds`; without them a pass is that of evaluation
    dual : the dual of the loss, which algorithms on the dual problem need; None if there is none
    """

    l2: Weight = field(default=0.0, kw_only=True)
    """Adds l2 * ||w||^2 without intercepts to the mean loss; PyTorch's weight_decay is 2 l2."""

    classifies: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False
    dual: ClassVar[Dual | None] = None

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

    @abstractmethod
    def forward(self, model: Parameters, X: Features) -> tuple[Array, Backward]:
        """[..., s, h] the scores of the samples X [..., s, p], and the way back from a slope at them to the gradient.

        Leaves of `model` are common to all clients, or each has the leading axes of X.
        """

    def scores_of(self, model: Parameters, X: Features) -> Array:
        """[..., s, h] the scores alone."""
        return self.forward(model, X)[0]

    @abstractmethod
    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample."""

    @abstractmethod
    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of the sum over samples of weights [..., s] times the loss."""

    @abstractmethod
    def predict(self, head: Head, scores: Array) -> Array:
        """[..., s] the predicted class, or value."""

    def class_scores(self, head: Head, scores: Array) -> Array:
        """[..., s, L] what `predict` compares: a score of each class, of two also [..., s, 1] that of class 1.

        The metric auc reads it. The default is the scores.
        """
        return scores

    def gradient(self, model: Parameters, X: Features, y: Array, weights: Array) -> Parameters:
        """The gradient of the sum over samples of weights [..., s] times the loss, without penalties."""
        scores, backward = self.forward(model, X)
        return backward(self._derivatives(model.head, scores, y, weights))

    def _derivatives(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """`slope`, whose losses may be absent."""
        return self.slope(head, scores, y, weights)

    def gradients(
        self, model: Parameters, X: Features, y: Array, weights: Array, few: int
    ) -> Iterator[tuple[slice, Parameters]]:
        """The clients' parts of `gradient`, bit for bit, with their positions; the next ones may take their place.

        Parameters
        ----------
        few : as many clients at a time, where the model can compute them so
        """
        yield slice(0, len(y)), self.gradient(model, X, y, weights)

    def put_gradient(self, model: Parameters, X: Features, y: Array, weights: Array, out: Parameters) -> None:
        """Put `gradient`, bit for bit, into `out`, whose leaves [n, *shape] may be views."""
        assign(out, self.gradient(model, X, y, weights))

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

    def check(self, features: int, outputs: int) -> list[str]:
        """Messages on what does not fit data with so many features and outputs."""
        return []


class LinearScores(Objective):
    """The base of objectives whose scores are X times `first`: columns, cells, dual variables and sparse data need it.

    A subclass must define `start`, `loss`, `slope` and `predict`.

    Attributes
    ----------
    unpenalized : the fields of the head that are intercepts, which penalties omit
    """

    unpenalized: ClassVar[tuple[str, ...]] = ()

    @property
    def penalize_bias(self) -> bool:
        """Whether the penalties include intercepts."""
        return False

    def forward(self, model: Parameters, X: Features) -> tuple[Array, Backward]:
        """[..., s, h] X @ first, and the way back by X'."""
        return self.scores(model.first, X), lambda slope: Parameters(self.pull(X, slope.scores), slope.head)

    @cached_property
    def _as_here(self) -> bool:
        """Whether scores and the way back are those of this class: of a class of the user's they may differ."""
        names = "forward", "gradient", "pull", "scores"
        return all(getattr(type(self), name) is getattr(LinearScores, name) for name in names)

    def put_gradient(self, model: Parameters, X: Features, y: Array, weights: Array, out: Parameters) -> None:
        if not self._as_here:
            super().put_gradient(model, X, y, weights, out)
            return
        slope = self._derivatives(model.head, product(X, model.first), y, weights)
        assign(out, Parameters(transposed_product(X, slope.scores, out.first), slope.head))

    def scores(self, first: Array, X: Features) -> Array:
        """[..., s, h] X @ first."""
        return product(X, first)

    def put_scores(self, first: Array, X: Features, out: Array) -> None:
        """Put `scores` into `out` [..., s, h], contiguous."""
        if type(self).scores is LinearScores.scores:
            product(X, first, out)
        else:
            out[...] = self.scores(first, X)

    def pull(self, X: Features, slopes: Array) -> Array:
        """[..., p, h] X' @ slopes: the derivative by `first`, from that by the scores [..., s, h]."""
        return transposed_product(X, slopes)

    def head_squares(self, head: Head, scores: Array, y: Array, slopes: Array) -> Array:
        """[..., s] float64 squared norm of the gradient of each sample's loss with respect to the head, for clipping.

        `slopes` [..., s, h] are the derivatives with respect to the sample's scores. Asked for where `head_sum` is
        there too; else each sample's derivative is formed, which takes longer. The default is that of models
        without a head.
        """
        return namespace(scores).zeros(y.shape)

    def head_sum(self, slopes: Array) -> Record:
        """The derivative with respect to the head, where it follows from `slopes` [..., s, h] alone."""
        raise NotImplementedError

    def penalized(self, model: Parameters) -> Parameters:
        counted = super().penalized(model)
        if self.penalize_bias:
            return counted
        head = counted.head
        fields = [name for name in self.unpenalized if name in getattr(head, "_fields", ())]
        free = {name: map_leaves(lambda leaf: False, getattr(head, name)) for name in fields}
        return counted._replace(head=head._replace(**free)) if free else counted


def layout_of(objective: Model, model: Parameters) -> Layout:
    """Where the leaves of a model, without leading axes, stand in a vector."""
    shapes = {name: leaf.shape for name, leaf in leaves(model)}
    counted = zip(shapes, bare_leaves(objective.penalized(model)), strict=True)
    return Layout(shapes, free=[name for name, counts in counted if not counts])


def squares(model: Parameters) -> float:
    """||w||^2, the sum of squares of all parameters, intercepts included, in float64."""
    return sum(_square(leaf) for leaf in bare_leaves(model))


def _square(leaf: Array) -> float:
    return float((leaf.astype("f8") ** 2).sum())


def penalty(objective: Model, model: Parameters) -> float:
    """l2 * ||w||^2 + nonconvex_penalty * sum of w^2 / (1 + w^2), without intercepts, in float64."""
    each = zip(bare_leaves(model), bare_leaves(objective.penalized(model)), strict=True)
    weights = [leaf for leaf, counts in each if counts]
    total, beta = objective.l2 * sum(map(_square, weights)), concave(objective)
    for leaf in weights if beta else ():
        square = leaf.astype("f8") ** 2
        total += beta * float((square / (1 + square)).sum())
    return total


def penalty_gradient(objective: Model, model: Parameters) -> Parameters:
    """The gradient of `penalty`, in the dtype of the parameters: zeros for intercepts."""

    def slope_of(w: Array, counts: bool) -> Array:
        slope: Array = w * w.dtype.type(2 * objective.l2 if counts else 0)
        if counts and concave(objective):
            slope += concave_gradient(objective, w)
        return slope

    slopes = map_leaves(slope_of, model, objective.penalized(model))
    return slopes


def concave(objective: Model) -> float:
    """beta, the factor of the nonconvex penalty; 0 for objectives without it."""
    return float(objective.nonconvex_penalty)


def concave_gradient(objective: Model, w: Array) -> Array:
    """beta * 2 w / (1 + w^2)^2, the derivative of beta * sum of w^2 / (1 + w^2), in the dtype of `w`.

    The second derivative, beta * (2 - 6 w^2) / (1 + w^2)^3, lies between -beta / 2 and 2 beta.
    """
    inverse = 1 / (1 + w * w)
    slope: Array = w * w.dtype.type(2 * concave(objective))
    slope *= inverse
    slope *= inverse
    return slope
