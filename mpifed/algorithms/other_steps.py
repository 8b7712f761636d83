"""Local steps that are not plain: with momentum, with clipped gradients, of adaptive optimizers or a method's own."""

from __future__ import annotations

from functools import partial

import numpy as np

from mpifed.core.exchange import Method
from mpifed.core.record import Array
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters, penalty_gradient
from mpifed.maths.optimizers import State
from mpifed.privacy.open import Minibatch


def other_steps(local: Method, block: Block, model: Array, push: Array | None, x: Array | None) -> Array:
    """[n, d] the changes of clients with the same numbers of steps and rows, who begin at x [n, d] or at `model`."""
    method, guard, xp, step = local.method, local.guard, block.xp, local.step
    optimizer, layout = method.client_optimizer, guard.layout
    fused, momentum = optimizer.fused, optimizer.momentum if optimizer.fused else 0.0
    change = xp.empty((len(block.clients), len(model)), guard.dtype)
    down, velocity = guard.record(change), xp.zeros_like(change) if momentum else change
    moves = (change,) if push is None or not fused else (change, push)
    counted, free = method.keeps(step)
    if not fused:  # the direction has all in it
        counted = free = 1.0
    elif method.descend is not None:  # which penalties belong to, and the pull does not
        counted = free = 1 - step * method.pull
    kept: State = None if fused else optimizer.start
    ended = xp.zeros(len(block.clients), dtype=bool)

    def combined(less: float, rest: tuple[float, ...], arrays: tuple[Array, ...], out: Array | None) -> Array:
        """`moves`, then of `arrays` the first times what is kept, less so much, and others times `rest`."""
        ones = (1.0,) * len(moves)
        lead = (*ones, counted - less, *rest), (*ones, free - less, *rest)
        result: Array = layout.combination(*lead, (*moves, *arrays), out)
        return result

    for r, batch in enumerate(local.minibatches(block, -step if fused else 1.0)):
        at = model if x is None else x
        if r < 2:  # from then on x is changed in place
            point = guard.record(at)
        before = at.copy() if method.stop else at
        if not fused:
            guard.put_step(point, batch, -1.0, r, block.clients, local.now, down)
            kept = _steer(local, change, at, point, push, r + 1, kept)
        elif method.descend is None:
            local.put_step(block, point, at, batch, r, step, change, down)
        else:
            block.drawn[0] -= batch.y.size
            change[...], kept = method.descend(partial(_move, local, block, batch, r), at, model, kept)
        if momentum:  # v <- momentum v + u, u being the change by a plain step
            combined(1.0, (), (at,), change)
            velocity = layout.combination((momentum, 1.0), (momentum, 1.0), (velocity, change), velocity)
            lead = (momentum, 1.0, 1.0) if optimizer.nesterov else (1.0, 1.0)
            x = layout.combination(lead, lead, (velocity, change, at) if optimizer.nesterov else (velocity, at), x)
        elif x is None:
            x = combined(1.0, (1.0,), (at, at), None)
        else:
            combined(0.0, (), (x,), x)
        if method.stop:  # who had stopped stays there: (11) of FedPDM
            x[...] = xp.where(ended[:, None], before, x)
            least = method.stop * (step * optimizer.factor(r + 1)) ** 2
            ended |= ((x - before).astype(np.float64) ** 2).sum(axis=1) <= least
            if bool(ended.all()):
                break
    assert x is not None  # there is a minibatch
    x -= model
    return x


def _move(local: Method, block: Block, batch: Minibatch, r: int, z: Array) -> Array:
    """[n, d] -step times the minibatch's gradient at z, with all penalties."""
    guard = local.guard
    out: Array = block.xp.empty((len(block.clients), z.shape[-1]), guard.dtype)
    block.drawn[0] += batch.y.size  # gradients that are computed
    local.put_step(block, guard.record(z), z, batch, r, local.step, out, guard.record(out))
    local.penalized(out, z, 1 - local.step * local.method.pull)
    return out


def _steer(
    local: Method, gradient: Array, at: Array, point: Parameters, push: Array | None, k: int, state: State
) -> State:
    """Make of a gradient [n, d] without penalties what local step k adds; the optimizer's next state."""
    method, optimizer = local.method, local.method.client_optimizer
    gradient += local.guard.layout.flat(penalty_gradient(local.problem.objective, point))
    if optimizer.clip_norm is not None:
        norm = (gradient.astype(np.float64) ** 2).sum(axis=1, keepdims=True) ** 0.5
        gradient *= (optimizer.clip_norm / norm.clip(optimizer.clip_norm)).astype(gradient.dtype)
    gradient += method.pull * at
    if push is not None and local.step:
        gradient -= push / local.step
    direction, state = optimizer.direction(state, gradient, at, k)
    gradient[...] = direction * (-local.step * optimizer.factor(k))
    return state
