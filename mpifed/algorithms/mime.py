"""MIME: FedCM's steps without client drift, for which gradients of whole shards are summed before.

S. P. Karimireddy, M. Jaggi, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "Breaking the centralized
barrier for cross-device federated learning" (NeurIPS 2021, arXiv:2008.03606), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.fedcm import FedCM
from mpifed.algorithms.local_method import Done, Local, Sent
from mpifed.algorithms.reveals import Received, Revealed
from mpifed.core.exchange import OwnRecord
from mpifed.core.record import Array


class ServerStatistics(NamedTuple):
    """What the server keeps."""

    m: Array  # momentum
    c: Array  # the mean of the clients' gradients at the model of the round


@dataclass(frozen=True)
class MIME(FedCM):
    """Local steps y <- y - eta (alpha (g_i(y) - g_i(x) + c) + (1 - alpha) m); then m <- alpha c + (1 - alpha) m.

    g_i(y) and g_i(x) are of the same minibatch: a step costs two gradients. c, the mean gradient of the round's
    whole shards at the model x sent, is uploaded before the steps. The server keeps m, 0 at first, and clients nothing.
    In the paper alpha is 1 - beta. With alpha = 1 it is SVRG among clients.

    # differs from the paper: clients are weighted by their rows; of its base optimizers this is SGD with momentum; its
    c and m travel as one vector, with x again.
    """

    slopes = False
    refuses: ClassVar[dict[str, str]] = {"momentum": "local steps have the server's"}
    why_no_privacy = "a gradient of all rows travels, for which there is no noise"
    prox_step = FedCM.prox_step

    def start_memory(self, x: Array) -> OwnRecord:
        """m = 0, and c is computed before it is used."""
        return ServerStatistics(np.zeros_like(x), np.zeros_like(x))

    def prepare(self, own: tuple[()], sent: Sent, local: Local) -> tuple[tuple[()], Array]:
        return own, local.gradient(sent.model)

    def prepared(self, memory: OwnRecord, mean: Array) -> OwnRecord:
        return memory._replace(c=mean)

    def broadcast(self, memory: OwnRecord) -> OwnRecord:
        """What local steps follow beside the change of the gradient, divided by alpha."""
        return memory.c + (1 / self.alpha - 1) * memory.m

    def drift(self, sent: Sent) -> OwnRecord:
        return sent.memory

    def descend(self, move: Callable[[Array], Array], at: Array, model: Array, kept: None) -> tuple[Array, None]:
        return move(at) - move(model), None

    def absorb(self, memory: OwnRecord, mean: Array, done: Done) -> tuple[OwnRecord, Array]:
        return memory._replace(m=self.alpha * memory.c + (1 - self.alpha) * memory.m), mean

    def reveals(self, received: Received) -> Iterable[Revealed]:
        """Nothing: the change of one step is that by c and m, whatever the minibatch. The audit knows c's parts."""
        return ()
