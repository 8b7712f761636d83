"""FedSplit: Peaceman-Rachford splitting, whose fixed points are optima whatever the clients' losses.

R. Pathak, M. J. Wainwright: "FedSplit: An Algorithmic Framework for Fast Federated Optimization" (NeurIPS 2020,
arXiv:2005.05238), Algorithm 1 and, for inexact prox steps, Section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mpifed.algorithms.local_method import Local, Sent
from mpifed.algorithms.optimality import Iterates, KeepsIterates
from mpifed.core.record import Array
from mpifed.core.refusals import Refusal
from mpifed.hyperparameters import Size


@dataclass(frozen=True)
class FedSplit(KeepsIterates):
    """Each client takes steps on f_i(y) + ||y - v||^2 / (2 s), v = 2 x - z_i, then z_i += 2 (y_i - x); x = mean z_i.

    In the paper s is fastest at 1 / sqrt(mu L), mu and L bounding the curvature of all f_i; the local step, that of
    `[client_optimizer]` here, is s / (1 + s L). All clients must be present in every round.
    # differs from the paper: local steps begin at x or at the client's own last y_i, where few of them are enough to
    come to the optimum; from v, as there, they leave an error in every round.
    Under `[privacy]` with noise on the upload, y_i and z_i are computed from the noisy upload, which is public.
    """

    gain = 2.0
    regularized = False
    needs_everybody = True
    why_everybody = "the model is the mean of all clients' z_i"
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "the model is the mean of all z_i"}
    s: Size = field(kw_only=True)
    """Step of the clients' prox: the larger, the further a client goes in a round."""
    start: Literal["server", "own", "paper"] = "server"  # type: ignore[assignment]  # one more
    """Where local steps begin: server: at the model sent; own: at the client's own last one; paper: at 2 x - z_i."""
    weights: Literal["uniform", "rows"] = "uniform"  # type: ignore[misc]  # of the class elsewhere
    """Whose optimum is sought: uniform: of the mean of the clients' losses; rows: of the loss over all rows."""

    @property
    def pull(self) -> float:
        return 1 / self.s

    def start_client(self, x: Array) -> Iterates:
        """y_i and z_i at the initial model."""
        return Iterates(x, x)

    def begin(self, own: Iterates, sent: Sent, local: Local) -> Array | None:
        return 2 * sent.model - own.dual if self.start == "paper" else super().begin(own, sent, local)

    def push(self, own: Iterates, sent: Sent, local: Local) -> Array:
        return local.step / self.s * (2 * sent.model - own.dual)

    def upload(self, own: Iterates, sent: Sent, change: Array, local: Local) -> Array:
        """That of z_i."""
        return 2 * change

    def renew(self, own: Iterates, sent: Sent, upload: Array, local: Local) -> Iterates:
        return Iterates(sent.model + upload / 2, own.dual + upload)

    def conflicts(self) -> Iterator[Refusal]:
        yield from super().conflicts()
        # from the prox's own center, where nothing is beyond it, steps begin with "paper"
        step, counts = self.step_of(1), (1, self.most_steps) if self.uneven else (self.most_steps,)
        # so little beyond would take thousands of rounds to be seen; AdamW has NaN for a rate, which is not beyond
        beyond = any(self.rate_of(step, count) > (1 + 1e-4) * self.s for count in counts)
        yield Refusal(
            beyond and self.start != "paper",
            "[client_optimizer] learning_rate",
            f"where a client's loss is flat, its local steps of {step:g} end beyond its prox, of s = {self.s:g}, and "
            "diverge",
            "lower it, or raise s",
        )
