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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mpifed.algorithms.descent import Descent
from mpifed.algorithms.horizontal import model_layout, model_template
from mpifed.algorithms.minibatches import Minibatch, Minibatches, wrong_draw
from mpifed.algorithms.private import noisy_gradient, privacy_of, settings, sums_narrow, working_dtype, wrong_privacy
from mpifed.core.exchange import Problem
from mpifed.core.loops import combination
from mpifed.core.record import Array, assign, bare_leaves, map_leaves, unflat
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Block
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

    def run(self, descent: Descent, block: Block, now: Round, layout: Layout | None = None) -> Parameters:
        """[n, ...] x_i - model: each client's change after its local steps.

        In a private job there is no warning of numbers that are not finite: it would depend on the data.

        Parameters
        ----------
        layout : of the model, where it is not the problem's
        """
        size = self.batch if self.epochs is None else int(self.problem.counts.max())
        single = self.single_step and descent.starts is None and not self.optimizer.nesterov

        def of_part(who: Array, part: Block, rows: int) -> Parameters:
            own = descent if part is block else descent.only(who)
            if single:
                return self._single(own, part, now)
            return self._run(own, part, now, layout or model_layout(self.problem))

        with np.errstate() if privacy_of(self.problem) is None else np.errstate(over="ignore", invalid="ignore"):
            changes: Parameters = block.joined(size, of_part)
        return changes

    def _single(self, descent: Descent, block: Block, now: Round) -> Parameters:
        """`run` for a single step from the model, which needs no copy of it for each client."""
        dtype, n = working_dtype(self.problem), len(block.clients)
        change = map_leaves(lambda w: block.xp.empty((n, *w.shape), dtype), descent.model)
        (batch,) = self.minibatches(block, now, -descent.step)
        self._down(descent.model, batch, descent.step, block, now, 0, change)
        if descent.push is not None:
            map_leaves(operator.iadd, change, descent.push)

        def shrunk(u: Array, w: Array, keep: float) -> Array:
            return u if keep == 1 else combination((1.0, keep - 1), (u, w), u)

        return map_leaves(shrunk, change, descent.model, descent.keep)

    def _run(self, descent: Descent, block: Block, now: Round, layout: Layout) -> Parameters:
        """`run` for clients with the same numbers of steps and rows, in arrays [n, d] that serve all steps."""
        like, dtype, xp = descent.model, working_dtype(self.problem), block.xp
        push, x = (None if part is None else layout.flat(part, dtype) for part in (descent.push, descent.starts))
        model = layout.flat(like, dtype)
        as_sent = x is None and dtype == self.problem.dtype
        point = like if as_sent else layout.record(model if x is None else x, like)
        change, ended = xp.empty((len(block.clients), layout.size), dtype), xp.zeros(len(block.clients), dtype=bool)
        down, moves = layout.record(change, like), (change,) if push is None else (change, push)
        ones, momentum = (1.0,) * len(moves), self.optimizer.momentum
        velocity = xp.zeros_like(change) if momentum else change
        keeps = dict(zip(layout.shapes, bare_leaves(descent.keep), strict=True))
        # those of the first part and of the last: of what is penalized, and of what is not
        counted, *_, free = (float(keeps[name]) for name in (*layout.at, *layout.at))

        def combined(factors: Callable[[float], Sequence[float]], arrays: Sequence[Array], out: Array | None) -> Array:
            return combination(factors(counted), arrays, out, (layout.penalized.stop, factors(free)))

        for r, batch in enumerate(self.minibatches(block, now, -descent.step)):
            at = model if x is None else x
            self._down(point, batch, descent.step, block, now, r, down)
            before = at.copy() if descent.tolerance else at
            if momentum:  # v <- momentum v + u, u being the change by a plain step
                combined(lambda keep: (*ones, keep - 1), (*moves, at), change)
                combination((momentum, 1.0), (velocity, change), velocity)
                if self.optimizer.nesterov:
                    x = combination((momentum, 1.0, 1.0), (velocity, change, at), x)
                else:
                    x = combination((1.0, 1.0), (velocity, at), x)
            elif x is None:
                x = combined(lambda keep: (*ones, keep - 1, 1.0), (*moves, at, at), None)
            else:
                combined(lambda keep: (*ones, keep), (*moves, x), x)
            if at is model:
                point = layout.record(x, like)
            if descent.tolerance:  # who had stopped stays there: (11)
                x[...] = xp.where(ended[:, None], before, x)
                ended |= ((x - before).astype(np.float64) ** 2).sum(axis=1) <= descent.tolerance * descent.step**2
                if bool(ended.all()):
                    break
        assert x is not None  # there is a minibatch
        if len(x) == 1:
            x -= model
            return point
        # leaves of which each is contiguous, in memory that is there
        return map_leaves(xp.subtract, point, layout.record(model, like), unflat(change.reshape(-1), point))

    def _down(
        self, at: Parameters, batch: Minibatch, step: float, block: Block, now: Round, r: int, out: Parameters
    ) -> None:
        """Put -step (mean gradient + concave) into `out` [n, ...], clipped and with noise as the job says."""
        problem, privacy = self.problem, privacy_of(self.problem)
        if privacy is None or privacy.level == "client":
            problem.objective.put_gradient(at, batch.X, batch.y, batch.weights, out)
        else:
            gain = -step / self.batch
            total = self._clipped(at, batch)
            if privacy.on_gradients:
                assign(out, noisy_gradient(problem, total, gain, self.batch, r, block, now))
            else:
                map_leaves(lambda there, leaf: block.xp.multiply(leaf, gain, out=there), out, total)
        if concave(problem.objective):
            for d, w, counts in zip(*map(bare_leaves, (out, at, problem.objective.penalized(at))), strict=True):
                if counts:
                    d += concave_gradient(problem.objective, w) * -step


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
