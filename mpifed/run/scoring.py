"""Scores of a model on test rows: losses, accuracies, errors and what `[record] metrics` asks for."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import CHUNK
from mpifed.core.block import Batch, Block
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.core.record import Array, of_vectors
from mpifed.maths import metrics
from mpifed.maths.objectives import Parameters


class RowSums(NamedTuple):
    """Sums over the same number of test rows of each of n clients."""

    loss: Array  # [n]
    matches: Array  # [n] rows with the right class; of real targets [n, t] squared errors
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
    for _, batch in test.everything(CHUNK):
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
    else:
        columns |= {"test_rmse": float(metrics.rmse(matches, rows)), "test_r2": metrics.r2(matches, of_vectors(y))}
    if "macro_f1" in asked:
        columns["test_macro_f1"] = metrics.macro_f1(*counts)
    if "auc" in asked:
        columns["test_auc"] = metrics.auc(y, np.concatenate(class_scores))
    return columns
