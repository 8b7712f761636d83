"""Gradients of all rows of each client, which a few local methods upload, or follow."""

from __future__ import annotations

import numpy as np

from mpifed.core.exchange import Method
from mpifed.core.record import Array, take
from mpifed.data.block import Block
from mpifed.maths.arrays import added
from mpifed.maths.objectives import Parameters, penalty_gradient

ROWS = 2048  # rows of one client in memory at once


def whole_gradients(local: Method, model: Array) -> Array:
    """[n, d] of each client's loss over all its rows at `model` [d] or [n, d], with penalties and weight decay."""
    objective, flat, block = local.problem.objective, local.guard.layout.flat, local.block

    def of_part(who: Array, part: Block, rows: int) -> Array:
        at = model if model.ndim == 1 else take(model, who)
        record = local.guard.record(at)

        def of_rows(start: int) -> Parameters:
            places = np.arange(start, min(start + ROWS, rows))
            X, y = part.take(np.tile(places, (len(who), 1)))
            gradient: Parameters = objective.gradient(record, X, y, part.xp.full(y.shape, 1 / rows))
            return gradient

        total: Array = flat(added(map(of_rows, range(0, rows, ROWS))))
        total += at * local.method.client_optimizer.weight_decay
        total += flat(penalty_gradient(objective, record))
        return total

    block.drawn[0] += int(block.counts.sum())
    gradients: Array = block.joined(local.problem.most, of_part)
    return gradients
