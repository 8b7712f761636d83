"""SCAFFOLD: control variates against the drift of local steps on heterogeneous clients; with `[privacy]` SCAFFOLD-DP.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning" (ICML 2020, arXiv:1910.06378). With noise: M. Noble, A. Bellet, A. Dieuleveut: "Differentially
Private Federated Learning on Heterogeneous Data" (AISTATS 2022, arXiv:2111.09278).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.local import Local
from mpifed.algorithms.local_method import Done, LocalMethod, Sent
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array


class Both(NamedTuple):
    """An upload of clients whose steps differ in number."""

    change: Array  # y_i - x
    gradient: Array  # (x - y_i) / (K_i step), a client's mean gradient plus c_i - c


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
    refuses: ClassVar[Mapping[str, str]] = {
        "momentum": "control variates are of plain steps, and these of all clients alike",
        "schedule": "c_i is a change divided by the learning rate",
    }
    prox_step = LocalMethod.prox_step  # c_i and c cancel where nothing moves

    def start_client(self, x: Array) -> Array:
        """c_i = 0."""
        return np.zeros_like(x)

    start_memory = start_client  # c = 0

    def broadcast(self, c: Array) -> Array:
        return c

    def push(self, c_i: Array, sent: Sent, local: Local) -> OwnRecord:
        return local.step * (c_i - sent.memory)

    def like(self, x: Array) -> OwnRecord:
        return Both(x, x) if self.uneven else x

    def upload(self, c_i: Array, sent: Sent, change: Array, local: Local) -> OwnRecord:
        return Both(change, change / -local.rate) if self.uneven else change

    def both(self, upload: OwnRecord, rate: float | Array) -> Both:
        """Both parts, also where the change alone was sent."""
        return upload if self.uneven else Both(upload, upload * (-1 / rate))

    def renew(self, c_i: Array, sent: Sent, upload: OwnRecord, local: Local) -> OwnRecord:
        return self.both(upload, local.rate).gradient + c_i - sent.memory

    def absorb(self, c: Array, mean: OwnRecord, done: Done) -> tuple[Array, Array]:
        """c moves by the share of those present times the mean change of their c_i."""
        both = self.both(mean, done.rate)
        return c - done.share * (c - both.gradient), both.change
