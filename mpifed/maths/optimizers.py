"""`[client_optimizer]` and `[server_optimizer]`: steps along gradients and mean changes of the clients' models.

Momentum and Nesterov's form are those of `torch.optim.SGD`: v = momentum v + g, and the step is along v, or along
g + momentum v. Weight decay adds weight_decay w to a client's gradient, of every parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt

from mpifed.core.nearest import MadeByKeywords
from mpifed.maths.ranges import Weight
from mpifed.maths.schedules import CosineDecay, LearningRate

Momentum = Annotated[float, Ge(0), Lt(1)]


class Steps(MadeByKeywords):
    """What the settings of all optimizers give."""

    learning_rate: LearningRate
    momentum: Momentum
    nesterov: bool

    def at(self, t: int) -> float:
        """The learning rate of round t = 1, 2, ..."""
        rate = self.learning_rate
        return float(rate) if isinstance(rate, (int, float)) else rate.at(t)

    def wrong(self, table: str) -> list[str]:
        """Messages on settings that contradict each other."""
        return [f"[{table}] nesterov = true: needs momentum > 0"] if self.nesterov and not self.momentum else []

    def wrong_momentum(self, table: str, why: str) -> list[str]:
        """The message of a method without momentum, if the job sets it."""
        return [f"[{table}] momentum = {self.momentum:g}: {why}; leave it out"] if self.momentum else []

    def wrong_end(self, table: str) -> list[str]:
        """The message of a method that divides by learning rates, if the schedule ends at 0."""
        ends = isinstance(self.learning_rate, CosineDecay) and not self.learning_rate.final
        message = f"[{table}] learning_rate: ends at 0, by which this method would divide; give a final above 0"
        return [message] if ends else []


class Watched:
    """An optimizer, and which of its settings nobody has read yet: of those that differ from their defaults."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = optimizer
        self.unread = {key for key, value in vars(optimizer).items() if value != getattr(type(optimizer), key, value)}

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # as of copying, which asks before there is an optimizer
            raise AttributeError(name)
        self.unread.discard("learning_rate" if name == "at" else name)
        return getattr(self.optimizer, name)


@dataclass(frozen=True)
class SGD(Steps):
    """Stochastic gradient descent: w <- w - learning_rate (g + weight_decay w), optionally with momentum.

    Each client's velocity is zero at the beginning of a round. `learning_rate` is a number or a schedule over rounds.
    """

    learning_rate: LearningRate
    """A number, or a schedule by rounds: {initial = 0.1, exponent = 0.5} and others."""
    momentum: Momentum = 0.0
    """Heavy-ball factor; each client's velocity begins at zero in every round."""
    nesterov: bool = False
    """Momentum in Nesterov's form, as PyTorch's."""
    weight_decay: Weight = 0.0
    """Subtracts learning_rate * weight_decay * w in each step, intercepts included; half of it is an l2."""


@dataclass(frozen=True)
class ServerSGD(Steps):
    """The server's step along the clients' mean change D: v = momentum v + D, w <- w + learning_rate v.

    With learning_rate = 1 and no momentum the model is the mean of the clients' models.
    """

    learning_rate: LearningRate = 1.0
    """A number, or a schedule by rounds; 1 takes the clients' mean change as it is."""
    momentum: Momentum = 0.0
    """Heavy-ball factor of the server's velocity."""
    nesterov: bool = False
    """Momentum in Nesterov's form, as PyTorch's."""


AVERAGE = ServerSGD()  # of the clients' models

OPTIMIZERS = ("client_optimizer", "server_optimizer")  # tables of a job, and fields of algorithms that take them
