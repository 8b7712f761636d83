"""Two methods of nobody as a user writes them, of the public names alone: jobs name them "own_pages:..."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from mpifed.methods import Array, Done, Local, LocalMethod, Sent, Server, Size


@dataclass(frozen=True)
class Recalled(LocalMethod):
    """Each loss f_i(y) + alpha / 2 ||y - x||^2; the server goes by the mean of all clients' last changes."""

    alpha: Size = 0.1
    """Weight of alpha / 2 ||y - x||^2."""

    weights = "uniform"
    gain = 1.0
    refuses: ClassVar[Mapping[str, str]] = {"server_optimizer": "the model goes by the mean of all last changes"}
    prox_step = LocalMethod.prox_step

    @property
    def pull(self) -> float:
        return self.alpha

    def start_client(self, x: Array) -> Array:
        return 0 * x

    def start_memory(self, x: Array) -> Array:
        return 0 * x

    def push(self, last: Array, sent: Sent, local: Local) -> Any:
        return local.step * self.alpha * sent.model

    def upload(self, last: Array, sent: Sent, change: Array, local: Local) -> Any:
        return change - last

    def renew(self, last: Array, sent: Sent, upload: Array, local: Local) -> Any:
        return last + upload

    def absorb(self, memory: Array, mean: Array, done: Done) -> tuple[Any, Any]:
        memory = memory + done.share * mean
        return memory, memory


class Unsaid(Recalled):
    """Its server may move otherwise, and does not say how far."""

    def absorb(self, h: Array, mean: Array, done: Done) -> tuple[Any, Any]:
        return super().absorb(h, mean, done)


class Upload(NamedTuple):
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
