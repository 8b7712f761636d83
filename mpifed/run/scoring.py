"""Scores of a model on test rows: losses, accuracies, errors and what `[record] metrics` asks for.

Each piece of the test rows, some of the common ones or those of a client, is scored on one rank. What it gives depends
on that piece alone, and has a line of its own in a table, where all other ranks have zeros. So the sum over the ranks
is exact, and gives the same bits on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.functions import CHUNK
from mpifed.comm.mpi import Comm
from mpifed.core.device import host_record
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Columns, Problem
from mpifed.core.record import Array, Record, of_vectors, take
from mpifed.data.block import Batch, Block
from mpifed.data.roster import Roster
from mpifed.files.clients import QUALITY, ClientScores
from mpifed.maths import metrics
from mpifed.maths.objectives import Parameters

Personal: TypeAlias = Callable[[int, Parameters], Parameters]


class Scored(NamedTuple):
    """The same number of test rows of each of n clients."""

    sums: Array  # [n, 1 + m] loss; rows with the right class [1], squared errors of targets [t], or `label_counts` [4]
    predicted: Array  # [n, s] classes, or [n, s, t] values, of the rows themselves
    scores: Array  # [n, s, h] of the rows


def score_batch(problem: Problem, model: Parameters, batch: Batch) -> Scored:
    """A batch, whose sums are in float64."""
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
    return Scored(np.concatenate([loss[:, None], matches], axis=-1), predicted, scores)


def _class_scores(problem: Problem, model: Parameters, scores: Array) -> Array:
    """[s, L] a score of each class, or [s, 1] that of class 1 of two; UsageError where a model has neither."""
    of_classes: Array = problem.objective.class_scores(model.head, scores)[0]
    if of_classes.shape[1] != problem.outputs and (of_classes.shape[1], problem.outputs) != (1, 2):
        raise UsageError(
            f'[record] metrics = ["auc"]: the model gives {of_classes.shape[1]} scores of {problem.outputs} classes; '
            "define its class_scores, one for each class, or leave auc out"
        )
    return of_classes


class TestRows:
    """The test rows that this rank scores: a part of the common ones, and those of its clients' own.

    Parameters
    ----------
    asked : `[record] metrics`, of the common rows
    y : labels of all common rows; None where these are not scored
    chunks : of `CHUNK` common rows, those that this rank scores
    common : these rows, as a block of one client; None where this rank scores none
    own : those of the clients that this rank hosts; None where these are not scored
    counts : [N] own test rows of all clients
    """

    def __init__(
        self, problem: Problem, comm: Comm, asked: Collection[str], y: Array | None, chunks: range,
        common: Block | None, own: Roster | None, counts: NDArray[np.int64],
    ) -> None:  # fmt: skip
        self._problem, self._comm, self._asked = problem, comm, asked
        self._y, self._chunks, self._common, self.own = y, chunks, common, own
        self._counts, self._tested = counts, np.flatnonzero(counts)
        task = problem.objective.task
        self._width = 1 + {"classification": 1, "multilabel": 4}.get(task, problem.outputs)  # of `Scored.sums`

    def measured(self, model: Record, personal: Personal | None = None) -> tuple[Columns, ClientScores | None]:
        """(columns of the history, the clients' scores) of a model that rank 0 has; on rank 0 alone. Collective.

        Parameters
        ----------
        personal : by the number of a block and that model, those by which its clients are judged, leaves [n, ...]
        """
        if self._y is None and self.own is None:
            return {}, None
        parameters: Parameters = self._comm.bcast(model)
        columns: Columns = {} if self._y is None else self._of_common(parameters, self._y)
        clients = None if self.own is None else self._of_clients(parameters, self.own, personal)
        if clients is not None:
            name = QUALITY[self._problem.objective.task]
            better = "less" if name == "rmse" else "more"
            for kind, values, direction in ((name, clients.quality, better), ("loss", clients.loss, "less")):
                for statistic, value in metrics.summary(values, direction).items():
                    columns[f"client_test_{kind}_{statistic}"] = value
        return columns, clients

    def _summed(self, table: Array) -> Array | None:
        """On rank 0, the table with the lines of all ranks. Collective."""
        flat = table.reshape(-1)
        self._comm.Allreduce(flat)
        return table if self._comm.rank == 0 else None

    def _of_common(self, parameters: Parameters, y: Array) -> Columns:
        """The columns of the common rows, on rank 0."""
        problem, asked, rows, width = self._problem, self._asked, len(y), self._width
        classes = problem.outputs if "macro_f1" in asked else 0
        table, class_scores = np.zeros((-(-rows // CHUNK), width + 2 * classes)), list[Array]()
        batches = self._common.everything(CHUNK) if self._common else ()
        for chunk, batch in zip(self._chunks, batches, strict=True):
            part = score_batch(problem, parameters, batch)
            numbers = [part.sums[0]]
            if classes:  # rows of each that are rightly predicted, and that are predicted
                right = part.predicted[part.predicted == batch.y]
                numbers += [np.bincount(labels, minlength=classes) for labels in (right, part.predicted.reshape(-1))]
            table[chunk] = np.concatenate(numbers)
            if "auc" in asked:
                class_scores.append(_class_scores(problem, parameters, part.scores))
        summed, gathered = self._summed(table), self._comm.gather(class_scores) if "auc" in asked else None
        if summed is None:
            return {}
        total = sum(summed, np.zeros(width + 2 * classes))
        matches = total[1:width]
        columns: Columns = {"test_loss": float(total[0] / rows)}
        if problem.objective.classifies:
            columns["test_accuracy"] = float(matches[0] / rows)
        elif problem.objective.task == "multilabel":
            columns["test_label_accuracy"] = float(matches[0] / (rows * problem.outputs))
            columns |= {"test_exact_match": float(matches[1] / rows), "test_micro_f1": metrics.micro_f1(matches)}
        else:
            columns |= {"test_rmse": float(metrics.rmse(matches, rows)), "test_r2": metrics.r2(matches, of_vectors(y))}
        if classes:
            right, predicted = total[width:].reshape(2, classes)
            columns["test_macro_f1"] = metrics.macro_f1(right, predicted, np.bincount(y, minlength=classes))
        if gathered is not None:  # no sum: a row's rank is among all
            columns["test_auc"] = metrics.auc(y, np.concatenate([*chain(*gathered)]))
        return columns

    def _of_clients(self, parameters: Parameters, own: Roster, personal: Personal | None) -> ClientScores | None:
        """The scores of the clients that have test rows, on rank 0."""
        table = np.zeros((len(self._tested), self._width))
        for i in range(len(own)):
            block, theirs = own[i], personal and host_record(personal(i, parameters))
            for who, part, rows in block.by_batch_size(int(block.counts.max())):
                if rows:
                    model = take(theirs, who) if theirs else parameters
                    table[np.searchsorted(self._tested, block.clients[who])] = self._of_part(model, part, rows)
        summed = self._summed(table)
        if summed is None:
            return None
        task, rows_of = self._problem.objective.task, self._counts[self._tested]
        loss, matches = summed[:, 0] / rows_of, summed[:, 1:]
        if task == "regression":
            quality = metrics.rmse(matches, rows_of[:, None])
        else:
            quality = matches[:, 0] / rows_of / (self._problem.outputs if task == "multilabel" else 1)
        return ClientScores(self._tested, rows_of, quality, loss)

    def _of_part(self, parameters: Parameters, block: Block, rows: int) -> Array:
        """[n, 1 + m] the sums of clients with so many test rows each."""
        clients, sums = len(block.clients), np.zeros(1)
        size = max(1, CHUNK // clients)
        for start in range(0, rows, size):
            at = np.arange(start, min(start + size, rows))
            batch = block.take(np.broadcast_to(at, (clients, len(at))))
            sums = sums + score_batch(self._problem, parameters, batch).sums
        return sums
