"""Alone: clients that do not learn from each other, a baseline of many papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.local_method import Local, Sent
from mpifed.core.record import Array
from mpifed.maths.objectives import Parameters


@dataclass(frozen=True)
class Alone(FedAvg):
    """The baseline "local only": each client trains a model of its own, and hears nothing of the others.

    By these models clients are judged on their own test rows: columns `client_test_...`, and clients.csv. Other
    columns, and the model that is saved, are of the mean over the clients of a round, as in one-shot averaging. Only
    for that do models travel, and no client takes it.
    """

    gain = 1.0
    regularized = False
    refuses: ClassVar[dict[str, str]] = {"server_optimizer": "the model is the mean of the clients', who take none"}
    private_state: ClassVar[str] = "its own model"  # type: ignore[assignment]  # of the class, whatever its settings

    def start_client(self, x: Array) -> Array:
        return x

    def begin(self, own: Array, sent: Sent, local: Local) -> Array:
        return own

    def retain(self, own: Array, sent: Sent, change: Array, upload: Array, local: Local) -> Array:
        return sent.model + change

    def personal(self, own: Array, model: Parameters) -> Parameters:
        return self.record(own)
