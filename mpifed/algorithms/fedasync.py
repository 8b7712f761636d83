"""FedAsync: each answer is mixed into the model as it comes, the less, the more rounds it has missed.

C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization" (arXiv:1903.03934).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

from annotated_types import Gt, Le

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent
from mpifed.core.record import Array, namespace
from mpifed.hyperparameters import Weight


class Mixed(NamedTuple):
    """A client's model, times its weight."""

    model: Array  # [d]
    weight: Array  # [1] s(t)


@dataclass(frozen=True)
class FedAsync(LocalMethod):
    """x <- (1 - alpha s(t)) x + alpha s(t) y_i, where clients minimize f_i(y) + rho / 2 ||y - x_i||^2 from x_i.

    The answer y_i has missed t rounds, and x_i is the model from which that client began. s is 1 ("constant"),
    (1 + t)^-a ("polynomial"), or 1 up to b rounds and 1 / (a (t - b) + 1) beyond ("hinge"). In the paper
    `[asynchrony] buffer` is 1; of more answers the mean is taken of what each would add.
    """

    weights = "uniform"
    gain = 1.0  # beside the model sent, of an answer that has missed no round
    degrees = Mixed(1, 0)  # type: ignore[arg-type]
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "alpha is the server's step"}
    alpha: Annotated[float, Gt(0), Le(1)] = 0.6
    """Weight of an answer that has missed no round."""
    rho: Weight = 0.005
    """Weight of rho / 2 ||y - x_i||^2, which draws a client towards the model it was sent."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """How the weight falls with the rounds that an answer has missed."""
    a: Weight = 0.5
    """How fast it falls; with "hinge" 10 in the paper."""
    b: Weight = 6.0
    """With "hinge", rounds up to which it does not."""

    @property
    def pull(self) -> float:
        return self.rho

    def like(self, x: Array) -> Mixed:
        return Mixed(x, x[:1])

    def push(self, own: tuple[()], sent: Sent, local: Local) -> Array | None:
        return local.step * self.rho * sent.model if self.rho else None

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> Mixed:
        missed = local.staleness
        weight = missed * 0 + 1
        if self.staleness == "polynomial":
            weight = (1 + missed) ** -self.a
        elif self.staleness == "hinge":
            weight = 1 / (1 + self.a * namespace(missed).maximum(missed - self.b, 0))
        return Mixed(weight * (sent.model + change), weight)

    def absorb(self, memory: tuple[()], mean: Mixed, done: Done) -> tuple[tuple[()], Array]:
        return memory, self.alpha * (mean.model - mean.weight * done.model)
