"""FedSAM: local steps of sharpness-aware minimization.

Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu: "Generalized Federated Learning via Sharpness Aware Minimization" (ICML
2022, arXiv:2206.02618), Algorithm 1; the perturbation is that of P. Foret, A. Kleiner, H. Mobahi, B. Neyshabur (ICLR
2021, arXiv:2010.01412), (2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.record import Array
from mpifed.hyperparameters import Weight

Descend: TypeAlias = Callable[..., tuple[Array, None]]


def sharpness_aware(rho: float, mix: float = 1.0) -> Descend | None:
    """Steps along (1 - mix) g + mix g', g' being the gradient at y + rho g / ||g||; None where both are the same."""

    def descend(move: Callable[[Array], Array], at: Array, model: Array, kept: None) -> tuple[Array, None]:
        down = move(at)  # -step g
        norm = np.sqrt((down * down).sum(axis=1, keepdims=True))
        norm[norm == 0] = 1  # where g = 0, nothing is perturbed
        return (1 - mix) * down + mix * move(at - rho / norm * down), None

    return descend if rho and mix else None


@dataclass(frozen=True)
class FedSAM(LocalMethod):
    """FedAvg whose local steps take the gradient at y + rho g / ||g||, g being the minibatch's gradient at y.

    The gradient is that of all that a client minimizes, l2 of the model included. Both are of the same minibatch: a
    step costs two gradients. With rho = 0 it is FedAvg. Momentum of `[client_optimizer]` is of the perturbed gradients.
    # differs from the paper: clients are weighted by their rows.
    """

    gain = 1.0
    prox_step = LocalMethod.prox_step  # a constant gradient is the same at both points
    rho: Weight = 0.05
    """How far from the model the gradient is taken, in the units of parameters; 0 is FedAvg."""

    @property
    def descend(self) -> Descend | None:  # type: ignore[override]
        return sharpness_aware(self.rho)
