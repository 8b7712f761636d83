"""FedACG: clients begin where the server's momentum will have led.

G. Kim, J. Kim, B. Han: "Communication-Efficient Federated Learning with Accelerated Client Gradient" (CVPR 2024,
arXiv:2201.03172).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Lt

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, Server, from_zero
from mpifed.core.record import Array
from mpifed.hyperparameters import Weight


@dataclass(frozen=True)
class FedACG(LocalMethod):
    """The server sends z = x + lam m; clients minimize f_i(y) + beta ||y - z||^2 from z; m <- lam m + mean (y_i - z).

    Then x <- x + m, which is mean y_i. One vector travels each way: the server keeps z and m, and x is what is measured
    and saved. With lam = beta = 0 it is FedAvg. Defaults, and beta without 1 / 2, are those of the authors' code.

    # differs from the paper: clients are weighted by their rows.
    """

    gain = 1.0
    regularized = False
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "the method has momentum of its own at the server"}
    lam: Annotated[float, Ge(0), Lt(1)] = 0.85
    """Share of m that stays from one round to the next, and how far ahead clients begin."""
    beta: Weight = 0.001
    """Weight of beta ||y - z||^2."""

    @property
    def pull(self) -> float:
        return 2 * self.beta

    start_memory = from_zero  # m = 0

    def push(self, own: tuple[()], sent: Sent, local: Local) -> Array | None:
        return local.step * self.pull * sent.model if self.beta else None

    def absorb(self, m: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        """z moves by m' - lam m + lam m'."""
        m = self.lam * m + mean
        return m, mean + self.lam * m

    def judged(self, server: Server) -> Array:
        x: Array = server.model - self.lam * server.memory
        return x
