"""The form of objectives: a loss of scores that are linear in the features.

This form serves horizontal and vertical splits alike: clients that hold different columns of the same rows add their
*scores*, clients that hold different rows add their gradients, the *pulls*. All derivatives are written by hand; tests
compare them with finite differences. Shapes: n clients, s samples, p features, h scores, L outputs; leading axes
broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from numpy.random import Generator

from mpifed.core.protocols import Dual, Features, Head, Model, Parameters, Slope
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.maths.arrays import namespace, product, transposed_product
from mpifed.maths.ranges import Weight


@dataclass(frozen=True)
class Objective(ABC):
    """A model and the objective it minimizes: mean loss + l2 * (sum of squares of all parameters but intercepts).

    A subclass is a frozen dataclass whose fields are keys of `[model]`, beside `l2`. It must define `start`, `loss`,
    `slope`, `predict`, `scores` and `pull`; `Linear` has the last two.

    Attributes
    ----------
    classifies : whether y are classes 0 to outputs - 1; otherwise y are real targets, and there is a single output
    nonnegative : whether every loss is nonnegative: a limit <= 0 then cannot be met
    convex : whether each loss is a convex function of the model: lower bounds rely on it
    dual : the dual of the loss, which algorithms on the dual problem need; None if there is none
    unpenalized : the fields of the head that are intercepts, which penalties omit
    """

    l2: Weight = field(default=0.0, kw_only=True)
    """Adds l2 * ||w||^2 without intercepts to the mean loss; PyTorch's weight_decay is 2 l2."""

    classifies: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = False
    dual: ClassVar[Dual | None] = None
    unpenalized: ClassVar[tuple[str, ...]] = ()

    @property
    def nonconvex_penalty(self) -> float:
        """beta, the factor of the sum of w^2 / (1 + w^2) over the same parameters, a second penalty."""
        return 0.0

    @property
    def penalize_bias(self) -> bool:
        """Whether the penalties include intercepts."""
        return False

    @property
    def hidden(self) -> int | None:
        """The number of hidden units of a network with a single hidden layer; None for other models."""
        return None

    @abstractmethod
    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model; its random numbers come from `rng` only."""

    @abstractmethod
    def scores(self, first: Array, X: Features) -> Array:
        """[..., s, h] linear in the features X [..., s, p], or a tuple of CSR matrices, and in `first` [..., p, h]."""

    @abstractmethod
    def loss(self, head: Head, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample."""

    @abstractmethod
    def slope(self, head: Head, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of the sum over samples of weights [..., s] times the loss."""

    @abstractmethod
    def pull(self, X: Features, slopes: Array) -> Array:
        """[..., p, h] the derivative with respect to `first`, given that with respect to the scores [..., s, h]."""

    @abstractmethod
    def predict(self, head: Head, scores: Array) -> Array:
        """[..., s] the predicted class, or value."""

    def head_squares(self, head: Head, scores: Array, y: Array, slopes: Array) -> Array:
        """[..., s] float64 squared norm of the gradient of each sample's loss with respect to the head, for clipping.

        `slopes` [..., s, h] are the derivatives with respect to the sample's scores; per-sample gradients need not be
        formed. The default is zeros, for models without a head.
        """
        return namespace(scores).zeros(y.shape)

    def head_sum(self, slopes: Array) -> Record:
        """The derivative with respect to the head, where it follows from `slopes` [..., s, h] alone."""
        raise NotImplementedError

    def check(self, outputs: int) -> list[str]:
        """Messages on what does not fit data with so many outputs."""
        return []


class Linear(Objective):
    """The base of objectives whose scores are X times `first`, as clipping and sparse data require."""

    def scores(self, first: Array, X: Features) -> Array:
        """[..., s, h] X @ first."""
        return product(X, first)

    def pull(self, X: Features, slopes: Array) -> Array:
        """[..., p, h] X' @ slopes."""
        return transposed_product(X, slopes)


def gradient(objective: Model, model: Parameters, X: Features, y: Array, weights: Array) -> Parameters:
    """The gradient of the sum over samples of weights [..., s] times the loss, without penalties."""
    slope = objective.slope(model.head, objective.scores(model.first, X), y, weights)
    return Parameters(objective.pull(X, slope.scores), slope.head)


def squares(model: Parameters) -> float:
    """||w||^2, the sum of squares of all parameters, intercepts included, in float64."""
    return sum(_square(leaf) for leaf in bare_leaves(model))


def _square(leaf: Array) -> float:
    return float((leaf.astype("f8") ** 2).sum())


def penalized(objective: Model, model: Parameters) -> Parameters:
    """A record of the model's structure: True for parameters that are penalized, False for intercepts."""
    counted = map_leaves(lambda leaf: True, model)
    if objective.penalize_bias:
        return counted
    head = counted.head
    fields = [name for name in objective.unpenalized if name in getattr(head, "_fields", ())]
    free = {name: map_leaves(lambda leaf: False, getattr(head, name)) for name in fields}
    return counted._replace(head=head._replace(**free)) if free else counted


def penalty(objective: Model, model: Parameters) -> float:
    """l2 * ||w||^2 + nonconvex_penalty * sum of w^2 / (1 + w^2), without intercepts, in float64."""
    each = zip(bare_leaves(model), bare_leaves(penalized(objective, model)), strict=True)
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

    slopes = map_leaves(slope_of, model, penalized(objective, model))
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
