"""HyFEM: hybrid federated learning by matching features, for linear models.

X. Zhang, W. Yin, M. Hong, T. Chen: "Hybrid Federated Learning: Algorithms and Implementation" (NeurIPS-SpicyFL 2020,
arXiv:2012.12420), with which T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning"
(AAAI 2024, arXiv:2210.08106) compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.cells import own_part, padded, placed_by_columns
from mpifed.algorithms.horizontal import model_template, start_model
from mpifed.algorithms.own_scores import OwnScores, OwnScoresBroadcast, check_own_scores, moved
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Weight


class HyFEMServer(NamedTuple):
    """The server's state."""

    model: Parameters  # w_0
    steps: Array  # [] int64, rounds done
    known: Array  # [N] bool, whose w_k the server has ever received


class HyFEMClients(NamedTuple):
    """State of the clients: w_k, padded with zeros to the largest number of columns in the block."""

    first: Array  # [n, P, h]


class HyFEMUpload(NamedTuple):
    """A client's upload."""

    first: Array  # Placed [n, p, h], w_k in its columns


@dataclass(frozen=True)
class HyFEM(OwnScores):
    """Every client has a model of its own columns, drawn towards the server's model, the mean over all clients.

    # differs from the paper: of its formulation, which is made for networks with embeddings to be matched, this is what
    is left for a linear model. It minimizes, over w_0 and every client's w_k,

        sum over k of f_k(w_k) + mu / 2 ||w_k - w_0[M_k]||^2,

    where f_k is the mean loss of client k's rows by the scores of its own columns M_k alone, plus l2 ||w_k||^2.
    Of a round's clients each takes local SGD steps from where its w_k was; and w_0 in each column becomes the mean over
    all who hold it of the last w_k that the server received, without those who never participated. The model is
    w_0. With mu = 0 the clients are independent. Its minimum is not that of the common problem.

    The learning rate as for `HybridFedAvg`.
    """

    mu: Weight = field(kw_only=True)
    """Weight of mu / 2 ||w_k - w_0||^2, which draws a client's model towards the server's; 0: clients are
    independent."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the sum of all clients' w_k, each in its own columns."""
        fields = HyFEMUpload(Field(model_template(self.problem).first.shape, held=self.problem.columns))
        return (Exchange("models", fields, self.ask, self.answer, self.absorb, keeps="models"),)

    @property
    def pull(self) -> float:
        return self.mu

    def check(self) -> list[str]:
        """The batch must fit the data, the model must be linear without intercepts, and local steps must be stable."""
        wrong, step = check_own_scores(self), self.client_optimizer.at(1)
        keep, _ = self.keeps(step)
        if abs(keep) >= 1 and self.mu:
            wrong.append(
                f"[algorithm] mu = {self.mu:g}: with a step of {step:g} a local step multiplies w_k - w_0 by "
                f"{keep:.3g}, and so diverges; it must stay between -1 and 1: lower the learning rate or mu"
            )
        return wrong

    def start_server(self, now: Round) -> HyFEMServer:
        """The initial model; no w_k is known yet."""
        return HyFEMServer(start_model(self.problem, now), np.int64(0), np.zeros(self.problem.clients, dtype=bool))

    def start_clients(self, block: Block, now: Round) -> HyFEMClients:
        """w_k at the initial model, in the client's columns."""
        first = start_model(self.problem, now).first
        widest = max(shard.features for shard in block.shards)
        return HyFEMClients(padded([own_part(first, shard) for shard in block.shards], widest))

    def answer(
        self, clients: HyFEMClients, broadcast: OwnScoresBroadcast, block: Block, now: Round
    ) -> tuple[HyFEMClients, HyFEMUpload]:
        step, values = float(broadcast.step), []
        for i, shard in enumerate(block.shards):
            common = own_part(broadcast.model.first, shard)
            push = step * self.mu * common if self.mu else None
            start = clients.first[i, : shard.features]
            values.append(moved(self, step, common, push, start, block.only(np.array([i])), now) + common)
        return HyFEMClients(padded(values, clients.first.shape[1])), HyFEMUpload(
            placed_by_columns(self.problem, values, block)
        )

    def absorb(self, server: HyFEMServer, total: HyFEMUpload, now: Round) -> HyFEMServer:
        """In each column the mean over its holders of the last w_k known; a column without a known w_k is unchanged."""
        known = server.known | now.present
        count, first = self.problem.columns.held_by(known), server.model.first.copy()
        held = count > 0
        first[held] = total.first[held] / count[held, None].astype(first.dtype)
        return HyFEMServer(Parameters(first, ()), server.steps + 1, known)
