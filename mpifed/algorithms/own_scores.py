"""Shared by the baselines of HyFDCA: clients take SGD steps in their own columns, on the loss of their own scores.

Each client fits the labels with its own columns alone, as if it had no others: X_k w_k stands for the whole score.
This is what averaging local models amounts to where no client holds a whole row, and why it falls short there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mpifed.algorithms.cells import Grid, check_cells
from mpifed.algorithms.horizontal import model_template
from mpifed.algorithms.local import Local, LocalSteps, slices
from mpifed.core.protocols import CsrRows
from mpifed.core.record import Array, beside, by_columns, index, leaves
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Block, ClientData
from mpifed.maths.objectives import LinearScores, Parameters
from mpifed.maths.sparse import renumbered
from mpifed.privacy.guards import LocalWork, Open


@by_columns("model.first")
class OwnScoresBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # of `first`, to each client its own columns
    step: Array  # [] float64, this round's learning rate


@dataclass(frozen=True)
class OwnScores(LocalSteps, Grid):
    """The settings of local SGD steps that each client takes in its own columns."""

    def ask(self, server: Any, now: Round) -> OwnScoresBroadcast:  # of a state with `model` and `steps`
        return OwnScoresBroadcast(server.model, np.float64(self.client_optimizer.at(int(server.steps) + 1)))


def check_own_scores(method: OwnScores) -> list[str]:
    """Errors of the job for these algorithms, one message each."""
    problem = method.problem
    wrong = check_cells(problem) + method.wrong_steps()
    why = "columns that no row drawn has are left out of steps"
    wrong += method.client_optimizer.wrong_momentum("client_optimizer", why)
    kind = type(problem.objective).__name__
    if not isinstance(problem.objective, LinearScores) or any(True for _ in leaves(model_template(problem).head)):
        wrong.append(
            f"[model] name: {kind} has parameters that belong to no column; take a model without: hinge, "
            "squared-hinge, logistic, least-squares, or softmax without bias"
        )
    return wrong


def moved(
    method: OwnScores, step: float, model: Array, push: Array | None, start: Array | None, alone: Block, now: Round
) -> Array:
    """[p_i, h] the change of the single client of a block from `model`, which has its own columns only.

    Of sparse rows, only the columns that occur in the rows drawn take the steps one after the other: in all others the
    steps x <- keep x + push are taken at once.
    """

    def steps(block: Block, model: Array, push: Array | None, start: Array | None) -> Array:
        layout, like = Layout({"first": model.shape}), Parameters(model, ())
        taken = LocalWork(
            method.most_steps, method.batch_size, None, 0.0, method.client_optimizer, False, False, "", False
        )
        local = Local(method, block, now, step, Open(method.problem, layout, like, taken))
        push, start = (None if part is None else part.reshape(-1) for part in (push, start))
        change = local.change(model.reshape(-1), push, None if start is None else start[None])
        result: Array = change.reshape(model.shape)
        return result

    if not alone.sparse:
        return steps(alone, model, push, start)
    (shard,), (there,) = alone.shards, alone.host.shards
    places = slices(method.batch_size, method.local_steps, method.local_epochs, shard.samples)
    drawn, touched = np.zeros(shard.samples, bool), np.zeros(shard.features, bool)
    drawn[alone.draw(now, "minibatch", places[-1].stop)] = True
    touched[there.take_sparse(np.flatnonzero(drawn), alone.dtype).indices] = True
    columns = np.flatnonzero(touched)
    at, (keep, _) = index(model, columns), method.keeps(step)
    change: Array = (model if start is None else start).copy()
    change *= change.dtype.type(keep ** len(places))
    if push is not None:
        change += push * push.dtype.type(sum(keep**r for r in range(len(places))))
    change -= model
    near: Any = _Near(shard, columns)  # no whole `Shard`: it has what local steps read of sparse rows
    few = Block((near,), alone.dtype)
    change[at] = steps(few, model[at], None if push is None else push[at], None if start is None else start[at])
    return change


class _Near:
    """A sparse shard restricted to columns that contain all nonzeros of the rows to be read."""

    sparse = True

    def __init__(self, shard: ClientData, at: Array) -> None:
        place = np.zeros(shard.features, np.int32)
        place[at] = np.arange(len(at))
        self._shard, self._place = shard, beside(shard.y, place)
        self.client, self.samples, self.features = shard.client, shard.samples, len(at)
        self.y = shard.y

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        """The rows `at` [b] as a CSR matrix [b, p]."""
        return renumbered(self._shard.take_sparse(at, dtype), self._place, self.features)
