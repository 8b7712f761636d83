"""FedBuff: as soon as K answers are there, their mean moves the model, each the less, the more rounds it has missed.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba: "Federated Learning with Buffered
Asynchronous Aggregation" (AISTATS 2022, arXiv:2106.06639).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifed.algorithms.local_method import Local, LocalMethod, Sent
from mpifed.core.record import Array


@dataclass(frozen=True)
class FedBuff(LocalMethod):
    """x <- x + eta_g / K sum (y_i - x_i) / sqrt(1 + t_i) over K answers, of which the i-th has missed t_i rounds.

    x_i is the model from which that client began. K, and how many clients are at work, are those of `[asynchrony]`,
    eta_g is the rate of `[server_optimizer]`. Without `[asynchrony]` it is FedAvg whose clients all count alike.

    # differs from the paper: who waits in a buffer is not asked again before it is full.
    """

    weights = "uniform"
    gain = 1.0  # of an answer that has missed no round, as all are without [asynchrony]

    def upload(self, own: tuple[()], sent: Sent, change: Array, local: Local) -> Array:
        upload: Array = change / np.sqrt(1 + local.staleness)
        return upload
