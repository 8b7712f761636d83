"""FedLin: local steps along exact gradients, corrected by those of all clients at the model sent.

A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani: "Linear Convergence in Federated Learning: Tackling Client Heterogeneity
and Sparse Gradients" (NeurIPS 2021, arXiv:2102.07053), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpifed.algorithms.local_method import Local, LocalMethod, Sent, from_zero, whole_memory
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array


@dataclass(frozen=True)
class FedLin(LocalMethod):
    """Local steps y <- y - eta / K_i (gradient at y - grad f_i(x) + g), where g = sum p_i grad f_i(x).

    A round has two exchanges: clients upload the gradients of their whole shards at the model x, and are sent x again
    with their mean g; then they take K_i steps from x, and upload y_i - x. eta is the learning rate of
    `[client_optimizer]`. The paper's gradients at y are exact, as here if `batch_size` is at least the largest shard.

    # differs from the paper: clients are weighted by their rows, p_i, and gradients are not compressed.
    """

    gain = 1.0
    refuses: ClassVar[dict[str, str]] = {"steps": "a client's K_i steps are of eta / K_i each"}
    why_no_privacy = "a gradient of all rows travels, for which there is no noise"
    prox_step = LocalMethod.prox_step  # grad f_i(x) and g cancel in the mean

    def step_for(self, step: float, count: int) -> float:
        """eta / K_i"""
        return step / count

    start_client = start_memory = from_zero  # grad f_i(x), which is computed before it is used; g

    def prepare(self, own: Array, sent: Sent, local: Local) -> tuple[Array, Array]:
        gradient = local.gradient(sent.model)
        return gradient, gradient

    broadcast = whole_memory

    def drift(self, sent: Sent) -> OwnRecord:
        return sent.memory

    def push(self, own: Array, sent: Sent, local: Local) -> OwnRecord:
        return local.own_step * (own - self.drift(sent))
