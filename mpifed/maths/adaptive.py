"""Optimizers with a step of its own for each parameter, and the names of all optimizers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from mpifed.core.record import Array
from mpifed.hyperparameters import Size, Weight
from mpifed.maths.optimizers import SGD, ClientOptimizer, Momentum, ServerOptimizer, ServerSGD, State, Steered
from mpifed.maths.schedules import LearningRate, LocalSchedule

Damping = Annotated[float, Ge(1e-18), Le(1e18)]  # whose square float32 has


class Moments(NamedTuple):
    """The state of an adaptive optimizer: means of the direction and of its square, [d], or [n, d] of clients."""

    m: Array
    v: Array


@dataclass(frozen=True)
class AdamW(ClientOptimizer):
    """Adam with decoupled weight decay: w <- w - learning_rate (m' / (sqrt(v') + eps) + weight_decay w).

    I. Loshchilov, F. Hutter: "Decoupled Weight Decay Regularization" (ICLR 2019, arXiv:1711.05101), as
    `torch.optim.AdamW`. m and v are a client's means of gradients and of their squares, from zero in every round;
    m' = m / (1 - beta1^k) and v' = v / (1 - beta2^k) in local step k.
    """

    linear: ClassVar[bool] = False
    start: ClassVar[State] = Moments(0.0, 0.0)  # type: ignore[arg-type]  # in place of zeros [n, d]
    learning_rate: LearningRate = field(default=0.001, metadata={"tune": {"log": [1e-5, 0.1]}})
    """A number, or a schedule by rounds."""
    beta1: Momentum = 0.9
    """Share of m that stays from one local step to the next."""
    beta2: Momentum = 0.999
    """Share of v that stays from one local step to the next."""
    eps: Damping = 1e-8
    """Added to the root of v'."""
    weight_decay: Weight = 0.01
    """Subtracts learning_rate * weight_decay * w in each step, intercepts included."""
    clip_norm: Size | None = None
    """Longest norm of a client's minibatch gradient, with the model's penalties; longer ones are scaled to it."""
    local_schedule: LocalSchedule | None = None
    """Factor of the learning rate by local step of a round, as with sgd."""

    @property
    def memory(self) -> str:
        return 'name = "adamw"'

    def direction(self, state: State, g: Steered, w: Steered, k: int) -> tuple[Steered, State]:
        m = self.beta1 * state.m + (1 - self.beta1) * g
        v = self.beta2 * state.v + (1 - self.beta2) * g**2
        root = (v / (1 - self.beta2**k)) ** 0.5
        return m / (1 - self.beta1**k) / (root + self.eps) + self.weight_decay * w, Moments(m, v)


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """A step of its own for each parameter: w <- w + learning_rate m / (sqrt(v) + tau), Algorithm 2 of FedOpt.

    S. Reddi et al.: "Adaptive Federated Optimization" (ICLR 2021, arXiv:2003.00295). m is a mean of the directions, and
    v, which starts at tau^2, of their squares; neither is corrected for its start.
    """

    linear: ClassVar[bool] = False
    learning_rate: LearningRate = field(default=0.1, metadata={"tune": {"log": [1e-4, 1.0]}})
    """A number, or a schedule by rounds."""
    beta1: Momentum = 0.9
    """Share of m that stays from one round to the next."""
    tau: Damping = 1e-3
    """Added to the root of v: the larger, the less the steps of parameters differ."""

    def start(self, x: Array) -> Moments:
        return Moments(np.zeros_like(x), np.full_like(x, self.tau**2))

    def step(self, state: Moments, direction: Array, t: int) -> tuple[Array, Moments]:
        m = self.beta1 * state.m + (1 - self.beta1) * direction
        v = self.squares(state.v, direction**2)
        return self.at(t) * m / (np.sqrt(v) + self.tau), Moments(m, v)

    def squares(self, v: Array, square: Array) -> Array:
        """[d] v of the next round, from the square of the direction."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerAdam(Adaptive):
    """FedAdam's server: v = beta2 v + (1 - beta2) D^2; m = beta1 m + (1 - beta1) D; w += rate m / (sqrt(v) + tau)."""

    beta2: Momentum = 0.99
    """Share of v that stays from one round to the next."""

    def squares(self, v: Array, square: Array) -> Array:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class ServerYogi(Adaptive):
    """FedYogi's server: v = v - (1 - beta2) D^2 sign(v - D^2), which falls no faster than it grows; else FedAdam's."""

    beta2: Momentum = 0.99
    """Share of v that stays from one round to the next."""

    def squares(self, v: Array, square: Array) -> Array:
        change: Array = (1 - self.beta2) * square * np.sign(v - square)
        return v - change


@dataclass(frozen=True)
class ServerAdagrad(Adaptive):
    """FedAdagrad's server: v = v + D^2, and so steps that only shrink; m = D unless beta1 says otherwise."""

    beta1: Momentum = 0.0
    """Share of m that stays from one round to the next."""

    def squares(self, v: Array, square: Array) -> Array:
        return v + square


OPTIMIZERS = ("client_optimizer", "server_optimizer")  # tables of a job, and fields of algorithms that take them
CLIENT_OPTIMIZERS: dict[str, type[ClientOptimizer]] = {"sgd": SGD, "adamw": AdamW}
SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "sgd": ServerSGD,
    "adam": ServerAdam,
    "yogi": ServerYogi,
    "adagrad": ServerAdagrad,
}  # fmt: skip
