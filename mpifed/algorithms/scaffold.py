"""SCAFFOLD: control variates against the drift of local steps on heterogeneous clients; with `[privacy]` SCAFFOLD-DP.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning" (ICML 2020, arXiv:1910.06378). With noise: M. Noble, A. Bellet, A. Dieuleveut: "Differentially
Private Federated Learning on Heterogeneous Data" (AISTATS 2022, arXiv:2111.09278).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import (
    Rows,
    Weighted,
    check_rows,
    model_template,
    start_model,
)
from mpifed.algorithms.local import LocalSteps, contraction
from mpifed.algorithms.private import (
    NO_SHARE,
    Share,
    known,
    mean_released,
    present_weight,
    protected,
    refuse_large,
    released,
    upload_fields,
    upload_share,
    weighted,
    weights,
)
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array, map_leaves, zeros
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.optimizers import AVERAGE, SGD, ServerSGD
from mpifed.maths.privacy.release import Release
from mpifed.maths.ranges import Count, Repeats


class ScaffoldServer(NamedTuple):
    """The server's state."""

    model: Parameters
    control: Parameters  # c, the mean of the clients' control variates
    steps: Array  # [] int64, rounds done


class ScaffoldBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters
    control: Parameters
    step: Array  # [] float64, this round's learning rate


@dataclass(frozen=True)
class Scaffold(Rows):
    """Local steps along gradient - c_i + c, where c_i estimates a client's gradient and c that of all.

    After Q steps from x to y_i a client's control variate is c_i - c + (x - y_i) / (Q step) (option II). Its change,
    -c - (y_i - x) / (Q step), is a function of what the server has: so only the changes of the model travel.
    # differs from the paper: that sends both, twice the bytes for the same iterates.
    In the paper K is `local_steps`; eta_l, eta_g are the learning rates of `[client_optimizer]`, `[server_optimizer]`.
    Clients are weighted by their rows.
    Under `[privacy]` with noise on the upload, c_i is computed from the noisy upload, which is public.
    """

    regularized: ClassVar[bool] = True  # supports [regularizer], and the model's nonconvex_penalty
    seeds_rows: ClassVar[bool] = True
    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: SGD
    server_optimizer: ServerSGD = AVERAGE
    local_steps: Repeats = 1
    """Local steps in a round, K in the paper."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the weighted sum of the clients' changes."""
        fields = upload_fields(self.problem, self._share(self.client_optimizer.at(1)))
        return (Exchange("changes", fields, self.ask, self.answer, self.absorb),)

    @property
    def local(self) -> LocalSteps:
        return LocalSteps(self.problem, self.batch_size, self.local_steps, None, self.client_optimizer)

    def check(self) -> list[str]:
        """The batch must fit the data, steps must be without momentum, and uploads must be accounted for."""
        wrong = check_rows(self.problem, self.batch_size) + self.local.check()
        why = "control variates are of plain steps, and these of all clients alike"
        wrong += self.client_optimizer.wrong_momentum("client_optimizer", why)
        wrong += self.client_optimizer.wrong_end("client_optimizer")
        wrong += self.server_optimizer.wrong_momentum("server_optimizer", "SCAFFOLD's server has none")
        privacy = self.problem.privacy
        if privacy is not None and privacy.level == "sample" and privacy.trust != "local":
            wrong.append(
                f'[privacy] trust = "{privacy.trust}": a client of SCAFFOLD keeps what it computes from its own '
                'upload, which only local noise makes public; take trust = "local", level = "client", or fedavg'
            )
        return wrong

    def start_server(self, now: Round) -> ScaffoldServer:
        model = start_model(self.problem, now)
        return ScaffoldServer(model, zeros(model), np.int64(0))

    def start_clients(self, block: Block, now: Round) -> Parameters:
        """c_i = 0."""
        model, n = model_template(self.problem), len(block.clients)
        return map_leaves(lambda leaf: np.zeros((n, *leaf.shape), leaf.dtype), model)

    def ask(self, server: ScaffoldServer, now: Round) -> ScaffoldBroadcast:
        step = self.client_optimizer.at(int(server.steps) + 1)
        refuse_large(self.problem, self._share(step), self.local_steps, server.model)
        return ScaffoldBroadcast(server.model, server.control, np.float64(step))

    def answer(
        self, clients: Parameters, broadcast: ScaffoldBroadcast, block: Block, now: Round
    ) -> tuple[Parameters, Weighted]:
        """Each client's change of the model after its local steps, weighted by its number of rows."""
        step = float(broadcast.step)

        def towards(control: Array, common: Array) -> Array:
            push = control - common
            push *= push.dtype.type(step)
            return push  # type: ignore[no-any-return]

        push = map_leaves(towards, clients, broadcast.control)
        share = self._share(step)
        moved = self.local.run(Descent(broadcast.model, step, self.local.keeps(step), push), block, now)
        weight = weights(self.problem, block)
        leaving = protected(self.problem, share, moved, weight, block, now)

        def renewed(control: Array, common: Array, change: Array) -> Array:
            new = change * change.dtype.type(-1 / (self.local_steps * step))
            new += control
            new -= common
            return new  # type: ignore[no-any-return]

        clients = map_leaves(renewed, clients, broadcast.control, known(self.problem, share, leaving, weight))
        return clients, weighted(self.problem, leaving, weight)

    def absorb(self, server: ScaffoldServer, total: Weighted, now: Round) -> ScaffoldServer:
        """Adds the mean change to the model, and the mean change of all clients' c_i to c."""
        step = self.client_optimizer.at(int(server.steps) + 1)
        change = mean_released(self.problem, self._share(step), total, now)
        share = present_weight(self.problem, total) / self.problem.clients

        def controlled(c: Array, d: Array) -> Array:
            return c - c.dtype.type(share) * (c + d * d.dtype.type(1 / (self.local_steps * step)))  # type: ignore[no-any-return]

        control = map_leaves(controlled, server.control, change)
        rate = self.server_optimizer.at(int(server.steps) + 1)
        model = map_leaves(lambda w, d: w + w.dtype.type(rate) * d, server.model, change)
        if self.problem.regularizer is not None:
            model = self.problem.regularizer.prox(model, rate * self.local_steps * step)
        return ScaffoldServer(model, control, server.steps + 1)

    def released(self, index: int) -> Release:
        return released(
            self.problem, self._share(self.client_optimizer.at(index + 1)), self.local_steps, self.batch_size
        )

    def _share(self, step: float) -> Share:
        """The sensitivity of the change to a record; at level "client" c_i may depend on all of its records."""
        privacy = self.problem.privacy
        if privacy is None:
            return NO_SHARE
        kappa = contraction(self.problem, self.local.keeps(step), step)
        remembers = privacy.level == "client"
        return upload_share(self.problem, step, 1.0, kappa, self.local_steps, self.batch_size, remembers)
