"""FedCM and MIME-lite: every local step follows the server's momentum too, which is frozen in them.

FedCM: J. Xu, S. Wang, L. Wang, A. C.-C. Yao: "FedCM: Federated Learning with Client-level Momentum" (2021,
arXiv:2106.10874). MIME-lite: S. P. Karimireddy, M. Jaggi, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh:
"Breaking the centralized barrier for cross-device federated learning" (NeurIPS 2021, arXiv:2008.03606).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from annotated_types import Gt, Le

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, from_zero, whole_memory
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array


class WithGradient(NamedTuple):
    """An upload, of which an audit knows both parts."""

    change: Array  # y_i - x
    gradient: Array  # of the client's whole loss, at the model sent


@dataclass(frozen=True)
class FedCM(LocalMethod):
    """Local steps y <- y - eta (alpha g_i(y) + (1 - alpha) m); the server's m is the mean direction of the last round.

    That is m = (x - mean y_i) / (eta K), 0 in the first round; it travels with the model. With alpha = 1 it is FedAvg.

    # differs from the paper: clients are weighted by their rows. Where K differs among clients, as by `local_epochs` on
    unequal shards, (x - y_i) / (eta K_i) travels beside the change, and m is its mean.
    """

    gain = 1.0
    slopes = True
    refuses: ClassVar[dict[str, str]] = {
        "momentum": "local steps have the server's",
        "schedule": "m is a change divided by the learning rate",
    }
    alpha: Annotated[float, Gt(0), Le(1)] = 0.1
    """Share of a client's own gradient in its steps; the rest is m."""

    def step_of(self, t: int) -> float:
        """Of gradients: alpha eta."""
        return self.alpha * super().step_of(t)

    start_memory = from_zero  # m
    broadcast = whole_memory

    def drift(self, sent: Sent) -> Array | None:
        return None if self.alpha == 1 else (1 / self.alpha - 1) * sent.memory

    def absorb(self, m: Array, mean: OwnRecord, done: Done) -> tuple[Array, Array]:
        return done.gradient(self.alpha), mean

    def prox_step(self, done: Done) -> float:
        """m is the gradient where nothing moves, so that of eta."""
        return super().prox_step(done) / self.alpha


@dataclass(frozen=True)
class MimeLite(FedCM):
    """Local steps y <- y - eta (alpha g_i(y) + (1 - alpha) m); then m <- alpha mean grad f_i(x) + (1 - alpha) m.

    These gradients are of clients' whole shards at the model sent, and travel beside the change. In the paper alpha is
    1 - beta. With alpha = 1 it is FedAvg.

    # differs from the paper: clients are weighted by their rows; of its base optimizers this is SGD with momentum.
    """

    gain = 1.0
    slopes = False
    refuses: ClassVar[dict[str, str]] = {"momentum": "local steps have the server's"}
    released = Algorithm.released
    why_no_privacy = "a gradient of all rows travels, for which there is no noise"
    prox_step = FedCM.prox_step

    def like(self, x: Array) -> OwnRecord:
        return WithGradient(x, x)

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> OwnRecord:
        return WithGradient(change, local.gradient(sent.model))

    def absorb(self, m: Array, mean: OwnRecord, done: Done) -> tuple[Array, Array]:
        return self.alpha * mean.gradient + (1 - self.alpha) * m, mean.change
