"""Sums over the minibatches of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mpifed.core.exchange import Method
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, beside
from mpifed.maths.arrays import added
from mpifed.maths.objectives import concave_gradient
from mpifed.maths.problem import Problem, Weighted

if TYPE_CHECKING:
    from mpifed.core.round import Round
    from mpifed.data.block import Batch, Block

_NUMBERS = 2**19  # of changes that are made before they are added


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


def lazy_change(local: Method, model: Array, push: Array | None) -> Lazy | None:
    """The weighted change of local steps, made by who adds it; None: it is no plain step from a common model.

    Parameters
    ----------
    push : [d], common to all
    """
    common = push is None or push.ndim == 1
    if not (common and local.guard.draws == "once" and local.own_step == local.step):
        return None
    block, guard, objective = local.block, local.guard, local.problem.objective
    xp = block.xp
    few = max(4, _NUMBERS // len(model) // 4 * 4) if xp is np else len(block.clients)

    def steps() -> Iterator[tuple[Array, Array]]:
        """So many clients at a time that their changes stay in the cache; multiples of four are added side by side."""
        for who, part, _ in block.by_batch_size(local.method.batch_size):
            (batch,) = local.minibatches(part, -local.step)
            gradients = objective.gradients(guard.record(model), batch.X, batch.y, batch.weights, *batch.keys)
            for start in range(0, len(who), few):
                at = slice(start, start + few)
                change = xp.empty((len(who[at]), len(model)), guard.dtype)
                yield who[at], local.plain_step(change, partial(gradients, at), model, push)

    def parts() -> Iterator[tuple[Array, Weighted]]:
        for who, change in steps():
            yield who, guard.weighted(local.penalized(change, model), block.clients[who])

    def apart() -> Iterator[tuple[Any, ...]]:  # as `parts`, or with a third
        weight = local.weight
        if not (weight == 1).all():
            return parts()
        counted, free = local.method.keeps(local.step)
        common = Weighted(guard.layout.combination((counted - 1,), (free - 1,), (model,)), np.zeros(1))
        return ((who, Weighted(change, weight[who]), common) for who, change in steps())

    return Lazy(parts, partial(_total_change, local, model, push), apart if xp is np else None)


def _total_change(local: Method, model: Array, push: Array | None) -> Weighted:
    """The weighted sum of all clients' changes, from products over many minibatches at once."""
    objective, guard, weight, step = local.problem.objective, local.guard, local.weight.sum(), local.step
    sent = guard.record(model)

    def of_few(few: Pooled) -> Array:
        each = np.repeat(guard.weights[few.clients], few.rows)[None] * (-step / few.rows)
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
