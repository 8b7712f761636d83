"""FedADMM: the alternating direction method of multipliers with absent clients and inexact local solutions.

Y. Gong, Y. Li, N. M. Freris: "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System
Heterogeneity" (ICDE 2022, arXiv:2204.03529), Algorithm 1. Beside it H. Wang, S. Marella, J. Anderson: "FedADMM: A
Federated Primal-Dual Algorithm Allowing Partial Participation" (CDC 2022, arXiv:2203.15104).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mpifed.algorithms.local_method import Done, Local, Sent
from mpifed.algorithms.optimality import Iterates, KeepsIterates
from mpifed.core.record import Array
from mpifed.hyperparameters import Size


@dataclass(frozen=True)
class FedADMM(KeepsIterates):
    """Each client takes steps on f_i(y) + <lambda_i, y - x> + rho / 2 ||y - x||^2, then lambda_i += rho (y_i - x).

    y_i and lambda_i (at first x and 0) stay with the client, absent or not. It uploads by how much the round has
    changed its y_i + lambda_i / rho; the server adds eta times the mean upload, eta = |S| / N being the share of
    clients present: so x is always the mean of all y_i + lambda_i / rho.
    # differs from the paper: that leaves eta free; with absent clients 1 does not rest at the optimum.
    # differs from the authors' code: that counts changes from x, and does not rest there even with all present.

    With all present it is FedDyn with alpha = rho and h_i = -lambda_i. FedPDM has the same local problem, with the
    other sign of lambda_i; its server averages those present alone, and then applies a regularizer's prox.
    Under `[privacy]` with noise on the upload, y_i and lambda_i are computed from the noisy upload, which is public.
    """

    gain = 2.0
    regularized = False
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "the model is the mean of all y_i + lambda_i / rho"}
    rho: Size = field(kw_only=True)
    """Weight of rho / 2 ||y - x||^2, which draws a client towards the model it was sent."""
    weights: Literal["uniform", "rows"] = "uniform"  # type: ignore[misc]  # of the class elsewhere
    """Whose optimum is sought: uniform: of the mean of the clients' losses; rows: of the loss over all rows."""

    @property
    def pull(self) -> float:
        return self.rho

    def push(self, own: Iterates, sent: Sent, local: Local) -> Array:
        return local.step * (self.rho * sent.model - own.dual)

    def upload(self, own: Iterates, sent: Sent, change: Array, local: Local) -> Array:
        """That of y_i, and of lambda_i / rho, which is y_i - x."""
        return 2 * change + sent.model - own.model

    def renew(self, own: Iterates, sent: Sent, upload: Array, local: Local) -> Iterates:
        change = (upload + own.model - sent.model) / 2
        return Iterates(sent.model + change, own.dual + self.rho * change)

    def absorb(self, memory: tuple[()], mean: Array, done: Done) -> tuple[tuple[()], Array]:
        return memory, done.share * mean
