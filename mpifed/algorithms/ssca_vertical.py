"""Mini-batch SSCA for vertically split data: Algorithms 3 and 4, see `mpifed.algorithms.ssca_server`."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.algorithms.columns import Columns, Pass, PassBroadcast, PassUpload, check_columns, draw_rows
from mpifed.algorithms.functions import counts_some
from mpifed.algorithms.horizontal import count_samples, start_model
from mpifed.algorithms.ssca_server import SSCABase, SSCAServer
from mpifed.core.exchange import Exchange
from mpifed.core.record import ABSENT
from mpifed.core.round import Round


@dataclass(frozen=True)
class SSCAVertical(SSCABase, Columns):
    """Algorithms 3 and 4: the server draws `batch_size` rows; clients sum scores and upload gradients of their columns.

    All clients have the labels, or `label_holder` alone has them. The holder, or client 0, sends the head's gradient
    and the constraints' values: in the paper that is the fastest client, or any.
    """

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The clients receive the sum of the scores, the server the gradients."""
        points = 2 if self.recursive else 1
        batch_pass = Pass(self.problem, self.batch_size, self.label_holder, self.sender, points)
        return batch_pass.exchanges(self.ask, self.absorb)

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """Counts the samples of each function, where any averages over a subset."""
        if not counts_some(self.problem):
            return ()
        return (count_samples(self.problem, self.with_shares, sender=self.sender),)

    def check(self) -> list[str]:
        """Split and batch size must fit the data."""
        return super().check() + check_columns(self.problem, self.batch_size, self.label_holder)

    def start_server(self, now: Round) -> SSCAServer:
        """Step 1: any w_1, and empty surrogates."""
        return self.begin(start_model(self.problem, now))

    def ask(self, server: SSCAServer, now: Round) -> PassBroadcast:
        """Step 3: row indices and w_t."""
        rows = draw_rows(self.problem, now, self.batch_size)
        if not self.recursive:
            return PassBroadcast(rows, server.model, ABSENT, server.shares, ABSENT, ABSENT)
        return PassBroadcast(rows, server.model, server.previous, server.shares, self.keep(server), ABSENT)

    def absorb(self, server: SSCAServer, total: PassUpload, now: Round) -> SSCAServer:
        """Step 7: the surrogates (13), (20), the convex problem, the step (5)."""
        return self.advance(server, total.statistics, 1.0)
