"""Federated averaging, the SGD baseline, with or without momentum at the server; FedProx.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-Efficient Learning of Deep Networks
from Decentralized Data" (AISTATS 2017, arXiv:1602.05629). With one local step it is FedSGD on minibatches; with
several, parallel restarted SGD (H. Yu, S. Yang, S. Zhu, AAAI 2019, arXiv:1807.06629). Momentum is that of FedAvgM:
T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification" (2019, arXiv:1909.06335). FedProx: T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith:
"Federated Optimization in Heterogeneous Networks" (MLSys 2020, arXiv:1812.06127). With `[privacy]` they are FedAvg-DP
and FedProx-DP.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import (
    Rows,
    Weighted,
    check_rows,
    minibatches,
    start_model,
)
from mpifed.algorithms.local import LocalSteps, contraction
from mpifed.algorithms.private import (
    NO_SHARE,
    Share,
    mean_released,
    protected,
    refuse_large,
    released,
    upload_fields,
    upload_share,
    weighted,
    weights,
)
from mpifed.core.exchange import Exchange, Lazy
from mpifed.core.record import ABSENT, Array, added, bare_leaves, beside, map_leaves, zeros
from mpifed.core.round import Round
from mpifed.data.block import Batch, Block
from mpifed.maths.objectives import Parameters, concave, concave_gradient
from mpifed.maths.optimizers import AVERAGE, SGD, ServerSGD
from mpifed.maths.privacy.release import Release
from mpifed.maths.ranges import Count, Repeats, Weight

_NUMBERS = 2**19  # of changes that are made before they are added, so that they are in the cache


class FedAvgServer(NamedTuple):
    """The server's state."""

    model: Parameters
    steps: np.int64  # rounds done
    velocity: Parameters  # v; ABSENT without momentum


class FedAvgBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters
    step: np.float64  # this round's learning rate


@dataclass(frozen=True)
class FedAvg(Rows):
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
    moves w where the method rests: `LocalSteps.rate`, which counts the clients' momentum and the pull of FedProx,
    times the server's learning rate. For w = prox_{s h}(w - s g) says that -g is a subgradient of h at w, so that w
    is the optimum; with another step than that of g it would be that of a smaller or larger h. With one local step
    that is proximal stochastic gradient descent; with several, gradients change on the way, as they do without h. The
    server's momentum keeps how far w has really moved, prox and all: nothing, where the method rests. So s is that of
    the method without momentum, and it rests where that does (P. Ochs, Y. Chen, T. Brox, T. Pock: "iPiano", SIAM J.
    Imaging Sciences 2014, arXiv:1404.4805); but in Nesterov's form w moves by 1 + momentum times the mean change, and
    so does s.
    """

    regularized: ClassVar[bool] = True  # supports [regularizer], and the model's nonconvex_penalty
    seeds_rows: ClassVar[bool] = True
    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: SGD
    server_optimizer: ServerSGD = AVERAGE
    local_steps: Repeats | None = None
    """Local SGD steps in a round; give this or `local_epochs`. With neither it is one step."""
    local_epochs: Repeats | None = None
    """Local passes over all rows of the client in a round, the last minibatch of a pass possibly smaller."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the weighted sum of the clients' changes."""
        fields = upload_fields(self.problem, self._share(self.client_optimizer.at(1)))
        return (Exchange("changes", fields, self.ask, self.answer, self.absorb),)

    @property
    def local(self) -> LocalSteps:
        return LocalSteps(
            self.problem, self.batch_size, self.local_steps, self.local_epochs, self.client_optimizer, self.proximity
        )

    @property
    def proximity(self) -> float:
        """mu of the clients' mu / 2 ||x - x_0||^2."""
        return 0.0

    def check(self) -> list[str]:
        """Batch size, local steps and optimizers must fit the data and each other."""
        wrong = check_rows(self.problem, 1 if self.local_epochs else self.batch_size) + self.local.check()
        return wrong + self.server_optimizer.wrong("server_optimizer")

    def start_server(self, now: Round) -> FedAvgServer:
        model = start_model(self.problem, now)
        return FedAvgServer(model, np.int64(0), zeros(model) if self.server_optimizer.momentum else ABSENT)

    def ask(self, server: FedAvgServer, now: Round) -> FedAvgBroadcast:
        step = self.client_optimizer.at(int(server.steps) + 1)
        refuse_large(self.problem, self._share(step), self.local.count, server.model)
        return FedAvgBroadcast(server.model, np.float64(step))

    def answer(
        self, clients: tuple[()], broadcast: FedAvgBroadcast, block: Block, now: Round
    ) -> tuple[tuple[()], Weighted | Lazy]:
        """Each client's change of the model after its local steps, weighted by its number of rows."""
        if self.local.single_step and self.problem.privacy is None and not self.client_optimizer.nesterov:
            given = broadcast, block, now
            return clients, Lazy(partial(self._parts, *given), partial(self._total, *given))
        return clients, self._changes(broadcast, block, now)

    def _changes(self, broadcast: FedAvgBroadcast, block: Block, now: Round) -> Weighted:
        step, mu = float(broadcast.step), self.proximity
        push = map_leaves(lambda w: w * w.dtype.type(step * mu), broadcast.model) if mu else None
        share = self._share(step)
        change = self.local.run(Descent(broadcast.model, step, self.local.keeps(step), push), block, now)
        weight = weights(self.problem, block)
        leaving = protected(self.problem, share, change, weight, block, now)
        return weighted(self.problem, leaving, weight)

    def _parts(self, broadcast: FedAvgBroadcast, block: Block, now: Round) -> Iterator[tuple[Array, Weighted]]:
        """The changes after one step, of so many clients at a time that they stay in the cache."""
        step, model, local = float(broadcast.step), broadcast.model, self.local
        if self.proximity or concave(self.problem.objective) or block.xp is not np:
            yield np.arange(len(block.clients)), self._changes(broadcast, block, now)
            return
        weight, few = weights(self.problem, block), _few(model)
        factors = [float(keep) - 1 for keep in bare_leaves(local.keeps(step))]
        for who, part, _ in block.by_batch_size(self.batch_size):
            (batch,) = local.minibatches(part, now)
            each = self.problem.objective.gradients(model, batch.X, batch.y, batch.weights * -step, few)
            for at, change in each:
                for leaf, w, factor in zip(bare_leaves(change), bare_leaves(model), factors, strict=True):
                    if factor:
                        leaf += w * leaf.dtype.type(factor)
                yield who[at], weighted(self.problem, change, weight[who[at]])

    def _total(self, broadcast: FedAvgBroadcast, block: Block, now: Round) -> Weighted:
        """The weighted sum of all clients' changes after one step, from products over many minibatches at once."""
        step, objective, weight = float(broadcast.step), self.problem.objective, self.problem.weights[block.clients]
        decay = self.client_optimizer.weight_decay

        def change(clients: Block, batch: Batch) -> Parameters:
            rows, batch = batch.y.shape[1], batch.together()
            each = np.repeat(self.problem.weights[clients.clients], rows)[None] * (-step / rows)
            mean_gradient = objective.gradient(broadcast.model, batch.X, batch.y, beside(batch.y, each))
            return map_leaves(lambda leaf: leaf[0], mean_gradient)

        def public(leaf: Array, w: Array, counts: bool) -> Array:
            if objective.l2 and counts:
                leaf += w * w.dtype.type(-2 * step * objective.l2 * weight.sum())
            if decay:
                leaf += w * w.dtype.type(-step * decay * weight.sum())
            if concave(objective) and counts:
                leaf += concave_gradient(objective, w) * w.dtype.type(-step * weight.sum())
            return leaf

        changes = added(change(*pair) for pair in minibatches(self.problem, block, now, self.batch_size))
        parts = objective.penalized(broadcast.model)
        return Weighted(map_leaves(public, changes, broadcast.model, parts), weight.sum())

    def absorb(self, server: FedAvgServer, total: Weighted, now: Round) -> FedAvgServer:
        """Adds the mean change, or the velocity updated with it; then applies the regularizer's prox."""
        t, optimizer = int(server.steps) + 1, self.server_optimizer
        step, rate, momentum = self.client_optimizer.at(t), optimizer.at(t), optimizer.momentum
        change, velocity = mean_released(self.problem, self._share(step), total, now), server.velocity
        if momentum:
            velocity = map_leaves(lambda v, d: v * v.dtype.type(momentum) + d, velocity, change)
            ahead = map_leaves(lambda v, d: v * v.dtype.type(momentum) + d, velocity, change)
            change = ahead if optimizer.nesterov else velocity
        if rate != 1:
            change = map_leaves(lambda d: d * d.dtype.type(rate), change)
        model = map_leaves(operator.add, server.model, change)
        if self.problem.regularizer is not None:
            reach = rate * self.local.rate(step)
            model = self.problem.regularizer.prox(model, reach * (1 + momentum) if optimizer.nesterov else reach)
            if momentum and rate:  # a schedule that has ended at 0 stays there
                velocity = map_leaves(lambda new, old: (new - old) / new.dtype.type(rate), model, server.model)
        return FedAvgServer(model, server.steps + 1, velocity)

    def released(self, index: int) -> Release:
        return released(
            self.problem, self._share(self.client_optimizer.at(index + 1)), self.local.count, self.batch_size
        )

    def _share(self, step: float) -> Share:
        """The sensitivity of a client's change to a single record."""
        if self.problem.privacy is None:
            return NO_SHARE
        kappa = contraction(self.problem, self.local.keeps(step), step)
        return upload_share(self.problem, step, 1.0, kappa, self.local.count, self.batch_size)


def _few(model: Parameters) -> int:
    """Clients whose changes are made at a time: multiples of four, which are added side by side."""
    return max(4, _NUMBERS // max(1, sum(leaf.size for leaf in bare_leaves(model))) // 4 * 4)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose clients also minimize mu / 2 ||x - x_0||^2, x_0 being the model that they were sent.

    With mu = 0 it is FedAvg. The local problem is solved by the same steps, and inexactly, as there.
    """

    mu: Weight = field(kw_only=True)
    """Weight of mu / 2 ||x - x_0||^2, which draws a client towards the model it was sent; 0 is FedAvg."""

    @property
    def proximity(self) -> float:
        return self.mu
