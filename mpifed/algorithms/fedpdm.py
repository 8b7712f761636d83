"""FedPDM: federated primal-dual learning with a regularizer that need not be smooth; with `[privacy]` FedPDM-DP.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek: "Privacy-Preserving Federated Primal-Dual Learning for Non-convex
Problems with Non-smooth Regularization" (IEEE MLSP 2023), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mpifed.algorithms.local_method import Done, Local, Sent
from mpifed.algorithms.measure import Measure
from mpifed.algorithms.optimality import Iterates, KeepsIterates, measure_of_optimality
from mpifed.core.record import Array
from mpifed.hyperparameters import Size, Weight


@dataclass(frozen=True)
class FedPDM(KeepsIterates):
    """Each client takes steps on its augmented Lagrangian, (10); the server takes the prox of the mean upload, (13).

    In the paper eta^t is the learning rate of `[client_optimizer]`, Q `local_steps`, nu `tolerance`; x_i and lambda_i
    stay with the client, and h is the job's `[regularizer]`. Clients are weighted by their rows: with equal shards,
    the paper's mean.

    # differs from the paper: its (10a) takes steps of eta on a function of curvature rho and more, and diverges while
    eta rho > 2: so `local_rule` has two other meanings of eta. With "prox" eta limits how far the linearized function
    is followed.

    # differs from the paper: where `tolerance` ends the steps, their number depends on the data: under `[privacy]` it
    needs noise on the gradients, and all `local_steps` are accounted for.

    # differs from the paper: its (19) takes lambda_i and x_i to be public, which they are not. So with noise on the
    upload lambda_i is computed from the noisy upload, which is.

    Absent clients keep x_i and lambda_i, and only those present are averaged.
    """

    gain = 2.0
    refuses: ClassVar[dict[str, str]] = {
        "momentum": "the dual variables are those of plain steps",
        "schedule": "local steps divide by the learning rate",
        "server_optimizer": "the server of FedPDM takes the prox at the mean upload, (13)",
    }
    rho: Size = field(kw_only=True)
    """Weight of the augmented Lagrangian's quadratic term."""
    local_rule: Literal["prox", "fedpd", "paper"] = "prox"
    """What the client's learning rate eta means: prox: the step is 1 / (rho + 1/eta), stable for all; fedpd: eta / rho;
    paper: eta, refused unless eta rho < 2."""
    tolerance: Weight = 0.0
    """Local steps end when the squared norm of their direction is at most this, nu of (11); 0: all are taken. Not with
    noise on the upload."""

    @property
    def pull(self) -> float:
        return self.rho

    @property
    def stop(self) -> float:
        return self.tolerance

    def step_of(self, t: int) -> float:
        eta = self.client_optimizer.at(t)
        return {"prox": 1 / (self.rho + 1 / eta), "fedpd": eta / self.rho, "paper": eta}[self.local_rule]

    def prox_step(self, done: Done) -> float:
        """(13)"""
        return 1 / self.rho

    def push(self, own: Iterates, sent: Sent, local: Local) -> Array:
        """(10a)"""
        return local.step * own.dual + local.step * self.rho * sent.model

    def upload(self, own: Iterates, sent: Sent, change: Array, local: Local) -> Array:
        """(10d): y_i - x_0, lambda_i being that before the round."""
        return 2 * change - 1 / self.rho * own.dual

    def retain(self, own: Iterates, sent: Sent, change: Array, upload: Array, local: Local) -> Iterates:
        return own._replace(model=sent.model + change)

    def renew(self, own: Iterates, sent: Sent, upload: Array, local: Local) -> Iterates:
        """(10c): lambda_i + rho (x_0 - x_i), from y_i - x_0."""
        return own._replace(dual=(own.dual - self.rho * upload) / 2)

    @property
    def private_state(self) -> str:
        return 'x_i for start = "own" (start = "server" needs none)' if self.start == "own" else ""

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss and gradient norm; the optimality measure (21)."""
        return (*super().measures, measure_of_optimality(self, self.rho))
