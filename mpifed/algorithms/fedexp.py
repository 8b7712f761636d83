"""FedExP and FedExProx: the server goes the further, the more the clients' changes disagree.

FedExP: D. Jhunjhunwala, S. Wang, G. Joshi: "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR 2023,
arXiv:2301.09604). FedExProx: H. Li, K. Acharya, P. Richtarik: "The Power of Extrapolation in Federated Learning"
(NeurIPS 2024, arXiv:2407.01049).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from mpifed.algorithms.fedprox import FedProx
from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, Server, from_zero
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array
from mpifed.hyperparameters import Size, Weight


class WithSquare(NamedTuple):
    """How far a client has moved, and by what square the server measures how much clients disagree."""

    change: Array  # D_i = y_i - x
    square: Array  # ||D_i||^2


@dataclass(frozen=True)
class FedExP(LocalMethod):
    """FedAvg whose server takes eta_g = max(1, mean ||D_i||^2 / (2 (||mean D||^2 + eps))) times the mean change D.

    Clients upload D_i = y_i - x and ||D_i||^2. The mean of the last two models is measured and saved, since odd and
    even ones swing about it.

    # differs from the paper: means are by rows, as in the authors' code, unless `weights` says otherwise. That code
    shrinks eps with the square of a falling learning rate; here it is constant.
    """

    gain = 1.0
    regularized = False
    degrees = WithSquare(1, 2)  # type: ignore[arg-type]
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "the method has a step of its own"}
    eps: Weight = 1e-3
    """Added to ||mean D||^2, so that noise in small changes is not followed too far."""
    weights: Literal["rows", "uniform"] = "rows"  # type: ignore[misc]  # here a key
    """How clients count in the means: by their rows, or all alike."""

    start_memory = from_zero  # The server's last step, half of which is taken off to judge: none yet

    def like(self, x: Array) -> OwnRecord:
        return WithSquare(x, x[0])

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> OwnRecord:
        return WithSquare(change, (change * change).sum(axis=1))

    def rate(self, diversity: float) -> float:
        """eta_g, by mean ||D_i||^2 / (||mean D||^2 + eps)."""
        return max(1.0, diversity / 2)

    def absorb(self, last: Array, mean: OwnRecord, done: Done) -> tuple[Array, Array]:
        square = float((np.float64(mean.change) ** 2).sum()) + self.eps
        step = self.rate(float(mean.square) / (square or 1.0)) * mean.change
        return step, step

    def judged(self, server: Server) -> Array:
        middle: Array = server.model - server.memory / 2
        return middle


@dataclass(frozen=True)
class FedExProx(FedExP):
    """FedProx whose server takes alpha times the mean change D: a number, or mean ||D_i||^2 / (||mean D||^2 + eps).

    Clients take steps on f_i(y) + mu / 2 ||y - x||^2, and upload D_i = y_i - x and ||D_i||^2. -mu D_i is about the
    gradient of f_i's Moreau envelope. So x comes to the optimum of f where all f_i share theirs, else to that of the
    mean envelope, near which an adaptive alpha does not settle: `most` bounds it. With mu = 0, alpha = 1 it is FedAvg.

    # differs from the paper: it solves local problems exactly; here means are by rows, unless `weights` says otherwise.
    """

    gain = 1.0
    eps: Weight = 0.0
    """Added to ||mean D||^2."""
    mu: Weight = field(kw_only=True)
    """Weight of mu / 2 ||y - x||^2; 1 / gamma in the paper."""
    alpha: Size | Literal["adaptive"] = "adaptive"
    """The server's step: a number, or adaptive, mean ||D_i||^2 / ||mean D||^2."""
    most: Size = 1e30
    """Bound of the adaptive step."""
    judged = LocalMethod.judged
    pull, push = FedProx.pull, FedProx.push  # by mu

    def rate(self, diversity: float) -> float:
        return min(diversity, self.most) if self.alpha == "adaptive" else self.alpha
