"""Federated averaging for clients who hold some rows of some columns.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106),
section 2: "computing client weights locally, as before, then concatenating the model weights and averaging at the
overlaps". Local SGD is that of FedAvg: B. McMahan et al. (AISTATS 2017, arXiv:1602.05629).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mpifed.algorithms.cells import own_part, placed_by_columns
from mpifed.algorithms.horizontal import model_template, power_of_two, start_model
from mpifed.algorithms.own_scores import OwnScores, OwnScoresBroadcast, check_own_scores, moved
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters


class HybridFedAvgServer(NamedTuple):
    """The server's state."""

    model: Parameters  # w, which overlaps average
    steps: Array  # [] int64, rounds done


class Changes(NamedTuple):
    """A client's upload."""

    first: Array  # Placed [n, p, h], in its columns; times its rows relative to the mean client's


@dataclass(frozen=True)
class HybridFedAvg(OwnScores):
    """Every round the participating clients take SGD steps in their own columns; overlaps are averaged.

    A client begins at the server's w in its columns, and fits the labels with these alone. Then w in each column moves
    by the mean change over the samples of those present who hold it; a column that none of them holds stays. Local work
    is counted as in `FedAvg`. The paper's
    learning rate a / (b + sqrt(t)) is {initial = a, exponent = 0.5, offset = b}.

    `combine` says what the model is. "overlaps": w. # differs from the paper: "feature-blocks": w divided by the number
    of clients who hold a sample, on average: the number of feature blocks of a grid. Each block has been fitted to the
    whole label, so that where all do well the sum of their scores is too large by that; their mean is not.

    With data split by rows both are FedAvg.
    """

    combine: Literal["overlaps", "feature-blocks"] = "overlaps"
    """What the model is: overlaps: in each column the mean over its holders; feature-blocks: that divided by how many
    clients hold a sample, on average."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives the weighted sum of the clients' changes, each in its own columns."""
        heaviest = power_of_two(float(self.problem.weights.max()))
        shape = model_template(self.problem).first.shape
        fields = Changes(Field(shape, 2.0**-40 * heaviest, 2.0**10 * heaviest, held=self.problem.columns))
        return (Exchange("changes", fields, self.ask, self.answer, self.absorb),)

    @property
    def blocks(self) -> float:
        """How many clients hold a sample, on average."""
        return float(self.problem.counts.sum()) / self.problem.samples

    @property
    def scale(self) -> float:
        """The server's w relative to the model."""
        return self.blocks if self.combine == "feature-blocks" else 1.0

    def check(self) -> list[str]:
        """The batch must fit the data, and the model must be linear without intercepts."""
        return check_own_scores(self)

    def start_server(self, now: Round) -> HybridFedAvgServer:
        first = start_model(self.problem, now).first
        return HybridFedAvgServer(Parameters(first * first.dtype.type(self.scale), ()), np.int64(0))

    def answer(
        self, clients: tuple[()], broadcast: OwnScoresBroadcast, block: Block, now: Round
    ) -> tuple[tuple[()], Changes]:
        """Each client's change of its columns after its local steps, weighted by its number of rows."""
        step, values = float(broadcast.step), []
        for i, shard in enumerate(block.shards):
            model = own_part(broadcast.model.first, shard)
            change = moved(self, step, model, None, None, block.only(np.array([i])), now)
            values.append(change * change.dtype.type(self.problem.weights[shard.client]))
        return clients, Changes(placed_by_columns(self.problem, values, block))

    def absorb(self, server: HybridFedAvgServer, total: Changes, now: Round) -> HybridFedAvgServer:
        """Adds to each column the mean change over the samples of the participating clients who hold it."""
        weight = self.problem.columns.summed(np.where(now.present, self.problem.weights, 0.0))
        held, first = weight > 0, server.model.first.copy()
        first[held] += total.first[held] / weight[held, None].astype(first.dtype)
        return HybridFedAvgServer(Parameters(first, ()), server.steps + 1)

    def model(self, server: HybridFedAvgServer) -> Parameters:
        """w; with "feature-blocks" divided by the mean number of holders of a sample."""
        first = server.model.first
        return Parameters(first * first.dtype.type(1 / self.scale), ())
