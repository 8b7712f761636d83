"""Evaluation of the model on each client's own test rows, on the rank that hosts the client.

A client's numbers depend on its block alone, and are gathered in the order of the clients, 16 bytes for each: so the
columns have the same bits on any number of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import CHUNK
from mpifed.comm.exchange_plan import Broadcast
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.exchange import Columns, Problem
from mpifed.core.record import Array, Record
from mpifed.core.roster import Roster
from mpifed.files.clients import ClientScores
from mpifed.maths import metrics
from mpifed.maths.objectives import Parameters
from mpifed.run.scoring import sums_of


class ClientEvaluation:
    """The clients' test rows on this rank, and how a model does on them."""

    def __init__(self, problem: Problem, transport: Transport, blocks: Roster, counts: NDArray[np.int64]) -> None:
        """`blocks` of the test rows of the clients that this rank hosts; `counts` [N] of the test rows of all."""
        self._problem, self._transport, self._blocks, self._counts = problem, transport, blocks, counts
        self._broadcast = Broadcast()

    def scores(self, model: Record) -> ClientScores | None:
        """The scores of a model that rank 0 has; on rank 0. Collective."""
        _, shared, _ = self._broadcast.send(self._transport, 0, model)
        parameters: Parameters = shared  # type: ignore[assignment]  # as it was sent
        values = [self._of_block(parameters, i) for i in range(len(self._blocks))]
        gathered = self._transport.gather(np.concatenate([np.zeros((0, 2)), *values]))
        if gathered is None:
            return None
        tested = np.flatnonzero(self._counts)
        quality, loss = np.concatenate(gathered).T  # clients are on the ranks in their order
        return ClientScores(tested, self._counts[tested], quality, loss)

    def columns(self, scores: ClientScores) -> Columns:
        """The columns of the history: mean, spread and worst tenth over the clients."""
        name, better = ("accuracy", "more") if self._problem.objective.classifies else ("rmse", "less")
        named = ((name, scores.quality, better), ("loss", scores.loss, "less"))
        return {
            f"client_test_{name}_{statistic}": value
            for name, values, better in named
            for statistic, value in metrics.summary(values, better).items()
        }

    def _of_block(self, parameters: Parameters, i: int) -> Array:
        """[n, 2] accuracy or RMSE, and mean loss, of the clients of a block that have test rows."""
        block = self._blocks.visit(i, keep=True)
        values = np.empty((len(block.clients), 2))
        for who, part, rows in block.by_batch_size(int(block.counts.max())):
            values[who] = self._of_part(parameters, part) if rows else np.nan
        return values[block.counts > 0]

    def _of_part(self, parameters: Parameters, block: Block) -> Array:
        """[n, 2] of clients with equally many test rows."""
        rows, size = int(block.counts[0]), max(1, CHUNK // len(block.clients))
        loss, matches = np.zeros(1), np.zeros(1)
        for start in range(0, rows, size):
            at = np.arange(start, min(start + size, rows))
            sums = sums_of(self._problem, parameters, block.take(np.broadcast_to(at, (len(block.clients), len(at)))))
            loss, matches = loss + sums.loss, matches + sums.matches
        quality = matches / rows if self._problem.objective.classifies else metrics.rmse(matches, rows)
        return np.stack([quality, loss / rows], axis=-1)
