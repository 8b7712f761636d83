"""Terms: the functions whose means over samples are the objective and the constraints.

A term uses the model and the loss of the job's objective, so that all functions of a problem share their scores. Its
derivatives are written by hand, as those of objectives are. Shapes: n clients, s samples, h scores;
leading axes broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mpifed.core.nearest import MadeByKeywords
from mpifed.core.record import Array, Record, map_leaves
from mpifed.maths.arrays import namespace
from mpifed.maths.objectives import Objective, Parameters, Slope, squares


class Term(MadeByKeywords, ABC):
    """F is the mean of `loss` over the counted samples, plus the value of `server` where there is one.

    A subclass is a frozen dataclass whose fields are keys of `[minimize]` or `[[constraint]]`. It must define `loss`
    and `slope`; `Sampled` adds the key `classes`.

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

    @abstractmethod
    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the term of each sample, counted or not."""

    @abstractmethod
    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of the sum over samples, counted or not, of weights [..., s] times the term."""

    def server(self, model: Parameters) -> tuple[float, Record] | None:
        """Value in float64 and gradient of the part of F that needs no samples; None: no such part."""
        return None

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Messages on what does not fit the objective or the data, without the name of the table."""
        return []


@dataclass(frozen=True)
class Sampled(Term):
    """The base of terms that count all samples, or those of given classes; a term adds `loss` and `slope`."""

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
        came, messages = f"classes = {list(self.classes)}", []
        if not objective.classifies:
            return [f"{came}: the targets are real numbers without classes; leave the key out to count all samples"]
        if not self.classes:
            messages.append(
                f"{came}: counts no sample; name at least one class, or leave the key out to count all samples"
            )
        if outside := sorted({k for k in self.classes if not 0 <= k < outputs}):
            messages.append(f"{came}: the data have classes 0 to {outputs - 1}; remove {', '.join(map(str, outside))}")
        if len(set(self.classes)) < len(self.classes):
            messages.append(f"{came}: names a class more than once; name each class once")
        return messages


@dataclass(frozen=True)
class Loss(Sampled):
    """The objective's loss, without its penalty."""

    nonnegative: ClassVar[bool] = True  # with every objective of this package
    convex: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        return objective.loss(head, scores, y)

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        return objective.slope(head, scores, y, weights)


@dataclass(frozen=True)
class ErrorRate(Sampled):
    """1 - exp(-loss): with a cross-entropy, the probability that the model assigns to the wrong classes.

    A smooth, nonconvex surrogate of the error rate, between 0 and 1.
    """

    nonnegative: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] 1 - exp(-loss)."""
        return _error(objective.loss(head, scores, y))

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives: exp(-loss) times those of the loss."""
        loss = objective.loss(head, scores, y)
        return objective.slope(head, scores, y, weights * namespace(loss).exp(-loss))._replace(loss=_error(loss))

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Messages, also where the targets are real numbers, which have no error rate."""
        if not objective.classifies:
            return ['name = "error-rate": is for classes, and the targets are real numbers; use name = "loss"']
        return super().check(objective, outputs)


def _error(loss: Array) -> Array:
    return -namespace(loss).expm1(-loss)


@dataclass(frozen=True)
class Norm(Term):
    """||w||^2 of all parameters, which the server computes without samples."""

    sampled: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] zeros: no sample contributes."""
        return namespace(scores).zeros_like(scores[..., 0])

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        zero = objective.slope(head, scores, y, namespace(weights).zeros_like(weights))
        return zero._replace(loss=self.loss(objective, head, scores, y))

    def server(self, model: Parameters) -> tuple[float, Record]:
        """||w||^2 and 2 w."""
        return squares(model), map_leaves(lambda leaf: 2 * leaf, model)


TERMS: dict[str, type[Term]] = {"loss": Loss, "error-rate": ErrorRate, "norm": Norm}
