"""Terms: what is averaged over samples in the objective and in the constraints.

A term is built on the job's objective, whose model and loss it takes, so that all functions of a problem share their
scores. Its derivatives are written by hand, as those of an objective are. Shapes: n clients, s samples, h scores;
leading axes broadcast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mpifed.core.record import Array, Record, map_leaves
from mpifed.maths.arrays import namespace
from mpifed.maths.objectives import Objective, Parameters, Slope, squares


class Term(ABC):
    """F is the mean of `loss` over the counted samples, plus the value of `server` where there is one.

    A subclass is a frozen dataclass whose fields are keys of `[minimize]` or `[[constraint]]`. It must give `loss` and
    `slope`; `Sampled` adds the key `classes`.

    Attributes
    ----------
    sampled : whether samples have a part in it
    nonnegative : whether F is never below zero: a limit <= 0 can then not be met
    convex : whether F is convex in the model where the objective's loss is
    """

    sampled: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = False
    convex: ClassVar[bool] = False

    def counted(self, y: Array) -> Array | None:
        """[..., s] bool, which samples count; None: all of them."""
        return None

    @abstractmethod
    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the term of each sample, whether it counts or not."""

    @abstractmethod
    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Derivatives of sum over samples of weights [..., s] times the term, whether they count or not."""

    def server(self, model: Parameters) -> tuple[float, Record] | None:
        """Value in float64 and gradient of a part that needs no samples; None: there is none."""
        return None

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """What does not fit to objective and data, one message each, without the name of the table."""
        return []


@dataclass(frozen=True)
class Sampled(Term):
    """What terms of samples share: they count all samples, or those of some classes; a term adds `loss` and `slope`."""

    classes: tuple[int, ...] | None = None
    """Classes whose samples count; all where absent."""

    def counted(self, y: Array) -> Array | None:
        """[..., s] whether a sample is of one of `classes`; None: all count."""
        if self.classes is None:
            return None
        xp = namespace(y)
        return xp.isin(y, xp.asarray(self.classes))

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """`classes` must be some of the data's, each once."""
        if self.classes is None:
            return []
        came, wrong = f"classes = {list(self.classes)}", []
        if not objective.classifies:
            return [f"{came}: the targets are real numbers and of no class; leave the key out, and all samples count"]
        if not self.classes:
            wrong.append(f"{came}: counts no sample; name some classes, or leave the key out to count all")
        if outside := sorted({one for one in self.classes if not 0 <= one < outputs}):
            wrong.append(f"{came}: the data have classes 0 to {outputs - 1}; take out {', '.join(map(str, outside))}")
        if len(set(self.classes)) < len(self.classes):
            wrong.append(f"{came}: names a class more than once; name each once")
        return wrong


@dataclass(frozen=True)
class Loss(Sampled):
    """The objective's loss, without its penalty."""

    nonnegative: ClassVar[bool] = True  # with every objective of this package
    convex: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the loss."""
        return objective.loss(head, scores, y)

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """The objective's own."""
        return objective.slope(head, scores, y, weights)


@dataclass(frozen=True)
class ErrorRate(Sampled):
    """1 - exp(-loss): with a cross-entropy, the probability that the model gives to the wrong classes.

    A stand-in for the error rate that is smooth, within 0 and 1, and not convex.
    """

    nonnegative: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] the probability of an error."""
        return _error(objective.loss(head, scores, y))

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """exp(-loss) times the derivative of the loss."""
        loss = objective.loss(head, scores, y)
        return objective.slope(head, scores, y, weights * namespace(loss).exp(-loss))._replace(loss=_error(loss))

    def check(self, objective: Objective, outputs: int) -> list[str]:
        """Real targets have no error rate."""
        if not objective.classifies:
            return ['name = "error-rate": is for classes, and the targets are real numbers; take name = "loss"']
        return super().check(objective, outputs)


def _error(loss: Array) -> Array:
    return -namespace(loss).expm1(-loss)


@dataclass(frozen=True)
class Norm(Term):
    """||w||^2 of all parameters, which the server knows by itself."""

    sampled: ClassVar[bool] = False
    nonnegative: ClassVar[bool] = True
    convex: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        """[..., s] zeros: no sample has a part in it."""
        return namespace(scores).zeros_like(scores[..., 0])

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        """Zeros."""
        nothing = objective.slope(head, scores, y, namespace(weights).zeros_like(weights))
        return nothing._replace(loss=self.loss(objective, head, scores, y))

    def server(self, model: Parameters) -> tuple[float, Record]:
        """||w||^2 and 2 w."""
        return squares(model), map_leaves(lambda leaf: 2 * leaf, model)


TERMS: dict[str, type[Term]] = {"loss": Loss, "error-rate": ErrorRate, "norm": Norm}
