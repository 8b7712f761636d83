"""Scores of a model on test rows: losses, accuracies and errors.

Each piece of the test rows, some of the common ones or those of a client, is scored on one rank. What it gives depends
on that piece alone, and has a line of its own in a table, where all other ranks have zeros. So the sum over the ranks
is exact, and gives the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.functions import CHUNK
from mpifed.algorithms.measure import Columns
from mpifed.comm.mpi import Comm
from mpifed.core.device import host_record
from mpifed.core.record import Array, Record, take
from mpifed.data.block import Batch, Block, of_vectors
from mpifed.data.roster import Roster
from mpifed.files.clients import QUALITY, ClientScores
from mpifed.maths import metrics
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Problem

Personal: TypeAlias = Callable[[int, Parameters], Parameters]


def score_batch(problem: Problem, model: Parameters, batch: Batch) -> Array:
    """[n, 1 + m] sums in float64 over as many rows of n clients: of the loss, and of m numbers by the task.

    These are rows with the right class [1], squared errors of targets [t], or `label_counts` [4].
    """
    objective = problem.objective
    scores = objective.scores_of(model, batch.X)
    loss = objective.loss(model.head, scores, batch.y).sum(axis=-1, dtype=np.float64)
    predicted = objective.predict(model.head, scores)
    if objective.classifies:
        matches = (predicted == batch.y).sum(axis=-1, keepdims=True)
    elif objective.task == "multilabel":
        matches = metrics.label_counts(predicted, of_vectors(batch.y))
    else:
        y = of_vectors(batch.y)
        matches = ((predicted.reshape(y.shape).astype(np.float64) - y) ** 2).sum(axis=-2)
    return np.concatenate([loss[:, None], matches], axis=-1)


class TestRows(NamedTuple):
    """The test rows that this rank scores: a part of the common ones, and those of its clients' own."""

    problem: Problem
    comm: Comm
    y: Array | None  # labels of all common rows; None where these are not scored
    chunks: range  # of `CHUNK` common rows, those that this rank scores
    common: Block | None  # these rows, as a block of one client; None where this rank scores none
    own: Roster | None  # those of the clients that this rank hosts; None where these are not scored
    counts: NDArray[np.int64]  # [N] own test rows of all clients

    def measured(self, model: Record, personal: Personal | None = None) -> tuple[Columns, ClientScores | None]:
        """(columns of the history, the clients' scores) of a model that rank 0 has; on rank 0 alone. Collective.

        Parameters
        ----------
        personal : by the number of a block and that model, those by which its clients are judged, leaves [n, ...]
        """
        if self.y is None and self.own is None:
            return {}, None
        parameters: Parameters = self.comm.bcast(model)
        columns = {} if self.y is None else self._of_common(parameters, self.y)
        clients = None if self.own is None else self._of_clients(parameters, self.own, personal)
        if clients is not None:
            name = QUALITY[self.problem.objective.task]
            for kind, values in ((name, clients.quality), ("loss", clients.loss)):
                better = "less" if kind in ("rmse", "loss") else "more"
                for statistic, value in metrics.summary(values, better).items():
                    columns[f"client_test_{kind}_{statistic}"] = value
        return columns, clients

    @property
    def _width(self) -> int:
        """Of the sums of a piece of rows."""
        return 1 + {"classification": 1, "multilabel": 4}.get(self.problem.objective.task, self.problem.outputs)

    def _summed(self, table: Array) -> Array:
        """The table with the lines of all ranks, on rank 0. Collective."""
        self.comm.Reduce(table.reshape(-1))
        return table

    def _quality(self, matches: Array, rows: Array) -> Array:
        """[...] of sums [..., m] over rows [...]; see `QUALITY`."""
        if self.problem.objective.task == "regression":
            return metrics.rmse(matches, rows[..., None])
        labels = self.problem.outputs if self.problem.objective.task == "multilabel" else 1
        share: Array = matches[..., 0] / (rows * labels)
        return share

    def _of_common(self, parameters: Parameters, y: Array) -> Columns:
        """The columns of the common rows, on rank 0."""
        task, table = self.problem.objective.task, np.zeros((-(-len(y) // CHUNK), self._width))
        for chunk, batch in zip(self.chunks, self.common.everything(CHUNK) if self.common else (), strict=True):
            table[chunk] = score_batch(self.problem, parameters, batch)[0]
        summed = self._summed(table)
        if self.comm.rank:
            return {}
        loss, *matches = sum(summed, np.zeros(self._width))
        counts = np.array(matches)
        quality = float(self._quality(counts, np.array(len(y))))
        columns: Columns = {"test_loss": float(loss / len(y)), f"test_{QUALITY[task]}": quality}
        if task == "multilabel":
            columns |= {"test_exact_match": float(counts[1] / len(y)), "test_micro_f1": metrics.micro_f1(counts)}
        elif task == "regression":
            columns["test_r2"] = metrics.r2(counts, of_vectors(y))
        return columns

    def _of_clients(self, parameters: Parameters, own: Roster, personal: Personal | None) -> ClientScores | None:
        """The scores of the clients that have test rows, on rank 0."""
        tested = np.flatnonzero(self.counts)
        table = np.zeros((len(tested), self._width))
        for i in range(len(own)):
            block, theirs = own[i], personal and host_record(personal(i, parameters))
            for who, part, rows in block.by_batch_size(int(block.counts.max())):
                model, clients = take(theirs, who) if theirs else parameters, len(part.clients)
                size, sums = max(1, CHUNK // clients), np.zeros(1)
                for start in range(0, rows, size):
                    at = np.arange(start, min(start + size, rows))
                    batch = part.take(np.broadcast_to(at, (clients, len(at))))
                    sums = sums + score_batch(self.problem, model, batch)
                if rows:
                    table[np.searchsorted(tested, block.clients[who])] = sums
        summed, rows_of = self._summed(table), self.counts[tested]
        if self.comm.rank:
            return None
        return ClientScores(tested, rows_of, self._quality(summed[:, 1:], rows_of), summed[:, 0] / rows_of)
