"""Terms: the functions whose means over samples are the objective and the constraints.

A term is a function of the loss of the job's objective, so that all functions of a problem share their scores, or has a
loss of the outputs of its own. Shapes: n clients, s samples, h scores; leading axes broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from mpifed.core.record import Array, Record, map_leaves
from mpifed.hyperparameters import MadeByKeywords
from mpifed.maths.arrays import namespace
from mpifed.maths.losses import SampleLoss
from mpifed.maths.objectives import Objective, Parameters, Slope, squares


class Term(MadeByKeywords, ABC):
    """F is the mean of `loss` over the counted samples; `Norm` alone needs no samples.

    A subclass is a frozen dataclass whose fields are keys of `[minimize]` or `[[constraint]]`; it derives from `OfLoss`
    or `OfOutputs`.

    Attributes
    ----------
    sampled : whether F depends on samples
    nonnegative : whether F is nonnegative: a limit <= 0 then cannot be met
    convex : whether F is convex in the model where the objective's loss is
    """

    sampled: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    convex: ClassVar[bool] = False

    def counted(self, y: Array) -> Array | None:
        """[..., s] bool mask of the samples that count; None: all."""
        return None

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the term of each sample, counted or not; by default the objective's loss."""
        return objective.loss(head, scores, y)

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of the sum over samples, counted or not, of weights [..., s] times the term."""
        return objective.slope(head, scores, y, weights)

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Messages on what does not fit the objective or the data, without the name of the table."""
        return []


@dataclass(frozen=True)
class Sampled(Term):
    """The base of terms that count all samples, or those of given classes."""

    classes: tuple[int, ...] | None = None
    """Classes whose samples count; all where absent."""

    def counted(self, y: Array) -> Array | None:
        """[..., s] whether the sample's class is among `classes`; None: all samples count."""
        if self.classes is None:
            return None
        xp = namespace(y)
        return xp.isin(y, xp.asarray(self.classes))

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Messages unless `classes` are classes of the data, without duplicates."""
        if self.classes is None:
            return []
        came, remedy = f"classes = {list(self.classes)}", "leave the key out to count all samples"
        if not objective.classifies:
            return [f"{came}: the targets have no classes; {remedy}"]
        known = set(range(outputs)).intersection(self.classes)
        if known and len(known) == len(self.classes):
            return []
        return [f"{came}: expected some of 0 to {outputs - 1}, the classes of the data, each once; or {remedy}"]


@dataclass(frozen=True)
class Loss(Sampled):
    """The objective's loss, without its penalty."""

    nonnegative: ClassVar[bool] = True  # with every objective of this package
    convex: ClassVar[bool] = True


class OfLoss(Sampled):
    """The base of functions phi of the objective's loss l."""

    @abstractmethod
    def phi(self, loss: Array) -> Array:
        """[..., s] phi(l)."""

    @abstractmethod
    def phi_slope(self, loss: Array) -> Array:
        """[..., s] phi'(l)."""

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        return self.phi(objective.loss(head, scores, y))

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        return objective.slope(head, scores, y, weights * self.phi_slope(objective.loss(head, scores, y)))


class OfOutputs(Sampled):
    """The base of terms with a loss of the outputs of their own, whatever that of the objective is."""

    @property
    @abstractmethod
    def sample_loss(self) -> SampleLoss:
        """That loss: an attribute of the class, or a property that reads its fields."""

    @property
    def nonnegative(self) -> bool:  # type: ignore[override]  # as the loss is
        return self.sample_loss.nonnegative

    @property
    def convex(self) -> bool:  # type: ignore[override]  # as the loss is
        return self.sample_loss.convex

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        return self.sample_loss.value(objective.class_scores(head, scores), y)

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        outputs, backward = objective.apply_head(head, scores)
        return backward(self.sample_loss.weighted(outputs, y, weights))


@dataclass(frozen=True)
class ErrorRate(OfLoss):
    """1 - exp(-loss): with a cross-entropy, the probability that the model assigns to the wrong classes.

    A smooth, nonconvex surrogate of the error rate, between 0 and 1.
    """

    nonnegative: ClassVar[bool] = True

    def phi(self, loss: Array) -> Array:
        return -namespace(loss).expm1(-loss)

    def phi_slope(self, loss: Array) -> Array:
        return namespace(loss).exp(-loss)

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Messages, also where the targets are no classes, and so have no error rate."""
        if not objective.classifies:
            return ['name = "error-rate": is for classes, and the targets are none; use name = "loss"']
        return super().check(objective, outputs)


@dataclass(frozen=True)
class Norm(Term):
    """||w||^2 of all parameters, which the server computes without samples."""

    sampled: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = True

    def server(self, model: Parameters) -> tuple[float, Record]:
        """||w||^2 in float64, and its gradient 2 w."""
        return squares(model), map_leaves(lambda leaf: 2 * leaf, model)


@dataclass(frozen=True)
class Constraint:
    """F_m <= limit; the algorithm aims at limit - margin."""

    term: Term
    limit: float
    margin: Annotated[float, Ge(0)] = 0.0

    @property
    def aim(self) -> float:
        """The level that the algorithm aims at."""
        return self.limit - self.margin


TERMS: dict[str, type[Term]] = {"loss": Loss, "error-rate": ErrorRate, "norm": Norm}
