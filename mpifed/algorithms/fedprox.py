"""FedProx: FedAvg whose clients are drawn towards the model that they were sent; with `[privacy]` FedProx-DP.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks"
(MLSys 2020, arXiv:1812.06127).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.local_method import Local, LocalMethod, Sent
from mpifed.core.record import Array
from mpifed.hyperparameters import Weight


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients also minimize mu / 2 ||x - x_0||^2, x_0 being the model that they were sent.

    With mu = 0 it is FedAvg. The local problem is solved by the same steps, and inexactly, as there. The stragglers of
    the paper's experiments are those of `[participation] stragglers`, whom its FedAvg leaves out: `drop_stragglers`.
    """

    gain = 1.0
    prox_step = LocalMethod.prox_step  # whose rate counts the pull to the model sent
    mu: Weight = field(kw_only=True, metadata={"tune": {"log": [1e-4, 1.0]}})
    """Weight of mu / 2 ||x - x_0||^2, which draws a client towards the model it was sent; 0 is FedAvg."""

    @property
    def pull(self) -> float:
        return self.mu

    def push(self, own: tuple[()], sent: Sent, local: Local) -> Array | None:
        return local.step * self.mu * sent.model if self.mu else None
