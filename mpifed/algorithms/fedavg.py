"""Federated averaging, the SGD baseline, with or without momentum at the server; FedProx.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017, arXiv:1602.05629). With one local step it is FedSGD on minibatches; with
several, parallel restarted SGD (H. Yu, S. Yang, S. Zhu, AAAI 2019, arXiv:1807.06629). Momentum is that of FedAvgM:
T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (2019, arXiv:1909.06335); adaptive steps of the server are those of FedOpt (arXiv:2003.00295). FedProx:
T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks"
(MLSys 2020, arXiv:1812.06127). With `[privacy]` they are FedAvg-DP and FedProx-DP. Alone:
a baseline of many papers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.record import Array
from mpifed.maths.ranges import Weight

if TYPE_CHECKING:
    from mpifed.algorithms.local import Local
    from mpifed.algorithms.local_method import Sent
    from mpifed.maths.objectives import Parameters


@dataclass(frozen=True)
class FedAvg(LocalMethod):
    """Every round the participating clients take SGD steps on their own rows, and their changes are averaged.

    Either `local_steps` minibatches of `batch_size` rows, drawn without replacement as far as the shard goes (a client
    with fewer rows has all of them in every minibatch), or
    `local_epochs` passes over the shard in minibatches of `batch_size`, the last one of a pass possibly smaller.
    Parallel restarted SGD with E steps between averages is `local_steps = E`. All local steps of a round have that
    round's learning rate. Momentum of `[client_optimizer]` is a client's within a round.

    Momentum of `[server_optimizer]` is the server's: v = momentum v + mean change, w += v. The change holds the
    clients' learning rate, and so v keeps every gradient with that of its own round. With one local step that is
    Polyak's heavy ball, w_{t+1} = w_t - rate_t g_t + momentum (w_t - w_{t-1}). With a constant rate it is momentum SGD,
    u = momentum u + g, w -= rate u, as parallel restarted SGD with momentum has it when it averages after every step
    (H. Yu, R. Jin, S. Yang, ICML 2019, arXiv:1905.03817, E = 1). With a decaying one, momentum SGD would take all of u
    by the new rate: the same as here with momentum rate_t / rate_{t-1} in place of momentum, which tends to it.

    A `[regularizer]` h is the server's: after averaging, w = prox of h with step s, by which a constant gradient
    moves w where the method rests: `LocalSteps.rate_of`, which counts the clients' momentum and the pull of FedProx,
    times the server's learning rate. For w = prox_{s h}(w - s g) says that -g is a subgradient of h at w, so that w
    is the optimum; with another step than that of g it would be that of a smaller or larger h. With one local step
    that is proximal stochastic gradient descent; with several, gradients change on the way, as they do without h. The
    server's momentum keeps how far w has really moved, prox and all: nothing, where the method rests. So s is that of
    the method without momentum, and it rests where that does (P. Ochs, Y. Chen, T. Brox, T. Pock: "iPiano", SIAM J.
    Imaging Sciences 2014, arXiv:1404.4805); but in Nesterov's form w moves by 1 + momentum times the mean change, and
    so does s.
    """

    gain = 1.0


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients also minimize mu / 2 ||x - x_0||^2, x_0 being the model that they were sent.

    With mu = 0 it is FedAvg. The local problem is solved by the same steps, and inexactly, as there. The stragglers of
    the paper's experiments are those of `[participation] stragglers`, whom its FedAvg leaves out: `drop_stragglers`.
    """

    gain = 1.0
    prox_step = LocalMethod.prox_step  # whose rate counts the pull to the model sent
    mu: Weight = field(kw_only=True)
    """Weight of mu / 2 ||x - x_0||^2, which draws a client towards the model it was sent; 0 is FedAvg."""

    @property
    def pull(self) -> float:
        return self.mu

    def push(self, own: tuple[()], sent: Sent, local: Local) -> Array | None:
        return local.step * self.mu * sent.model if self.mu else None


@dataclass(frozen=True)
class Alone(FedAvg):
    """The baseline "local only": each client trains a model of its own, and hears nothing of the others.

    By these models clients are judged on their own test rows: columns `client_test_...`, and clients.csv. Other
    columns, and the model that is saved, are of the mean over the clients of a round, as in one-shot averaging. Only
    for that do models travel, and no client takes it.
    """

    gain = 1.0
    regularized = False
    refuses: ClassVar = {"server_optimizer": "the model is the mean of the clients', who take none"}
    private_state: ClassVar[str] = "its own model"  # type: ignore[assignment]  # of the class, whatever its settings

    def start_client(self, x: Array) -> Array:
        return x

    def begin(self, own: Array, sent: Sent, local: Local) -> Array:
        return own

    def retain(self, own: Array, sent: Sent, change: Array, upload: Array, local: Local) -> Array:
        return sent.model + change

    def personal(self, own: Array, model: Parameters) -> Parameters:
        return self.record(own)
