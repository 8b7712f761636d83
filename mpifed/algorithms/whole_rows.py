"""What local methods compute of many rows at once: gradients over whole shards, and sums over clients' minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from mpifed.core.exchange import Lazy, Problem, Weighted
from mpifed.core.record import Array, added, beside, take
from mpifed.maths.objectives import concave_gradient, penalty_gradient

if TYPE_CHECKING:
    from mpifed.core.round import Round
    from mpifed.data.block import Batch, Block
    from mpifed.maths.objectives import Parameters

Local: TypeAlias = Any  # of `mpifed.algorithms.local`, which imports this file
ROWS = 2048  # rows of one client in memory at once, as far as a minibatch is no larger


def whole_gradient(local: Local, model: Array) -> Array:
    """See `Local.gradient`."""
    objective, flat = local.problem.objective, local.guard.layout.flat

    def of_part(who: Array, part: Block, rows: int) -> Array:
        at = model if model.ndim == 1 else take(model, who)
        record = local.guard.record(at)

        def of_rows(start: int) -> Parameters:
            places = np.arange(start, min(start + ROWS, rows))
            batch = part.take(np.tile(places, (len(who), 1)))
            gradient: Parameters = objective.gradient(record, batch.X, batch.y, part.xp.full(batch.y.shape, 1 / rows))
            return gradient

        total: Array = flat(added(map(of_rows, range(0, rows, ROWS))))
        total += at * local.method.client_optimizer.weight_decay
        total += flat(penalty_gradient(objective, record))
        return total

    local.block.drawn[0] += int(local.block.counts.sum())
    gradients: Array = local.block.joined(local.problem.most, of_part)
    return gradients


class Pooled(NamedTuple):
    """Minibatches of a few clients, as if they were one of a single client."""

    clients: Array  # [m]
    rows: int  # of each
    batch: Batch  # [1, m * rows]
    keys: tuple[Array, ...]  # of the pass, see `Objective.pass_keys`


def pooled_minibatches(problem: Problem, block: Block, now: Round, size: int) -> Iterator[Pooled]:
    """A few clients at a time: `size` rows of each client, or all rows of one that has fewer."""
    for part in block.parts(size):
        for _, few, rows in part.by_batch_size(size):
            batch = few.take(few.draw(now, "minibatch", rows)).together()
            yield Pooled(few.clients, rows, batch, problem.objective.pass_keys(now, 0, few.clients[:1]))


def lazy_change(local: Local, model: Array, push: Array | None) -> Lazy | None:
    """The weighted change of local steps, made by who adds it; None: it is no plain step from a common model.

    Parameters
    ----------
    push : [d], common to all
    """
    common = push is None or push.ndim == 1
    if not (common and local.guard.draws == "once" and local.own_step == local.step):
        return None
    clients = local.block.clients

    def parts() -> Iterator[tuple[Array, Weighted]]:
        yield np.arange(len(clients)), local.guard.weighted(local.change(model, push), clients)

    return Lazy(parts, partial(_total_change, local, model, push))


def _total_change(local: Local, model: Array, push: Array | None) -> Weighted:
    """The weighted sum of all clients' changes, from products over many minibatches at once."""
    objective, guard, weight, step = local.problem.objective, local.guard, local.weight.sum(), local.step
    sent = guard.record(model)

    def of_few(few: Pooled) -> Array:
        each = np.repeat(guard.weight(few.clients), few.rows)[None] * (-step / few.rows)
        down = objective.gradient(sent, few.batch.X, few.batch.y, beside(few.batch.y, each), *few.keys)
        whole: Array = guard.layout.flat(down)[0]
        return whole

    total = added(map(of_few, pooled_minibatches(local.problem, local.block, local.now, local.method.batch_size)))
    common = local.penalized(np.zeros_like(model) if push is None else push.copy(), model)
    if objective.nonconvex_penalty:
        counted = guard.layout.penalized
        common[counted] -= concave_gradient(objective, model[counted]) * step
    total += common * model.dtype.type(weight)
    return Weighted(total, weight)
