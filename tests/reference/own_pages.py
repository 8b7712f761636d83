"""Two methods as a user writes them, of the public names alone: jobs name them "own_pages:...".

FedDyn: D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama: "Federated Learning Based on Dynamic
Regularization" (ICLR 2021, arXiv:2111.04263). `Stretched` is of nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mpifed.methods import Array, Done, Local, LocalMethod, Sent, Server, Size


@dataclass(frozen=True)
class FedDyn(LocalMethod):
    """Each loss f_i(y) - <h_i, y> + alpha / 2 ||y - x||^2, whose minima come to agree."""

    alpha: Size = 0.1
    """Weight of alpha / 2 ||y - x||^2."""

    weights = "uniform"
    gain = 1.0
    refuses: ClassVar[Mapping[str, str]] = {"server_optimizer": "the model is mean y - h / alpha"}

    @property
    def pull(self) -> float:
        return self.alpha

    def start_client(self, x: Array) -> Array:
        return 0 * x

    def start_memory(self, x: Array) -> Array:
        return 0 * x

    def push(self, h_i: Array, sent: Sent, local: Local) -> Any:
        return local.step * (h_i + self.alpha * sent.model)

    def renew(self, h_i: Array, sent: Sent, change: Array, local: Local) -> Any:
        return h_i - self.alpha * change

    def absorb(self, h: Array, mean: Array, done: Done) -> tuple[Any, Any]:
        h = h - self.alpha * done.share * mean
        return h, mean - h / self.alpha

    def prox_step(self, done: Done) -> float:
        return 1 / self.alpha


class Unsaid(FedDyn):
    """Its server may move otherwise, and does not say how far."""

    def absorb(self, h: Array, mean: Array, done: Done) -> tuple[Any, Any]:
        return super().absorb(h, mean, done)


class Upload(NamedTuple):
    """Of Stretched."""

    moved: Array
    length: Array


@dataclass(frozen=True)
class Stretched(LocalMethod):
    """FedAvg whose server goes as far as clients do on average; the mean of its last two models is judged."""

    weights = "uniform"
    gain = 1.0
    regularized = False
    refuses: ClassVar[Mapping[str, str]] = {"server_optimizer": "the method has its own step"}

    def start_memory(self, x: Array) -> Array:
        return 0 * x

    def like(self, x: Array) -> Upload:
        return Upload(x, x[0])

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> Upload:
        return Upload(change, (change * change).sum(axis=1) ** 0.5)

    def absorb(self, last: Array, mean: Upload, done: Done) -> tuple[Any, Any]:
        step = mean.length / (mean.moved @ mean.moved) ** 0.5 * mean.moved
        return step, step

    def judged(self, server: Server) -> Any:
        return server.model - server.memory / 2  # the mean of the last two


class Unlike(Stretched):
    """Uploads more than it says."""

    def like(self, x: Array) -> Any:
        return x
