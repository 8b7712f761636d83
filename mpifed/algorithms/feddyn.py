"""FedDyn: a dynamic regularizer, by which the minima of the clients' losses come to agree.

D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama: "Federated Learning Based on Dynamic
Regularization" (ICLR 2021, arXiv:2111.04263), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, Server, from_zero
from mpifed.core.record import Array
from mpifed.hyperparameters import Size


@dataclass(frozen=True)
class FedDyn(LocalMethod):
    """Each client takes steps on f_i(y) - <h_i, y> + alpha / 2 ||y - x||^2 from x; then h_i <- h_i - alpha (y_i - x).

    h_i, 0 at first, stays with the client, absent or not, and tends to grad f_i; y_i - x travels. The server keeps h,
    the mean of all h_i, and takes x = mean y_i - h / alpha, with the y_i of those present. It rests at the optimum,
    with absent clients and few local steps too: by default that of the mean of all f_i.

    # differs from the paper: it solves local problems exactly, and so h_i = grad f_i(y_i).

    # differs from the authors' code: for the optimum of all rows that gives client i the weight alpha / w_i, w_i being
    its rows relative to the mean client's, and lets clients count alike in both means; here `weights = "rows"` counts
    them by rows in both. With equal shards these agree.

    Measured and saved is the mean of the y_i of those present, x + h / alpha, which minibatches and absence move less
    than x; with a `[regularizer]` it is x, after its prox.
    Under `[privacy]` with noise on the upload, h_i is computed from the noisy upload, which is public.
    """

    gain = 1.0
    lasting = True
    refuses: ClassVar[dict[str, str]] = {
        "schedule": "where clients no longer move, the model goes on by h / alpha",
        "server_optimizer": "the model is mean y_i - h / alpha",
    }
    alpha: Size = field(kw_only=True, metadata={"tune": {"log": [1e-4, 1.0]}})
    """Weight of alpha / 2 ||y - x||^2, which draws a client towards the model it was sent."""
    weights: Literal["uniform", "rows"] = "uniform"  # type: ignore[misc]  # of the class elsewhere
    """Whose optimum is sought: uniform: of the mean of the clients' losses; rows: of the loss over all rows."""

    @property
    def pull(self) -> float:
        return self.alpha

    start_client = start_memory = from_zero  # h_i = 0; h = 0

    def push(self, h_i: Array, sent: Sent, local: Local) -> Array:
        return local.step * (h_i + self.alpha * sent.model)

    def renew(self, h_i: Array, sent: Sent, upload: Array, local: Local) -> Array:
        return h_i - self.alpha * upload

    def absorb(self, h: Array, mean: Array, done: Done) -> tuple[Array, Array]:
        h = h - self.alpha * done.share * mean
        return h, mean - h / self.alpha

    def prox_step(self, done: Done) -> float:
        return 1 / self.alpha

    def judged(self, server: Server) -> Array:
        unshrunk = self.problem.regularizer is None
        return server.model + server.memory / self.alpha if unshrunk else server.model
