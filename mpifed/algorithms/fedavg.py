"""Federated averaging, the SGD baseline, with or without momentum at the server.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017, arXiv:1602.05629). With one local step it is FedSGD on minibatches; with
several, parallel restarted SGD (H. Yu, S. Yang, S. Zhu, AAAI 2019, arXiv:1807.06629). Momentum is that of FedAvgM:
T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (2019, arXiv:1909.06335); adaptive steps of the server are those of FedOpt (arXiv:2003.00295). With
`[privacy]` it is FedAvg-DP.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.algorithms.local_method import LocalMethod


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
