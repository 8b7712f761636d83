"""Scores of a model on test rows: losses, accuracies, errors and what `[record] metrics` asks for."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.functions import CHUNK
from mpifed.comm.mpi import Comm
from mpifed.comm.rounds import broadcast
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Columns, Problem
from mpifed.core.record import Array, Record, of_vectors
from mpifed.data.block import Batch, Block
from mpifed.data.roster import Roster
from mpifed.files.clients import QUALITY, ClientScores
from mpifed.maths import metrics
from mpifed.maths.objectives import Parameters


class RowSums(NamedTuple):
    """Sums over the same number of test rows of each of n clients."""

    loss: Array  # [n]
    matches: Array  # [n] rows with the right class; [n, t] squared errors of real targets; [n, 4] `label_counts`
    predicted: Array  # [n, s] classes, or [n, s, t] values, of the rows themselves
    scores: Array  # [n, s, h] of the rows


def sums_of(problem: Problem, model: Parameters, batch: Batch) -> RowSums:
    """The sums over a batch, in float64."""
    objective = problem.objective
    scores = objective.scores_of(model, batch.X)
    loss = objective.loss(model.head, scores, batch.y).sum(axis=-1, dtype=np.float64)
    predicted = objective.predict(model.head, scores)
    if objective.classifies:
        return RowSums(loss, (predicted == batch.y).sum(axis=-1), predicted, scores)
    y = of_vectors(batch.y)
    if objective.task == "multilabel":
        return RowSums(loss, metrics.label_counts(predicted, y), predicted, scores)
    predicted = predicted.reshape(y.shape).astype(np.float64)
    return RowSums(loss, ((predicted - y) ** 2).sum(axis=-2), predicted, scores)


def _class_scores(problem: Problem, model: Parameters, scores: Array) -> Array:
    """[s, L] a score of each class, or [s, 1] that of class 1 of two; UsageError where a model has neither."""
    of_classes: Array = problem.objective.class_scores(model.head, scores)[0]
    if of_classes.shape[1] != problem.outputs and (of_classes.shape[1], problem.outputs) != (1, 2):
        raise UsageError(
            f'[record] metrics = ["auc"]: the model gives {of_classes.shape[1]} scores of {problem.outputs} classes; '
            "define its class_scores, one for each class, or leave auc out"
        )
    return of_classes


def test_scores(problem: Problem, model: Parameters, test: Block, asked: Collection[str] = ()) -> dict[str, float]:
    """The columns of the common test rows, which are a block of one client.

    Parameters
    ----------
    asked : `[record] metrics`
    """
    objective, y = problem.objective, test.shards[0].y
    loss, matches, rows = 0.0, np.zeros(1), len(y)
    counts = np.zeros((3, problem.outputs), dtype=np.int64)  # of classes: right, predicted, true
    class_scores = []
    for batch in test.everything(CHUNK):
        sums = sums_of(problem, model, batch)
        loss, matches = loss + float(sums.loss[0]), matches + sums.matches[0]
        if "macro_f1" in asked:
            right = sums.predicted == batch.y
            for count, labels in zip(counts, (batch.y[right], sums.predicted, batch.y), strict=True):
                count += np.bincount(labels.reshape(-1), minlength=problem.outputs)
        if "auc" in asked:
            class_scores.append(_class_scores(problem, model, sums.scores))
    columns = {"test_loss": loss / rows}
    if objective.classifies:
        columns["test_accuracy"] = int(matches[0]) / rows
    elif objective.task == "multilabel":
        columns["test_label_accuracy"] = float(matches[0] / (rows * problem.outputs))
        columns |= {"test_exact_match": float(matches[1] / rows), "test_micro_f1": metrics.micro_f1(matches)}
    else:
        columns |= {"test_rmse": float(metrics.rmse(matches, rows)), "test_r2": metrics.r2(matches, of_vectors(y))}
    if "macro_f1" in asked:
        columns["test_macro_f1"] = metrics.macro_f1(*counts)
    if "auc" in asked:
        columns["test_auc"] = metrics.auc(y, np.concatenate(class_scores))
    return columns


class ClientEvaluation:
    """The clients' own test rows on this rank, and how a model does on them.

    A client's numbers depend on its block alone, and are gathered in the order of the clients, 16 bytes for each: so
    the columns have the same bits on any number of ranks.
    """

    def __init__(self, problem: Problem, comm: Comm, blocks: Roster, counts: NDArray[np.int64]) -> None:
        """`blocks` of the test rows of the clients that this rank hosts; `counts` [N] of the test rows of all."""
        self._problem, self._comm, self._blocks, self._counts = problem, comm, blocks, counts

    def scores(self, model: Record) -> ClientScores | None:
        """The scores of a model that rank 0 has; on rank 0. Collective."""
        _, shared = broadcast(self._comm, 0, model)
        parameters: Parameters = shared  # type: ignore[assignment]  # as it was sent
        values = [self._of_block(parameters, i) for i in range(len(self._blocks))]
        gathered = self._comm.gather(np.concatenate([np.zeros((0, 2)), *values]))
        if gathered is None:
            return None
        tested = np.flatnonzero(self._counts)
        quality, loss = np.concatenate(gathered).T  # clients are on the ranks in their order
        return ClientScores(tested, self._counts[tested], quality, loss)

    def columns(self, scores: ClientScores) -> Columns:
        """The columns of the history: mean, spread and worst tenth over the clients."""
        name = QUALITY[self._problem.objective.task]
        better = "less" if name == "rmse" else "more"
        named = ((name, scores.quality, better), ("loss", scores.loss, "less"))
        return {
            f"client_test_{name}_{statistic}": value
            for name, values, better in named
            for statistic, value in metrics.summary(values, better).items()
        }

    def _of_block(self, parameters: Parameters, i: int) -> Array:
        """[n, 2] what `QUALITY` says, and mean loss, of the clients of a block that have test rows."""
        block = self._blocks[i]
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
        task, quality = self._problem.objective.task, matches / rows
        if task == "multilabel":
            quality = quality[..., 0] / self._problem.outputs
        elif task == "regression":
            quality = metrics.rmse(matches, rows)
        return np.stack([quality, loss / rows], axis=-1)
