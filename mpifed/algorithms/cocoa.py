"""CoCoA+: dual coordinate ascent at every client on its own rows, whose results are added up.

C. Ma, V. Smith, M. Jaggi, M. I. Jordan, P. Richtarik, M. Takac: "Adding vs. Averaging in Distributed Primal-Dual
Optimization" (ICML 2015); V. Smith, S. Forte, C. Ma, M. Takac, M. I. Jordan, M. Jaggi: "CoCoA: A General Framework for
Communication-Efficient Distributed Optimization" (JMLR 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.cells import Grid, check_duals, lambda_n, measures_of_cells, padded
from mpifed.algorithms.measure import Measure
from mpifed.algorithms.refused_steps import check_rows, too_many
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array, in_memory
from mpifed.core.refusals import messages
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.hyperparameters import Repeats
from mpifed.maths.coordinates import ascend
from mpifed.maths.objectives import Parameters

ROWS = 256  # of one client in memory at once; fixed, because it decides the bits of what the client sends


class CoCoAServer(NamedTuple):
    """The server's state."""

    w: Array  # [p] float64, X'alpha / (lambda N) of the changes received so far


@in_memory("alpha")
class CoCoAClients(NamedTuple):
    """State of the clients, which never leaves them."""

    alpha: Array  # [n, S], zeros beyond the client's rows


@in_memory("w")
class CoCoABroadcast(NamedTuple):
    """Broadcast of a round."""

    w: Array  # [p]
    sigma: Array  # [] float64, sigma'


class Change(NamedTuple):
    """A client's upload."""

    w: Array  # [n, p] X'(change of alpha) / (lambda N)


@dataclass(frozen=True)
class CoCoA(Grid):
    """Each client improves its own alpha on a model of the dual, (9), by passes of coordinate ascent.

    K in the paper is the number of participating clients of a round, H is `local_epochs` passes over a client's rows,
    each in a new random order, and n is N here. As the clients do not see each other's steps, each counts the quadratic
    term of its own sigma' = K times; then all steps are added, gamma = 1 in the paper. That is safe whatever the data
    (Lemma 4): no round lowers the dual. One client alone does SDCA.

    A pass is sequential, row by row, and is done by the processor even where there is a device.

    Absent clients keep their alpha, and it counts: w stays X'alpha / (lambda N) over all rows.
    """

    certifies_gap: ClassVar[bool] = True
    why_no_start: ClassVar[str] = "its dual variables begin at 0"
    local_epochs: Repeats = 1
    """Passes of coordinate ascent over the client's rows in a round."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the sum of the clients' changes of w."""
        fields = Change(Field((self.problem.features,)))
        return (Exchange("changes", fields, self.ask, self.answer, self.absorb),)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective, dual value and duality gap."""
        return measures_of_cells(self, lambda clients, for_duals, block: clients.alpha)

    def check(self) -> list[str]:
        """Requires data split by rows, and a dual problem."""
        drawn = messages([too_many("local_epochs", self.local_epochs * self.problem.most)])
        return check_rows(self.problem, 1) + check_duals(self.problem) + drawn

    def start_server(self, now: Round) -> CoCoAServer:
        return CoCoAServer(np.zeros(self.problem.features))

    def start_clients(self, block: Block, now: Round) -> CoCoAClients:
        return CoCoAClients(np.zeros((len(block.clients), int(block.counts.max())), block.dtype))

    def model(self, server: CoCoAServer) -> Parameters:
        return self.of_weights(server.w)

    def ask(self, server: CoCoAServer, now: Round) -> CoCoABroadcast:
        return CoCoABroadcast(server.w.astype(self.problem.dtype), np.float64(now.asked.sum()))

    def answer(
        self, clients: CoCoAClients, broadcast: CoCoABroadcast, block: Block, now: Round
    ) -> tuple[CoCoAClients, Change]:
        """Algorithm 1: approximately solves the local problem by passes over the rows."""
        alones = (block.host.only(np.array([i])) for i in range(len(block.clients)))
        passes = [self._pass(*pair, broadcast, now) for pair in zip(clients.alpha, alones, strict=True)]
        alphas, changes = zip(*passes, strict=True)
        return CoCoAClients(padded(alphas, clients.alpha.shape[1])), Change(np.stack(changes))

    def absorb(self, server: CoCoAServer, total: Change, now: Round) -> CoCoAServer:
        return CoCoAServer(server.w + total.w)

    def _pass(self, alpha: Array, alone: Block, broadcast: CoCoABroadcast, now: Round) -> tuple[Array, Array]:
        """(alpha [s], change of w [p]) of one client, whose alpha is the beginning of an array.

        The scores that a step sees are those of w + sigma' X'(change so far) / (lambda N).
        """
        size, dual = alone.shards[0].samples, self.problem.dual
        alpha = alpha[:size]
        rows = alone.draw(now, "local passes", self.local_epochs * size)[0]
        new, w, pulled = alpha.copy(), broadcast.w.copy(), np.zeros_like(broadcast.w)
        scale = float(broadcast.sigma) / lambda_n(self.problem)
        for epoch in rows.reshape(-1, size):  # no row twice in one call of `ascend`
            for at in np.split(epoch, range(ROWS, size, ROWS)):
                batch = alone.take(at[None])
                X = batch.X[0]
                stepped, w = ascend(dual, X, batch.y[0], new[at], w, scale)
                pulled += X.T @ (stepped - new[at])
                new[at] = stepped
        return new, pulled * (1 / lambda_n(self.problem))
