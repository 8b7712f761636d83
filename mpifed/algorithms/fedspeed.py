"""FedSpeed: FedDyn whose local steps take the gradient at a perturbed model.

Y. Sun, L. Shen, T. Huang, L. Ding, D. Tao: "FedSpeed: Larger Local Interval, Less Communication Round, and Higher
Generalization Accuracy" (ICLR 2023, arXiv:2302.10429), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from mpifed.algorithms.feddyn import FedDyn
from mpifed.algorithms.fedsam import Descend, sharpness_aware
from mpifed.hyperparameters import Weight


@dataclass(frozen=True)
class FedSpeed(FedDyn):
    """FedDyn along (1 - mix) g + mix g', g' being the gradient at y + rho g / ||g|| on the minibatch of g.

    alpha is 1 / lambda of the paper, mix its alpha, and h_i its prox-correction. With rho = 0 it is FedDyn; with more
    it rests where the mean of all clients' mixed gradients is zero.

    # differs from the paper: its second gradient is at y + rho g; the authors' simulator takes rho g / ||g||, as here.
    Here g has the model's penalties in it too.

    # differs from the paper: the server takes mean y_i - lambda h, with the mean h of all clients, as the authors'
    simulator does; with the mean of y_i - lambda h_i over those present it would not rest at the optimum even for
    rho = 0, where clients are absent.
    """

    gain = 1.0
    prox_step = FedDyn.prox_step  # a constant gradient is the same at both points
    rho: Weight = 0.1
    """How far from the model the second gradient is taken, in the units of parameters; 0 is FedDyn."""
    mix: Annotated[float, Ge(0), Le(1)] = 1.0
    """Share of the second gradient in a step; 0 is FedDyn."""

    @property
    def descend(self) -> Descend | None:  # type: ignore[override]
        return sharpness_aware(self.rho, self.mix)
