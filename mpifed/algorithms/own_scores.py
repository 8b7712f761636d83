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
from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import model_template
from mpifed.algorithms.local import LocalSteps
from mpifed.core.exchange import Problem
from mpifed.core.protocols import CsrRows
from mpifed.core.record import Array, beside, by_columns, index, leaves
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Block, ClientData
from mpifed.maths.objectives import LinearScores, Parameters
from mpifed.maths.optimizers import SGD
from mpifed.maths.ranges import Count, Repeats
from mpifed.maths.sparse import renumbered


@by_columns("model.first")
class OwnScoresBroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # of `first`, to each client its own columns
    step: Array  # [] float64, this round's learning rate


@dataclass(frozen=True)
class OwnScores(Grid):
    """The settings of local SGD steps that each client takes in its own columns."""

    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: SGD
    local_steps: Repeats | None = None
    """Local SGD steps in a round; give this or `local_epochs`."""
    local_epochs: Repeats | None = None
    """Local passes over all rows of the client in a round, the last minibatch of a pass possibly smaller."""

    @property
    def local(self) -> LocalSteps:
        return LocalSteps(self.problem, self.batch_size, self.local_steps, self.local_epochs, self.client_optimizer)

    def ask(self, server: Any, now: Round) -> OwnScoresBroadcast:  # of a state with `model` and `steps`
        return OwnScoresBroadcast(server.model, np.float64(self.client_optimizer.at(int(server.steps) + 1)))


def check_own_scores(problem: Problem, local: LocalSteps) -> list[str]:
    """Errors of the job for these algorithms, one message each."""
    wrong = check_cells(problem) + local.check()
    wrong += local.optimizer.wrong_momentum("client_optimizer", "columns that no row drawn has are left out of steps")
    kind = type(problem.objective).__name__
    if not isinstance(problem.objective, LinearScores) or any(True for _ in leaves(model_template(problem).head)):
        wrong.append(
            f"[model] name: {kind} has parameters that belong to no column; take a model without: hinge, "
            "squared-hinge, logistic, least-squares, or softmax without bias"
        )
    return wrong


def moved(local: LocalSteps, descent: Descent, alone: Block, now: Round) -> Array:
    """[p_i, h] the change of the single client of a block from `descent.model`, which has its own columns only.

    Of sparse rows, only the columns that occur in the rows drawn take the steps one after the other: in all others the
    steps x <- keep x + push are taken at once.
    """
    if not alone.sparse:
        result: Array = local.run(descent, alone, now, _of_columns(descent.model)).first[0]
        return result
    (shard,), (there,) = alone.shards, alone.host.shards
    slices = local.slices(shard.samples)
    drawn, touched = np.zeros(shard.samples, bool), np.zeros(shard.features, bool)
    drawn[alone.draw(now, "minibatch", slices[-1].stop)] = True
    touched[there.take_sparse(np.flatnonzero(drawn), alone.dtype).indices] = True
    columns = np.flatnonzero(touched)
    start, push, starts = (
        None if record is None else record.first for record in (descent.model, descent.push, descent.starts)
    )
    assert start is not None
    at = index(start, columns)
    change: Array = (start if starts is None else starts[0]).copy()
    keep = float(descent.keep.first)
    change *= change.dtype.type(keep ** len(slices))
    if push is not None:
        change += push * push.dtype.type(sum(keep**r for r in range(len(slices))))
    change -= start
    shard_near: Any = _Near(shard, columns)  # no whole `Shard`: it has what local steps read of sparse rows
    near = descent._replace(
        model=Parameters(start[at], ()),
        push=None if push is None else Parameters(push[at], ()),
        starts=None if starts is None else Parameters(starts[:, at], ()),
    )
    change[at] = local.run(near, Block((shard_near,), alone.dtype), now, _of_columns(near.model)).first[0]
    return change


def _of_columns(model: Parameters) -> Layout:
    return Layout({"first": model.first.shape})


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
