"""FedVARP: against the variance of who takes part, by what the absent have sent last.

D. Jhunjhunwala, P. Sharma, A. Nagarkatti, G. Joshi: "FedVARP: Tackling the Variance Due to Partial Client Participation
in Federated Learning" (UAI 2022, arXiv:2207.14130).
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, from_zero
from mpifed.core.record import Array


@dataclass(frozen=True)
class FedVARP(LocalMethod):
    """FedAvg whose server steps along M + mean_S (D_i - M_i), M_i being the last change D_i of a client, M their mean.

    Then M_i <- D_i for the clients S present. With all clients present it is FedAvg, and with some of them it comes to
    where that does.

    # differs from the paper: the client keeps M_i and sends D_i - M_i, so that sums suffice; the server keeps M alone.
    M_i is a change, and not divided by the learning rate, which in the paper is constant. Clients are weighted by their
    rows. Under `[privacy]` M_i is the sum of what has been sent, noise included.
    """

    gain = 1.0
    prox_step = LocalMethod.prox_step  # M is the mean change where nothing moves

    start_client = start_memory = from_zero  # M_i = 0; M = 0

    def upload(self, M_i: Array, sent: Sent, change: Array, local: Local) -> Array:
        return change - M_i

    def renew(self, M_i: Array, sent: Sent, upload: Array, local: Local) -> Array:
        return M_i + upload

    def absorb(self, M: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        return M + done.share * mean, M + mean
