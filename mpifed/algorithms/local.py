"""Local work of clients with rows: steps of stochastic gradients from a common model, or from the client's own.

One step is x <- keep x + push - step (gradient + concave), and the algorithms differ in `keep` and `push` alone:

    FedAvg      keep = 1 - 2 step l2
    FedProx     keep = 1 - step (mu + 2 l2)     push = step mu x_0
    SCAFFOLD    keep = 1 - 2 step l2            push = step (c_i - c)
    FedPDM      keep = 1 - step (rho + 2 l2)    push = step (lambda_i + rho x_0)

Intercepts have no l2: `keep` is a number for each part of the model.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import model_template
from mpifed.algorithms.minibatches import Minibatch, Minibatches, wrong_draw
from mpifed.algorithms.private import noisy_gradient, privacy_of, settings, sums_narrow, working_dtype, wrong_privacy
from mpifed.core.block import Block
from mpifed.core.exchange import Problem
from mpifed.core.loops import begun, descended, moved
from mpifed.core.record import Array, bare_leaves, map_leaves, namespace
from mpifed.core.round import Round
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import Parameters, concave, concave_gradient
from mpifed.maths.optimizers import SGD


@dataclass(frozen=True)
class LocalSteps(Minibatches):
    """Clients' work in a round: a step on each of its minibatches."""

    optimizer: SGD = SGD(1.0)  # noqa: RUF009  (frozen); for its momentum and weight decay
    pull: float = 0.0  # mu of mu / 2 ||x - x_0||^2, x_0 being the model that clients were sent

    def rate(self, step: float) -> float:
        """How far a constant gradient moves a client in its round: with gradient g in all steps, x_i - x_0 = -rate g.

        In units of `step`, let d be how far it is and v its velocity, from 0 both. A plain step goes on by
        u = 1 - step pull d, since the pull grows with the distance; then v <- momentum v + u, and d <- d + v, or in
        Nesterov's form d + momentum v + u. So after r steps rate / step is

            r                                         for plain ones,
            (1 - (1 - step pull)^r) / (step pull)     with a pull alone,
            (r - m (1 - m^r) / (1 - m)) / (1 - m)     with momentum m alone; Nesterov's adds m (1 - m^r) / (1 - m),

        the three ||a_i||_1 of FedNova (J. Wang et al., arXiv:2007.07481). l2 and weight decay are no pull: their
        gradients are part of g, as they are part of what is minimized. With epochs it is that of the largest shard.
        """
        momentum, distance, velocity = self.optimizer.momentum, 0.0, 0.0
        for _ in range(self.count):
            move = 1 - step * self.pull * distance
            velocity = momentum * velocity + move
            distance += momentum * velocity + move if self.optimizer.nesterov else velocity
        return step * distance

    def keeps(self, step: float) -> Parameters:
        """`keep` of each leaf of the model: 1 - step (pull + 2 l2 + weight decay), without l2 for intercepts."""
        return _keeps(self.problem, step, self.pull, self.optimizer.weight_decay)

    def check(self) -> list[str]:
        """Errors of the settings, one message each."""
        wrong = self.optimizer.wrong("client_optimizer")
        if self.steps and self.epochs:
            wrong.append("[algorithm] local_steps and local_epochs: give one of the two")
        rows = self.epochs * int(self.problem.counts.max()) if self.epochs else (self.steps or 1) * self.batch
        wrong += wrong_draw("local_epochs" if self.epochs else "local_steps", rows)
        if self.epochs and self.problem.regularizer is not None:
            wrong.append("[algorithm] local_epochs: with a [regularizer] give local_steps, alike for all clients")
        if self.epochs and self.problem.privacy is not None:
            wrong.append(
                "[algorithm] local_epochs: with [privacy] every minibatch is drawn anew, which is what is accounted "
                "for; give local_steps"
            )
        privacy = privacy_of(self.problem)
        momentum = self.optimizer.momentum
        if momentum and privacy is not None and privacy.level == "sample" and not privacy.on_gradients:
            wrong.append(
                f"[client_optimizer] momentum = {momentum:g}: with noise on the upload of what single records add "
                "no sensitivity is proven for steps with momentum; take momentum = 0, [privacy] "
                'noise_on = "gradients", or level = "client"'
            )
        return wrong + wrong_privacy(self.problem, self.steps or 1, self.batch)

    def _clipped(self, at: Parameters, batch: Minibatch) -> Parameters:
        """[n, ...] sums of the rows' clipped gradients."""
        at = map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), at)
        narrow, clip = sums_narrow(self.problem, self.batch), settings(self.problem).bound
        return clipped_gradient(self.problem.objective, at, batch.X, batch.y, batch.weights, clip, narrow)

    def run(self, descent: Descent, block: Block, now: Round) -> Parameters:
        """[n, ...] x_i - model: each client's change after its local steps.

        In a private job there is no warning of numbers that are not finite: it would depend on the data.
        """
        size = self.batch if self.epochs is None else int(self.problem.counts.max())

        def of_part(who: Array, part: Block, rows: int) -> Parameters:
            return self._run(descent if part is block else descent.only(who), part, now)

        with np.errstate() if privacy_of(self.problem) is None else np.errstate(over="ignore", invalid="ignore"):
            changes: Parameters = block.joined(size, of_part)
        return changes

    def _run(self, descent: Descent, block: Block, now: Round) -> Parameters:
        """`run` for clients with the same numbers of steps and rows."""
        if self.optimizer.momentum and (self.optimizer.nesterov or not self.single_step):
            return self._with_momentum(descent.of(working_dtype(self.problem)), block, now)
        descent = descent if self.single_step else descent.of(working_dtype(self.problem))
        model, step, keep, push, starts, tolerance = descent
        if push is None and not tolerance and self._plain and (starts is not None or not self.single_step):
            return self._along_gradients(descent, block, now)
        # None: at the model, which needs no copy for each
        x = None if starts is None else map_leaves(lambda leaf: leaf.copy(), starts)
        ended, pushes = block.xp.zeros(len(block.clients), dtype=bool), () if push is None else (push,)
        for r, batch in enumerate(self.minibatches(block, now)):
            at = model if x is None else x
            down = self._down(at, batch, step, block, now, r)
            if x is not None and not tolerance:
                map_leaves(descended, x, down, keep, *pushes)
                continue
            if push is not None:
                down = map_leaves(_add, down, push)
            if x is None:
                if self.single_step:
                    return map_leaves(
                        lambda d, w, part: d if part == 1 else moved(d, w, (part - 1,)), down, model, keep
                    )
                new = map_leaves(begun, down, model, keep)
            else:
                new = map_leaves(lambda w, d, part: d + w * w.dtype.type(part), x, down, keep)
            if tolerance:
                new, ended = _stopped(new, at, ended, tolerance * step**2)
            x = new
            if tolerance and bool(ended.all()):
                break
        assert x is not None  # there is a minibatch
        return map_leaves(operator.isub, x, model)

    def _along_gradients(self, descent: Descent, block: Block, now: Round) -> Parameters:
        """`_run` for steps along the gradient alone, which a model may take in its own way."""
        batches, objective, model, step = self.minibatches(block, now), self.problem.objective, *descent[:2]
        if descent.starts is None:
            batch = next(batches)
            down = objective.gradient(model, batch.X, batch.y, batch.weights * -step)
            x = map_leaves(begun, down, model, descent.keep)
        else:
            x = map_leaves(lambda leaf: leaf.copy(), descent.starts)
        local_step = objective.local_step([float(keep) for keep in bare_leaves(descent.keep)])
        weights = each = np.empty(0)
        for batch in batches:
            if batch.weights is not weights:  # those of most steps are the same
                weights, each = batch.weights, batch.weights * -step
            local_step(x, batch.X, batch.y, each)
        return map_leaves(operator.isub, x, model)

    def _with_momentum(self, descent: Descent, block: Block, now: Round) -> Parameters:
        """`_run` with momentum: v <- momentum v + u, u being the change by a plain step."""
        assert not descent.tolerance
        momentum, nesterov = self.optimizer.momentum, self.optimizer.nesterov
        x = descent.model if descent.starts is None else descent.starts
        velocity: Parameters | None = None

        def faster(v: Array, u: Array) -> Array:
            sped: Array = v * v.dtype.type(momentum) + u
            return sped

        for r, batch in enumerate(self.minibatches(block, now)):
            move = self._down(x, batch, descent.step, block, now, r)
            if descent.push is not None:
                move = map_leaves(_add, move, descent.push)
            move = map_leaves(lambda u, w, keep: u + w * w.dtype.type(keep - 1), move, x, descent.keep)
            velocity = move if velocity is None else map_leaves(faster, velocity, move)
            x = map_leaves(operator.add, map_leaves(faster, velocity, move) if nesterov else velocity, x)
        return map_leaves(operator.sub, x, descent.model)

    @property
    def _plain(self) -> bool:
        """Whether a step is along the gradient alone: not clipped, without noise or a penalty that is not convex."""
        privacy = privacy_of(self.problem)
        return (privacy is None or privacy.level == "client") and not concave(self.problem.objective)

    def _down(self, at: Parameters, batch: Minibatch, step: float, block: Block, now: Round, r: int) -> Parameters:
        """[n, ...]: -step (mean gradient + concave), clipped and with noise as the job says."""
        problem, privacy = self.problem, privacy_of(self.problem)
        if privacy is None or privacy.level == "client":
            down = problem.objective.gradient(at, batch.X, batch.y, batch.weights * -step)
        else:
            gain = -step / self.batch
            total = self._clipped(at, batch)
            if privacy.on_gradients:
                down = noisy_gradient(problem, total, gain, self.batch, r, block, now)
            else:
                down = map_leaves(partial(_scaled, gain), total)
        if concave(problem.objective):
            down = map_leaves(
                lambda d, w, counts: _add(d, concave_gradient(problem.objective, w) * -step) if counts else d,
                down, at, problem.objective.penalized(at),
            )  # fmt: skip
        return down


@lru_cache(maxsize=8)  # every block of clients asks for those of the round
def _keeps(problem: Problem, step: float, pull: float, decay: float) -> Parameters:
    """`LocalSteps.keeps`."""
    double = 2 * float(problem.objective.l2)
    factors: Parameters = map_leaves(
        lambda counts: 1 - step * (pull + (double if counts else 0.0) + decay),
        problem.objective.penalized(model_template(problem)),
    )
    return factors


@lru_cache(maxsize=8)
def contraction(problem: Problem, keeps: Parameters, step: float) -> float:
    """The Lipschitz constant of a local step's public part: the largest over the leaves, which are mapped separately.

    The curvature of the penalty that is not convex is -beta/2 to 2 beta; intercepts do not have it.
    """
    beta = concave(problem.objective)
    kinds = map_leaves(
        lambda keep, counts: max(abs(keep - 2 * step * beta), abs(keep + step * beta / 2)) if counts else abs(keep),
        keeps, problem.objective.penalized(keeps),
    )  # fmt: skip
    return max(map(float, bare_leaves(kinds)))


def _add(out: Array, other: Array) -> Array:
    out += other
    return out


def _scaled(factor: float, out: Array) -> Array:
    out *= factor
    return out


def _stopped(new: Parameters, old: Parameters, ended: Array, least: float) -> tuple[Parameters, Array]:
    """The iterates after a step, unchanged for clients who had stopped; and who has stopped by now: (11)."""
    xp = namespace(ended)
    squares = xp.zeros(len(ended))

    def stay(leaf: Array, before: Array) -> Array:
        leaf = xp.where(ended.reshape(-1, *[1] * (leaf.ndim - 1)), before, leaf)
        axes = tuple(range(1, leaf.ndim))
        squares[:] += ((leaf - before).astype(np.float64) ** 2).sum(axis=axes)
        return leaf

    new = map_leaves(stay, new, old)
    return new, ended | (squares <= least)
