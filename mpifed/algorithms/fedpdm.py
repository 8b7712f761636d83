"""FedPDM: federated primal-dual learning with a regularizer that need not be smooth; with `[privacy]` FedPDM-DP.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek: "Privacy-Preserving Federated Primal-Dual Learning for Non-convex
Problems with Non-smooth Regularization" (IEEE MLSP 2023), Algorithm 1.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import (
    Rows,
    Weighted,
    check_rows,
    start_model,
)
from mpifed.algorithms.local import LocalSteps, contraction
from mpifed.algorithms.optimality import FedPDMClients, FedPDMServer, measure_of_optimality
from mpifed.algorithms.private import (
    NO_SHARE,
    Share,
    known,
    mean_released,
    protected,
    refuse_large,
    released,
    upload_fields,
    upload_share,
    weighted,
    weights,
)
from mpifed.core.exchange import Exchange, Measure
from mpifed.core.loops import combination
from mpifed.core.record import Array, bare_leaves, map_leaves, zeros
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.optimizers import SGD
from mpifed.maths.privacy.release import Release
from mpifed.maths.ranges import Count, Repeats, Size, Weight


class FedPDMBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters
    step: np.float64  # of a local step


@dataclass(frozen=True)
class FedPDM(Rows):
    """Each client takes steps on its augmented Lagrangian, (10); the server takes the prox of the mean upload, (13).

    In the paper eta^t is the learning rate of `[client_optimizer]`, Q `local_steps`, nu `tolerance`; x_i and lambda_i
    stay with the client, and h is the job's `[regularizer]`. Clients are weighted by their rows: with equal shards,
    the paper's mean.

    # differs from the paper: its (10a) takes steps of eta on a function of curvature rho and more, and diverges while
    eta rho > 2: so `local_rule` has two other meanings of eta. With "prox" eta limits how far the linearized function
    is followed.

    # differs from the paper: where `tolerance` ends the steps, their number depends on the data: under `[privacy]` it
    needs noise on the gradients, and all `local_steps` are accounted for.

    # differs from the paper: its (19) takes lambda_i and x_i to be public, which they are not. So with noise on the
    upload lambda_i is computed from the noisy upload, which is.

    Absent clients keep x_i and lambda_i, and only those present are averaged.
    """

    regularized: ClassVar[bool] = True  # supports [regularizer], and the model's nonconvex_penalty
    seeds_rows: ClassVar[bool] = True
    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: SGD
    rho: Size
    """Weight of the augmented Lagrangian's quadratic term."""
    local_rule: Literal["prox", "fedpd", "paper"] = "prox"
    """What the client's learning rate eta means: prox: the step is 1 / (rho + 1/eta); fedpd: eta / rho; paper: eta,
    refused unless eta rho < 2."""
    local_steps: Repeats = 1
    """Local steps in a round, at most; Q in the paper."""
    tolerance: Weight = 0.0
    """Local steps end when the squared norm of their direction is at most this, nu of (11); 0: all are taken. Not with
    noise on the upload."""
    start: Literal["server", "own"] = "server"
    """Where local steps begin: server: at the model sent; own: at the client's own last one."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the weighted sum of the clients' y_i - x_0."""
        fields = upload_fields(self.problem, self._share(0))
        return (Exchange("uploads", fields, self.ask, self.answer, self.absorb),)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss and gradient norm; the optimality measure (21)."""
        return (*super().measures, measure_of_optimality(self.problem, self.rho))

    @property
    def local(self) -> LocalSteps:
        return LocalSteps(self.problem, self.batch_size, self.local_steps, None, self.client_optimizer, self.rho)

    def check(self) -> list[str]:
        """The batch must fit the data, local steps must be stable, and the uploads must be accounted for."""
        if wrong := self.client_optimizer.wrong_end("client_optimizer"):  # which no step could be computed of
            return wrong
        wrong = check_rows(self.problem, self.batch_size) + self.local.check()
        wrong += self.client_optimizer.wrong_momentum("client_optimizer", "the dual variables are those of plain steps")
        keep = max(bare_leaves(self.local.keeps(self._step(1))), key=abs)
        if abs(keep) >= 1:
            eta, rho = self.client_optimizer.at(1), self.rho
            why = f"eta * rho = {eta:g} * {rho:g} = {eta * rho:g}" if self.local_rule == "paper" else f"eta = {eta:g}"
            wrong.append(
                f'[algorithm] local_rule = "{self.local_rule}": with {why} a local step multiplies x - x_0 by '
                f"{keep:.3g}, and so diverges; it must stay between -1 and 1: lower the learning rate, or take "
                'local_rule = "prox", which is stable for all'
            )
        return wrong + self._check_privacy()

    def _check_privacy(self) -> list[str]:
        privacy, wrong = self.problem.privacy, list[str]()
        if privacy is None or privacy.on_gradients:
            return wrong
        if self.tolerance:
            wrong.append(
                "[algorithm] tolerance: with noise on the upload the number of local steps would depend on the data; "
                'take a fixed number (tolerance = 0), or [privacy] noise_on = "gradients"'
            )
        if privacy.level == "client":
            return wrong
        if self.start == "own":
            wrong.append(
                '[algorithm] start = "own": with noise on the upload x_i depends on past records in a way for which no '
                'bound is proven; take start = "server", or [privacy] noise_on = "gradients"'
            )
        if privacy.trust != "local":
            wrong.append(
                f'[privacy] trust = "{privacy.trust}": a client of FedPDM keeps a dual variable, which only local '
                'noise makes public; take trust = "local", level = "client", or fedavg'
            )
        return wrong

    def start_server(self, now: Round) -> FedPDMServer:
        return FedPDMServer(start_model(self.problem, now), np.int64(0))

    def start_clients(self, block: Block, now: Round) -> FedPDMClients:
        """x_i at the initial model, lambda_i = 0."""
        model, n = start_model(self.problem, now), len(block.clients)
        models = map_leaves(lambda leaf: np.repeat(leaf[None], n, axis=0), model)
        return FedPDMClients(models, zeros(models))

    def ask(self, server: FedPDMServer, now: Round) -> FedPDMBroadcast:
        """x_0 and the step size of local steps."""
        refuse_large(self.problem, self._share(int(server.steps)), self.local_steps, server.model)
        return FedPDMBroadcast(server.model, np.float64(self._step(int(server.steps) + 1)))

    def answer(
        self, clients: FedPDMClients, broadcast: FedPDMBroadcast, block: Block, now: Round
    ) -> tuple[FedPDMClients, Weighted]:
        """(10): local steps, the update of lambda_i, and the upload y_i - x_0."""
        step, rho, start = float(broadcast.step), self.rho, broadcast.model

        def pushed(dual: Array, w: Array) -> Array:
            push = dual * dual.dtype.type(step)
            push += w * w.dtype.type(step * rho)
            return push  # type: ignore[no-any-return]

        starts = clients.model if self.start == "own" else None
        push, share = map_leaves(pushed, clients.dual, start), self._share(int(now.index))
        moved = self.local.run(Descent(start, step, self.local.keeps(step), push, starts, self.tolerance), block, now)
        weight = weights(self.problem, block)
        upload = map_leaves(partial(_uploaded, rho), moved, clients.dual)  # (10d)
        leaving = protected(self.problem, share, upload, weight, block, now)  # (12)
        public = known(self.problem, share, leaving, weight)
        dual = map_leaves(partial(_ascended, rho), clients.dual, public)  # (10c)
        models = map_leaves(lambda m, w: (m + w).astype(w.dtype, copy=False), moved, start)
        return FedPDMClients(models, dual), weighted(self.problem, leaving, weight)

    def absorb(self, server: FedPDMServer, total: Weighted, now: Round) -> FedPDMServer:
        """(13): the prox of h at the mean of what was uploaded, with step 1 / rho."""
        mean = mean_released(self.problem, self._share(int(now.index)), total, now)
        model = map_leaves(operator.add, server.model, mean)
        if self.problem.regularizer is not None:
            model = self.problem.regularizer.prox(model, 1 / self.rho)
        return FedPDMServer(model, server.steps + 1)

    def released(self, index: int) -> Release:
        return released(self.problem, self._share(index), self.local_steps, self.batch_size)

    def _step(self, t: int) -> float:
        """The step size of local steps in round t = 1, 2, ..."""
        eta = self.client_optimizer.at(t)
        return {"prox": 1 / (self.rho + 1 / eta), "fedpd": eta / self.rho, "paper": eta}[self.local_rule]

    def _share(self, index: int) -> Share:
        """The sensitivity of 2 (x_i - x_0) - lambda_i / rho to a record, lambda_i being that before the round."""
        privacy, step = self.problem.privacy, self._step(index + 1)
        if privacy is None:
            return NO_SHARE
        kappa = contraction(self.problem, self.local.keeps(step), step)
        remembers = privacy.level == "client"
        return upload_share(self.problem, step, 2.0, kappa, self.local_steps, self.batch_size, remembers)


def _uploaded(rho: float, moved: Array, dual: Array) -> Array:
    """y_i - x_0 = 2 (x_i - x_0) - lambda_i / rho, lambda_i being that before the round."""
    return combination((2.0, -1 / rho), (moved, dual))


def _ascended(rho: float, dual: Array, upload: Array) -> Array:
    """lambda_i + rho (x_0 - x_i), from y_i - x_0: (lambda_i - rho (y_i - x_0)) / 2."""
    ascended = combination((-rho, 1.0), (upload, dual))
    ascended *= ascended.dtype.type(0.5)
    return ascended.astype(dual.dtype, copy=False)  # type: ignore[no-any-return]
