"""SCAFFOLD: control variates against the drift of local steps on heterogeneous clients; with `[privacy]` SCAFFOLD-DP.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning" (ICML 2020, arXiv:1910.06378). With noise: M. Noble, A. Bellet, A. Dieuleveut: "Differentially
Private Federated Learning on Heterogeneous Data" (AISTATS 2022, arXiv:2111.09278).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, from_zero, whole_memory
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array


@dataclass(frozen=True)
class Scaffold(LocalMethod):
    """Local steps along gradient - c_i + c, where c_i estimates a client's gradient and c that of all.

    After K steps from x to y_i a client's control variate is c_i - c + (x - y_i) / (K step) (option II). Its change,
    -c - (y_i - x) / (K step), is a function of what the server has: so only the changes of the model travel.
    # differs from the paper: that sends both, twice the bytes for the same iterates. Where K differs among clients, as
    by `local_epochs` on unequal shards, (x - y_i) / (K_i step) travels too.
    In the paper K is `local_steps`; eta_l, eta_g are the learning rates of `[client_optimizer]`, `[server_optimizer]`.
    Clients are weighted by their rows.
    Under `[privacy]` with noise on the upload, c_i is computed from the noisy upload, which is public.
    """

    gain = 1.0
    slopes = True
    refuses: ClassVar[dict[str, str]] = {
        "momentum": "control variates are of plain steps, and these of all clients alike",
        "schedule": "c_i is a change divided by the learning rate",
    }
    prox_step = LocalMethod.prox_step  # c_i and c cancel where nothing moves
    start_client = start_memory = from_zero  # c_i and c
    broadcast = whole_memory

    def push(self, c_i: Array, sent: Sent, local: Local) -> OwnRecord:
        return local.step * (c_i - sent.memory)

    def renew(self, c_i: Array, sent: Sent, upload: Array, local: Local) -> OwnRecord:
        return local.slope(upload) + c_i - sent.memory

    def absorb(self, c: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        """c moves by the share of those present times the mean change of their c_i."""
        return c - done.share * (c - done.gradient(1.0)), mean
