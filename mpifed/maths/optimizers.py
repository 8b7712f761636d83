"""`[client_optimizer]` and `[server_optimizer]`: steps along gradients and mean changes of the clients' models.

Momentum and Nesterov's form are those of `torch.optim.SGD`: v = momentum v + g, and the step is along v, or along
g + momentum v. Weight decay of SGD adds weight_decay w to a client's gradient, of every parameter; that of AdamW is
decoupled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
from annotated_types import Ge, Lt

from mpifed.core.record import Array
from mpifed.hyperparameters import MadeByKeywords, Size, Weight
from mpifed.maths.schedules import LearningRate, LocalSchedule

Momentum = Annotated[float, Ge(0), Lt(1)]
State: TypeAlias = Any  # of an optimizer, a record of its own
Steered: TypeAlias = Any  # a gradient and what is made of it: arrays, or numbers


class Scheduled(MadeByKeywords):
    """Settings with a learning rate."""

    learning_rate: LearningRate

    @property
    def momentum(self) -> float:
        """The heavy-ball factor, where there is one."""
        return 0.0

    @property
    def nesterov(self) -> bool:
        """Whether momentum is in Nesterov's form."""
        return False

    def at(self, t: int) -> float:
        """The learning rate of round t = 1, 2, ..."""
        rate = self.learning_rate
        return float(rate) if isinstance(rate, (int, float)) else rate.at(t)


class ClientOptimizer(Scheduled):
    """What a client makes of the gradients of its local steps: w <- w - learning_rate * factor * direction.

    Attributes
    ----------
    linear : whether a constant gradient moves all parameters by the same rate
    start : the state at the beginning of a round
    """

    linear: ClassVar[bool] = True
    start: ClassVar[State] = 0.0
    weight_decay: Weight
    clip_norm: Size | None
    local_schedule: LocalSchedule | None

    @property
    def fused(self) -> bool:
        """Whether steps are plain ones, or with momentum, which are taken in one pass over memory."""
        return self.linear and self.special == self.memory

    @property
    def memory(self) -> str:
        """The setting by which steps follow from earlier gradients too; empty where they do not."""
        raise NotImplementedError

    @property
    def special(self) -> str:
        """A setting by which steps are not along gradients as they are, all at one rate; empty where there is none."""
        if self.clip_norm is not None:
            return f"clip_norm = {self.clip_norm:g}"
        return "local_schedule" if self.local_schedule is not None else self.memory

    def factor(self, k: int) -> float:
        """By which local step k = 1, 2, ... has another learning rate than the round."""
        return 1.0 if self.local_schedule is None else self.local_schedule.at(k)

    def rate(self, step: float, count: int, pull: float = 0.0) -> float:
        """How far a constant gradient g moves a client by `count` steps: x_i - x_0 = -rate g; NaN where not `linear`.

        In units of `step`, let d be how far it is and v its velocity, from 0 both. A plain step goes on by
        u = 1 - step pull d, since the pull grows with the distance; then v <- momentum v + u, and d <- d + v, or in
        Nesterov's form d + momentum v + u. So after r steps rate / step is

            r                                         for plain ones,
            (1 - (1 - step pull)^r) / (step pull)     with a pull alone,
            (r - m (1 - m^r) / (1 - m)) / (1 - m)     with momentum m alone; Nesterov's adds m (1 - m^r) / (1 - m),

        the three ||a_i||_1 of FedNova (J. Wang et al., arXiv:2007.07481). l2 and weight decay are no pull: their
        gradients are part of g, as they are part of what is minimized. Nor does clipping count.
        """
        distance, state = 0.0 if self.linear else math.nan, self.start
        for k in range(1, count + 1 if self.linear else 1):
            move, state = self.direction(state, 1 - step * pull * distance, 0.0, k)
            distance += self.factor(k) * move
        return step * distance

    def direction(self, state: State, g: Steered, w: Steered, k: int) -> tuple[Steered, State]:
        """The direction of local step k = 1, 2, ... from w, with weight decay, and the next state."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(ClientOptimizer):
    """Stochastic gradient descent: w <- w - learning_rate (g + weight_decay w), optionally with momentum.

    Each client's velocity is zero at the beginning of a round. `learning_rate` is a number or a schedule over rounds.
    """

    learning_rate: LearningRate = field(metadata={"tune": {"log": [1e-3, 10.0]}})
    """A number, or a schedule by rounds: {initial = 0.1, exponent = 0.5} and others."""
    momentum: Momentum = 0.0
    """Heavy-ball factor; each client's velocity begins at zero in every round."""
    nesterov: bool = False
    """Momentum in Nesterov's form, as PyTorch's."""
    weight_decay: Weight = 0.0
    """Adds weight_decay * w to the gradient of each step, intercepts included; half of it is an l2."""
    clip_norm: Size | None = None
    """Longest norm of a client's minibatch gradient, with the model's penalties; longer ones are scaled to it."""
    local_schedule: LocalSchedule | None = None
    """Factor of the learning rate by local step of a round, {initial = 1.0, exponent = 0.5} and others, whose `rounds`
    are local steps."""

    @property
    def memory(self) -> str:
        return f"momentum = {self.momentum:g}" if self.momentum else ""

    def direction(self, state: State, g: Steered, w: Steered, k: int) -> tuple[Steered, State]:
        g = g + self.weight_decay * w
        v = self.momentum * state + g
        return (g + self.momentum * v if self.nesterov else v), v


class ServerOptimizer(Scheduled):
    """What the server makes of the direction that a method gives it, as a rule the clients' mean change D.

    Attributes
    ----------
    linear : whether a constant direction moves all parameters by the same rate, `reach`
    """

    linear: ClassVar[bool] = True

    def start(self, x: Array) -> State:
        """The state before round 1, a record of arrays like the model [d]; () for nothing."""
        return ()

    def step(self, state: State, direction: Array, t: int) -> tuple[Array, State]:
        """How far the model moves, [d], and the next state."""
        raise NotImplementedError

    def moved(self, state: State, change: Array, t: int) -> State:
        """The state where a prox has made of the move another `change`."""
        return state

    def reach(self, t: int) -> float:
        """How far a constant direction moves the model where the method rests."""
        return self.at(t)


@dataclass(frozen=True)
class ServerSGD(ServerOptimizer):
    """The server's step along the clients' mean change D: v = momentum v + D, w <- w + learning_rate v.

    With learning_rate = 1 and no momentum the model is the mean of the clients' models.
    """

    learning_rate: LearningRate = 1.0
    """A number, or a schedule by rounds; 1 takes the clients' mean change as it is."""
    momentum: Momentum = 0.0
    """Heavy-ball factor of the server's velocity."""
    nesterov: bool = False
    """Momentum in Nesterov's form, as PyTorch's."""

    def start(self, x: Array) -> State:
        return np.zeros_like(x) if self.momentum else ()

    def step(self, state: State, direction: Array, t: int) -> tuple[Array, State]:
        rate = self.at(t)
        if self.momentum:
            state = state * self.momentum + direction
            direction = state * self.momentum + direction if self.nesterov else state
        return direction if rate == 1 else direction * rate, state

    def moved(self, state: State, change: Array, t: int) -> State:
        """The velocity keeps how far the model has really moved: nothing, where the method rests."""
        rate = self.at(t)
        return change / rate if self.momentum and rate else state  # a schedule that has ended at 0 stays there

    def reach(self, t: int) -> float:
        return self.at(t) * (1 + self.momentum) if self.nesterov else self.at(t)


AVERAGE = ServerSGD()  # of the clients' models
