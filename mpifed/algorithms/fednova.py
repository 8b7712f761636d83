"""FedNova: normalized averaging of clients whose local steps differ in number.

J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor: "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization" (NeurIPS 2020, arXiv:2007.07481).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from mpifed.algorithms.fedprox import FedProx
from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array
from mpifed.hyperparameters import Weight


class Normalized(NamedTuple):
    """An upload of clients whose steps differ in number."""

    direction: OwnRecord  # (y_i - x) / norm
    norm: OwnRecord  # [n, 1] ||a_i||_1, in units of the largest, so that it is at most 1


@dataclass(frozen=True)
class FedNova(FedProx):
    """FedAvg whose clients' changes count by unit of local work: x <- x + tau sum p_i (y_i - x) / ||a_i||_1.

    Here tau = sum p_i ||a_i||_1, and p_i is client i's share of the rows of all present. ||a_i||_1 is how far a
    constant gradient moves a client, in units of its learning rate: K_i for K_i plain steps, and what
    `LocalSteps.rate_of` says for momentum, mu or a `local_schedule`. Clients keep nothing, and upload normalized change
    and norm; where all norms are equal, the change alone, and the method is FedAvg, or FedProx.
    As the learning rate tends to 0 it rests at the optimum; FedAvg does not where K_i differ.
    The 2 to 5 passes of the paper's clients are `local_epochs = 5` with `local_least = 2`.
    """

    gain = 1.0  # of normalized changes too
    prox_step = LocalMethod.prox_step
    refuses: ClassVar[dict[str, str]] = {
        "rate": "a_i is how far a constant gradient moves a client, and here each parameter moves at a rate of its own",
        "schedule": "changes are divided by the learning rate",
    }
    mu: Weight = field(default=0.0, kw_only=True)
    """Weight of mu / 2 ||x - x_0||^2, which draws a client towards the model it was sent; 0: plain steps."""

    def like(self, x: Array) -> OwnRecord:
        return Normalized(x, x[:1]) if self.uneven else x

    @property
    def degrees(self) -> OwnRecord:  # type: ignore[override]
        return Normalized(1, 0) if self.uneven else None  # type: ignore[arg-type]  # as of fields

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> OwnRecord:
        if not self.uneven:
            return change
        norm = local.rate / self.rate_of(local.step, self.most_steps)
        return Normalized(change / norm, norm)  # type: ignore[arg-type]  # an array, where steps are uneven

    def absorb(self, memory: tuple[()], mean: OwnRecord, done: Done) -> tuple[tuple[()], Array]:
        return memory, mean.norm * mean.direction if self.uneven else mean
