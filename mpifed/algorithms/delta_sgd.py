"""Delta-SGD: local steps whose sizes follow the curvature that each client meets.

J. L. Kim, M. T. Toghani, C. A. Uribe, A. Kyrillidis: "Adaptive Federated Learning with Auto-Tuned Clients" (ICLR 2024,
arXiv:2306.11201), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.record import Array
from mpifed.hyperparameters import Size, Weight

_MOST = 1e6  # times the first step: growth is 5 % a step with the defaults, and the steps may be many


class Step(NamedTuple):
    """A local step of n clients."""

    at: Array  # [d] or [n, d] where it began
    change: Array  # [n, d] of the model
    size: Array | float  # [n, 1] eta, in units of the first step
    theta: Array | float  # [n, 1] by how much it was larger than the one before


@dataclass(frozen=True)
class DeltaSGD(LocalMethod):
    """FedAvg whose client i takes its k-th local step with a size of its own, anew in every round.

    eta_k = min(gamma ||y_k - y_k-1|| / (2 ||g(y_k) - g(y_k-1)||), sqrt(1 + delta theta_k-1) eta_k-1), theta_k = eta_k /
    eta_k-1, both gradients being of the minibatch of step k, with penalties: a step costs two. eta_0 is the rate of
    `[client_optimizer]`, by the paper 0.2, and theta_0 = 1: with one local step it is FedAvg.
    # differs from the paper: clients are weighted by their rows.
    # differs from the paper: its g(y_k-1) reads as that of step k - 1, on another minibatch; the authors' code takes
    the same one, without which steps measure the noise of minibatches and shrink to nothing.
    # differs from the paper: where neither the model nor the gradient has moved, eta grows; it ends at 1e6 eta_0.
    """

    gain = 1.0
    regularized = False
    refuses: ClassVar[dict[str, str]] = {"momentum": "step sizes are those of plain steps"}
    gamma: Size = 2.0
    """By how much steps may be longer than half the inverse of the curvature met."""
    delta: Weight = 0.1
    """How fast steps may grow."""

    def descend(self, move: Callable[[Array], Array], at: Array, model: Array, kept: Step | None) -> tuple[Array, Step]:
        down = move(at)
        if kept is None:
            return down, Step(at.copy(), down, 1.0, 1.0)
        turned = down - move(kept.at)
        ahead, turn = ((each * each).sum(axis=1, keepdims=True) for each in (kept.change, turned))
        with np.errstate(divide="ignore", invalid="ignore"):
            met = self.gamma / 2 * np.sqrt(ahead / turn)
        size = np.fmin(met, np.fmin((1 + self.delta * kept.theta) ** 0.5 * kept.size, _MOST))
        change = size * down
        return change, Step(at.copy(), change, size, size / kept.size)
