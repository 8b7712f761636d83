"""The form of objectives: a loss of scores that are linear in the features.

That form is the seam between horizontal and vertical federations: clients with other columns of the same rows add
their *scores*, clients with other rows add their *pulls*. All derivatives are written by hand; tests hold them
against finite differences. Shapes: n clients, s samples, p features, h scores, L outputs; leading axes broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from numpy.random import Generator

from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.maths.arrays import namespace, product, transposed_product
from mpifed.maths.duals import Dual
from mpifed.maths.ranges import Weight


class Parameters(NamedTuple):
    """A model: the weights of the features, and whatever turns scores into predictions."""

    first: Array  # [p, h]
    head: Record  # all other parameters; () where there are none


class Slope(NamedTuple):
    """Derivatives of a weighted sum of losses."""

    loss: Array  # [..., s] the unweighted loss of each sample
    head: Record  # the head's shapes, each with the leading axes
    scores: Array  # [..., s, h] of each sample's weighted loss


@dataclass(frozen=True)
class Objective(ABC):
    """What is minimized: mean loss + l2 * (sum of squares of all parameters but intercepts), and the model's form.

    A subclass is a frozen dataclass whose fields are the keys of `[model]`; `l2` is one of all. It must give `start`,
    `loss`, `slope`, `predict`, `scores` and `pull`; `Linear` has the last two.

    Attributes
    ----------
    classifies : whether y are classes 0 to outputs - 1; otherwise real targets, and one output
    nonnegative : whether no loss is below zero: a limit <= 0 can then not be met
    convex : whether each loss is a convex function of the model: lower bounds rest on it
    dual : the conjugate of the loss, which algorithms on the dual problem need; None where it is not known here
    unpenalized : the fields of the head that are intercepts, which no penalty counts
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
        """beta, the factor of the sum of w^2 / (1 + w^2) over the same parameters, which is minimized too."""
        return 0.0

    @property
    def penalize_bias(self) -> bool:
        """Whether the penalties count intercepts all the same."""
        return False

    @property
    def hidden(self) -> int | None:
        """The hidden cells of a network with one layer of them."""
        return None

    @abstractmethod
    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """A model to begin with, drawn from `rng` alone."""

    @abstractmethod
    def scores(self, first: Array, X: Any) -> Array:
        """[..., s, h] linear in the features X [..., s, p], or CSR matrices of them, and in `first` [..., p, h]."""

    @abstractmethod
    def loss(self, head: Any, scores: Array, y: Array) -> Array:
        """[..., s] the loss of each sample."""

    @abstractmethod
    def slope(self, head: Any, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of sum over samples of weights [..., s] times the loss."""

    @abstractmethod
    def pull(self, X: Any, slopes: Array) -> Array:
        """[..., p, h] the derivative by the feature weights, from that by the scores."""

    @abstractmethod
    def predict(self, head: Any, scores: Array) -> Array:
        """[..., s] the predicted class, or value."""

    def head_squares(self, head: Any, scores: Array, y: Array, slopes: Array) -> Array:
        """[..., s] float64 ||derivative of each sample's loss by all of the head||^2, which clipping needs.

        `slopes` [..., s, h] are the derivatives by the sample's scores. No sample's gradient need be built. Zeros,
        since there is no head; an objective with a head says otherwise.
        """
        return namespace(scores).zeros(y.shape)

    def head_sum(self, slopes: Array) -> Record:
        """The derivative by the head, from `slopes` [..., s, h]; of objectives in which these tell it."""
        raise NotImplementedError

    def check(self, outputs: int) -> list[str]:
        """What does not fit to data with so many outputs, one message each."""
        return []


class Linear(Objective):
    """The base of objectives whose scores are X times `first`: all that clipping and sparse data need."""

    def scores(self, first: Array, X: Any) -> Array:
        """[..., s, h] = X @ first."""
        return product(X, first)

    def pull(self, X: Any, slopes: Array) -> Array:
        """[..., p, h] = X' @ slopes."""
        return transposed_product(X, slopes)


def gradient(objective: Objective, model: Parameters, X: Any, y: Array, weights: Array) -> Parameters:
    """The derivative of sum over samples of weights [..., s] times the loss; no penalty in it."""
    slope = objective.slope(model.head, objective.scores(model.first, X), y, weights)
    return Parameters(objective.pull(X, slope.scores), slope.head)


def squares(model: Parameters) -> float:
    """||w||^2, the sum of squares of all parameters, in float64; intercepts are among them."""
    return sum(_square(leaf) for leaf in bare_leaves(model))


def _square(leaf: Array) -> float:
    return float((leaf.astype("f8") ** 2).sum())


def penalized(objective: Objective, model: Parameters) -> Parameters:
    """A record of the model's structure: True for parameters that the penalties count, False for intercepts."""
    every: Parameters = map_leaves(lambda leaf: True, model)
    if objective.penalize_bias:
        return every
    head: Any = every.head
    fields = [name for name in objective.unpenalized if name in getattr(head, "_fields", ())]
    free = {name: map_leaves(lambda leaf: False, getattr(head, name)) for name in fields}
    return every._replace(head=head._replace(**free)) if free else every


def penalty(objective: Objective, model: Parameters) -> float:
    """l2 * ||w||^2 + nonconvex_penalty * sum of w^2 / (1 + w^2), without intercepts, in float64."""
    each = zip(bare_leaves(model), bare_leaves(penalized(objective, model)), strict=True)
    weights = [leaf for leaf, counts in each if counts]
    total, beta = objective.l2 * sum(map(_square, weights)), concave(objective)
    for leaf in weights if beta else ():
        square = leaf.astype("f8") ** 2
        total += beta * float((square / (1 + square)).sum())
    return total


def penalty_gradient(objective: Objective, model: Parameters) -> Parameters:
    """The derivative of `penalty`, in the dtype of the parameters: zeros for intercepts."""

    def slope_of(w: Array, counts: bool) -> Array:
        slope = w * w.dtype.type(2 * objective.l2 if counts else 0)
        if counts and concave(objective):
            slope += concave_gradient(objective, w)
        return slope

    found: Parameters = map_leaves(slope_of, model, penalized(objective, model))
    return found


def concave(objective: Objective) -> float:
    """beta, the factor of the penalty that is not convex; 0 for objectives that have none."""
    return float(objective.nonconvex_penalty)


def concave_gradient(objective: Objective, w: Array) -> Array:
    """beta * 2 w / (1 + w^2)^2, the derivative of beta * sum of w^2 / (1 + w^2), in the dtype of `w`.

    The second derivative, beta * (2 - 6 w^2) / (1 + w^2)^3, lies between -beta / 2 and 2 beta.
    """
    inverse = 1 / (1 + w * w)
    slope = w * w.dtype.type(2 * concave(objective))
    slope *= inverse
    slope *= inverse
    return slope
