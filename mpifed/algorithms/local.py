"""Local work of clients with rows: their minibatches, and steps of stochastic gradients on these.

One step is x <- keep x + push - step (gradient + concave), and methods differ in `pull` and `push` alone:

    FedAvg      keep = 1 - 2 step l2
    FedProx     keep = 1 - step (mu + 2 l2)     push = step mu x_0
    SCAFFOLD    keep = 1 - 2 step l2            push = step (c_i - c)
    FedPDM      keep = 1 - step (rho + 2 l2)    push = step (lambda_i + rho x_0)

Intercepts have no l2: `keep` is a number for what penalties count, and one for what is free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self, final

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.loops import combination
from mpifed.core.record import Array, beside, take
from mpifed.maths.arrays import added
from mpifed.maths.objectives import concave_gradient, penalty_gradient
from mpifed.maths.optimizers import ClientOptimizer
from mpifed.maths.ranges import Count, Repeats

if TYPE_CHECKING:
    from mpifed.core.refusals import Refusal
    from mpifed.core.round import Round
    from mpifed.data.block import Batch, Block
    from mpifed.maths.objectives import Parameters
    from mpifed.maths.problem import Problem
    from mpifed.privacy.open import Minibatch, Open

ROWS = 2048  # rows of one client in memory at once, as far as a minibatch is no larger


def slices(batch: int, steps: int | None, epochs: int | None, size: int) -> list[slice]:
    """Where each local step's minibatch lies among the rows drawn from a shard of `size` rows."""
    if epochs is None:
        batch = min(batch, size)
        return [slice(i * batch, (i + 1) * batch) for i in range(steps or 1)]
    return [
        slice(start, min(start + batch, first + size))
        for first in range(0, epochs * size, size)
        for start in range(first, first + size, batch)
    ]


@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """Clients take SGD steps on minibatches of their own rows: `local_steps` of them, or `local_epochs` passes.

    A client with fewer rows than `batch_size` has all of them in every minibatch, not in private jobs. All local steps
    of a round have that round's learning rate, but for `local_schedule`. Momentum and moments of `[client_optimizer]`
    are a client's within a round.

    Attributes
    ----------
    refuses : why not, in words: "momentum" of clients, or their moments; "steps" but plain ones; steps without a
        "rate", as AdamW's; "fewer" steps of some clients in a round; a "server_optimizer" but the mean; a "schedule"
        ending at 0
    lasting : whether how far clients were drawn in a round moves them in the next, by what they keep
    """

    refuses: ClassVar[Mapping[str, str]] = {}
    lasting: ClassVar[bool] = False
    # (move, at, model, kept) -> (what a step adds in place of move(at), what the next step is given as `kept`, first
    # None); move(z) is -step times the minibatch's whole gradient at z, [d] or [n, d]. The step changes `at` in place
    descend: ClassVar[Callable[..., tuple[Array, Any]] | None] = None
    batch_size: Count
    """Rows in a minibatch, drawn without replacement from a client's own."""
    client_optimizer: ClientOptimizer
    local_steps: Repeats | None = None
    """Local SGD steps in a round; give this or `local_epochs`. With neither it is one step."""
    local_epochs: Repeats | None = None
    """Local passes over all rows of the client in a round, the last minibatch of a pass possibly smaller."""
    local_least: Repeats | None = None
    """Fewest of these steps, or passes: each client does a number drawn anew for each round, uniformly from this to
    that; where absent, all do as many."""

    @property
    def pull(self) -> float:
        """mu of the clients' mu / 2 ||x - x_0||^2, x_0 being the model that they were sent."""
        return 0.0

    @property
    def stop(self) -> float:
        """Clients stop after a step whose direction has a squared norm of at most this; 0: never."""
        return 0.0

    def step_of(self, t: int) -> float:
        """The step size of local steps in round t = 1, 2, ..."""
        return self.client_optimizer.at(t)

    def in_round(self, now: Round) -> Self:
        """The method as all know it to be in a round: where `local_steps` follows from that, say, another one."""
        return self

    def step_for(self, step: float, count: int) -> float:
        """The step size of a client that takes so many steps in a round, whose step size is `step`."""
        return step

    # --- how many steps ---------------------------------------------------------------------------------------------

    @property
    def varying(self) -> bool:
        """Whether clients do unlike numbers of local passes, or steps, in a round."""
        return bool(self.local_least or self.problem.stragglers) or self.problem.steps_in_time is not None

    @property
    def repeats(self) -> int:
        """How many local passes, or steps, a client does in a round, at most."""
        return self.local_epochs or self.local_steps or 1

    @final
    def repeats_of(self, now: Round, clients: Array) -> Array:
        """[n] how many local passes, or steps, clients do in a round; a straggler from one to all but one.

        They depend on the seed, the round and the client alone, on who is a straggler, and on what time allows.
        """
        high = np.full(len(clients), self.repeats)
        if self.problem.steps_in_time is not None:
            of_one = self.steps_of(self.problem.counts[clients], np.int64(1))
            high = (self.problem.steps_in_time[clients] // of_one).clip(1, high)
        if not self.varying:
            return high
        from mpifed.core.round import uniform  # which no other job needs

        low = np.minimum(self.local_least or self.repeats, high)
        if now.slow is not None:
            low[now.slow[clients]] = 1
            high -= now.slow[clients]
        level = uniform(now.words_of_clients("local work", clients).view(np.uint64))
        repeats: Array = low + (level * (high - low + 1)).astype(np.int64)
        return repeats

    @final
    def steps_of(self, rows: Array, repeats: Array) -> Array:
        """[n] the local steps of clients with so many rows, who do so many passes, or steps."""
        return repeats * -(-rows // self.batch_size) if self.local_epochs else repeats

    @final
    def taken(self, now: Round, clients: Array) -> Array:
        """[n] how many local steps clients take in a round."""
        return self.steps_of(self.problem.counts[clients], self.repeats_of(now, clients))

    @final
    @cached_property
    def most_steps(self) -> int:
        """Those of the largest shard, at most."""
        return int(self.steps_of(np.int64(self.problem.most), np.int64(self.repeats)))

    @cached_property
    def uneven(self) -> bool:
        """Whether some clients take more steps than others, by numbers of rows and draws, which all know."""
        return self.varying or bool(self.steps_of(self.problem.counts.min(), np.int64(self.repeats)) != self.most_steps)

    @property
    def one_plain_step(self) -> bool:
        """Whether each client takes a single step, along a minibatch's gradient."""
        single, optimizer = self.local_epochs is None and self.most_steps == 1, self.client_optimizer
        return single and self.descend is None and optimizer.fused and not optimizer.nesterov

    # --- how far they lead ------------------------------------------------------------------------------------------

    def rate_of(self, step: float, count: int) -> float:
        """How far a constant gradient moves a client by its steps: with gradient g in all, x_i - x_0 = -rate g.

        In units of `step`, let d be how far it is and v its velocity, from 0 both. A plain step goes on by
        u = 1 - step pull d, since the pull grows with the distance; then v <- momentum v + u, and d <- d + v, or in
        Nesterov's form d + momentum v + u. So after r steps rate / step is

            r                                         for plain ones,
            (1 - (1 - step pull)^r) / (step pull)     with a pull alone,
            (r - m (1 - m^r) / (1 - m)) / (1 - m)     with momentum m alone; Nesterov's adds m (1 - m^r) / (1 - m),

        the three ||a_i||_1 of FedNova (J. Wang et al., arXiv:2007.07481). l2 and weight decay are no pull: their
        gradients are part of g, as they are part of what is minimized. Nor does clipping count. NaN where parameters
        have rates of their own.
        """
        optimizer, distance, step = self.client_optimizer, 0.0, self.step_for(step, count)
        state = optimizer.start
        if not optimizer.linear:
            return math.nan
        for k in range(1, count + 1):
            move, state = optimizer.direction(state, 1 - step * self.pull * distance, 0.0, k)
            distance += optimizer.factor(k) * move
        return step * distance

    @final
    def keeps(self, step: float) -> tuple[float, float]:
        """1 - step (pull + 2 l2 + weight decay), and the same without l2, for intercepts."""
        rest = self.client_optimizer.weight_decay
        l2 = 2 * float(self.problem.objective.l2)
        return 1 - step * (self.pull + l2 + rest), 1 - step * (self.pull + 0.0 + rest)

    def conflicts(self) -> Iterator[Refusal]:
        """What of the job does not go with this method."""
        from mpifed.algorithms.refused_steps import refused_steps  # which no round needs

        yield from refused_steps(self)


@dataclass(frozen=True, eq=False)
class Local:
    """What the n clients of a block can do in a round: their hands. Models are [d], or [n, d] one of each client.

    Parameters
    ----------
    method : whose local steps these are
    block : the clients, and their rows
    now : the round, for keyed random numbers
    step : the step size of this round's local steps
    guard : what stands between these clients and all others
    """

    method: LocalSteps
    block: Block
    now: Round
    step: float
    guard: Open

    @property
    def problem(self) -> Problem:
        """What is public of the task."""
        return self.method.problem

    @cached_property
    def rate(self) -> float | Array:
        """How far a constant gradient moves a client in this round; [n, 1] where clients' steps differ in number.

        FedNova's eta ||a_i||_1, SCAFFOLD's K eta, the step of the server's prox, and what an audit divides by.
        UsageError where there is none, as with AdamW.
        """
        if not self.method.client_optimizer.linear:
            from mpifed.algorithms.refused_steps import no_rate  # which no round needs

            raise no_rate(self.method)
        return self._by_steps(self.method.rate_of)

    def slope(self, change: Array) -> Array:
        """[n, d] the gradient by which a client's plain steps lead to its change, -change / rate."""
        return change / -self.rate if self.method.uneven else change * (-1 / self.rate)

    @cached_property
    def own_step(self) -> float | Array:
        """The clients' step size, where it differs from `step`; [n, 1] where their steps differ in number."""
        return self._by_steps(self.method.step_for)

    def _by_steps(self, given: Callable[[float, int], float]) -> float | Array:
        """What is given of the step size and a number of steps."""
        method = self.method
        if not method.uneven:
            return given(self.step, method.most_steps)
        counts = method.taken(self.now, self.block.clients).tolist()
        each = [given(self.step, count) for count in counts]
        return beside(self.block.shards[0].y, np.array(each, self.problem.dtype)[:, None])

    @property
    def staleness(self) -> Array:
        """[n, 1] how many rounds the clients' answers have missed."""
        missed = self.now.index - self.now.began(self.block.clients)
        return beside(self.block.shards[0].y, missed[:, None].astype(self.problem.dtype))

    @property
    def weight(self) -> Array:
        """[n] the clients' weights in a mean."""
        return self.guard.weight(self.block.clients)

    def gradient(self, model: Array) -> Array:
        """[n, d] of each client's loss over all its rows at `model` [d] or [n, d], with penalties and weight decay.

        Networks draw nothing here, as in evaluation. The rows count among the gradients computed in a round.
        """
        objective, flat, block = self.problem.objective, self.guard.layout.flat, self.block

        def of_part(who: Array, part: Block, rows: int) -> Array:
            at = model if model.ndim == 1 else take(model, who)
            record = self.guard.record(at)

            def of_rows(start: int) -> Parameters:
                places = np.arange(start, min(start + ROWS, rows))
                X, y = part.take(np.tile(places, (len(who), 1)))
                return objective.gradient(record, X, y, part.xp.full(y.shape, 1 / rows))

            total: Array = flat(added(map(of_rows, range(0, rows, ROWS))))
            total += at * self.method.client_optimizer.weight_decay
            total += flat(penalty_gradient(objective, record))
            return total

        block.drawn[0] += int(block.counts.sum())
        gradients: Array = block.joined(self.problem.most, of_part)
        return gradients

    # --- minibatches ------------------------------------------------------------------------------------------------

    def minibatches(self, block: Block, gain: float = 1.0) -> Iterator[Minibatch]:
        """The minibatches of the round, step by step; all clients of `block` have the same number of steps and rows.

        Weights in a mean are times `gain`.

        Those of a round are disjoint as far as the shard goes. Where every gradient is made noisy, they are drawn
        independently instead, in secret: that is what the accountant assumes.
        """
        method, guard, now = self.method, self.guard, self.now
        if guard.draws == "anew":
            for r in range(method.local_steps or 1):
                rows = block.draw(now, f"minibatch {r}", method.batch_size, secret=True)
                yield self._minibatch(block, r, block.take(rows), gain)
            return
        count = int(method.repeats_of(now, block.clients[:1])[0]) if method.varying else method.repeats
        places = slices(method.batch_size, count, count if method.local_epochs else None, int(block.counts[0]))
        rows = block.draw(now, "minibatch", places[-1].stop, secret=guard.draws == "secretly")
        together = max(1, ROWS // method.batch_size)  # steps whose rows are read at once
        for start in range(0, len(places), together):
            steps = places[start : start + together]
            first = steps[0].start
            batch = block.take(rows[:, first : steps[-1].stop])
            for r, at in enumerate(steps, start):
                yield self._minibatch(block, r, batch.rows(at.start - first, at.stop - first), gain)

    def _minibatch(self, block: Block, r: int, batch: Batch, gain: float) -> Minibatch:
        """Of step r, with the rows' weights, which are all the same."""
        keys = self.problem.objective.pass_keys(self.now, r, block.clients, self.guard.draws != "once")
        return self.guard.minibatch(batch, keys, gain)

    # --- steps ------------------------------------------------------------------------------------------------------

    def change(self, model: Array, push: Array | None = None, starts: Array | None = None) -> Array:
        """[n, d] x_i - model: each client's change after its local steps.

        In a private job there is no warning of numbers that are not finite: it would depend on the data.

        Parameters
        ----------
        model : [d], which penalties pull to, and where steps begin unless `starts` says otherwise
        push : [d] or [n, d], what each step adds
        starts : [n, d] where each client begins
        """
        method = self.method
        size = method.batch_size if method.local_epochs is None else self.problem.most

        def of_part(who: Array, part: Block, rows: int) -> Array:
            each = [few if few is None or few.ndim == 1 else take(few, who) for few in (push, starts)]
            taken = int(method.taken(self.now, part.clients[:1])[0]) if method.uneven else method.most_steps
            step = method.step_for(self.step, taken)
            local = self if step == self.step else replace(self, step=step)
            return local._steps(part, model, *each)

        quiet = {} if self.problem.privacy is None else {"over": "ignore", "invalid": "ignore"}
        with np.errstate(**quiet):  # type: ignore[arg-type]  # of two of its names
            alike = method.repeats_of(self.now, self.block.clients) if method.varying else None
            changes: Array = self.block.joined(size, of_part, alike)
        return changes

    def _steps(self, block: Block, model: Array, push: Array | None, x: Array | None) -> Array:
        """`change` for clients with the same numbers of steps and rows, in arrays [n, d] that serve all steps."""
        method, optimizer, guard, xp = self.method, self.method.client_optimizer, self.guard, block.xp
        change = xp.empty((len(block.clients), len(model)), guard.dtype)
        if method.one_plain_step and x is None:
            (batch,) = self.minibatches(block, -self.step)
            put = partial(guard.put_step, guard.record(model), batch, self.step, 0, block.clients, self.now)
            return self.penalized(self.plain_step(change, put, model, push), model)
        down, split = guard.record(change), guard.layout.penalized.stop
        model, x = model.astype(guard.dtype, copy=False), None if x is None else x.astype(guard.dtype)
        push = None if push is None else push.astype(guard.dtype, copy=False)
        fused, scale = optimizer.fused, self.step if optimizer.fused else -1.0
        moves, keep = (change,) if push is None else (change, push), method.keeps(self.step)
        if not fused:  # the direction has all in it
            moves, keep = (change,), (1.0, 1.0)
        elif method.descend is not None:  # which penalties belong to, and the pull does not
            keep = (1 - self.step * method.pull,) * 2
        momentum = optimizer.momentum if fused else 0.0
        velocity = xp.zeros_like(change) if momentum else change
        kept: Any = None if fused else optimizer.start  # a record of the optimizer's own
        ended = xp.zeros(len(block.clients), dtype=bool)

        def combined(less: float, rest: Sequence[float], arrays: Sequence[Array], out: Array | None) -> Array:
            """`moves`, then of `arrays` the first times what is kept, less so much, and others times `rest`."""
            factors = [(*(1.0,) * len(moves), part - less, *rest) for part in keep]
            return combination(factors[0], (*moves, *arrays), out, (split, factors[1]))

        for r, batch in enumerate(self.minibatches(block, -scale)):
            at = model if x is None else x
            if r < 2:  # from then on x is changed in place
                point = guard.record(at)
            before = at.copy() if method.stop else at
            if not fused:
                guard.put_step(point, batch, scale, r, block.clients, self.now, down)
                kept = self._steer(change, at, point, push, r + 1, kept)
            elif method.descend is None:
                self._put_step(block, point, at, batch, r, scale, change, down)
            else:
                block.drawn[0] -= batch.y.size
                change[...], kept = method.descend(partial(self._move, block, batch, r), at, model, kept)
            if momentum:  # v <- momentum v + u, u being the change by a plain step
                combined(1.0, (), (at,), change)
                combination((momentum, 1.0), (velocity, change), velocity)
                if optimizer.nesterov:
                    x = combination((momentum, 1.0, 1.0), (velocity, change, at), x)
                else:
                    x = combination((1.0, 1.0), (velocity, at), x)
            elif x is None:
                x = combined(1.0, (1.0,), (at, at), None)
            else:
                combined(0.0, (), (x,), x)
            if method.stop:  # who had stopped stays there: (11)
                least = method.stop * (self.step * optimizer.factor(r + 1)) ** 2
                x[...] = xp.where(ended[:, None], before, x)
                ended |= ((x - before).astype(np.float64) ** 2).sum(axis=1) <= least
                if bool(ended.all()):
                    break
        assert x is not None  # there is a minibatch
        x -= model
        return x

    def plain_step(self, change: Array, put: Callable[[Parameters], object], model: Array, push: Array | None) -> Array:
        """`change` [n, d]: by one step from a common model along what `put` puts there, without convex penalties."""
        put(self.guard.record(change))
        self._add_concave(model, self.step, change)
        if push is not None:
            change += push
        return change

    def _put_step(
        self, block: Block, point: Parameters, at: Array, batch: Minibatch, r: int, step: float,
        out: Array, down: Parameters,
    ) -> None:  # fmt: skip
        """Put -step (mean gradient + concave) at `at` into `out` [n, d]; `point` and `down` are their layers."""
        self.guard.put_step(point, batch, step, r, block.clients, self.now, down)
        self._add_concave(at, step, out)

    def _add_concave(self, at: Array, step: float, out: Array) -> None:
        """Add -step times the gradient of the penalty that is not convex."""
        if self.problem.objective.nonconvex_penalty:
            counted = self.guard.layout.penalized
            out[..., counted] += concave_gradient(self.problem.objective, at[..., counted]) * -step

    def _move(self, block: Block, batch: Minibatch, r: int, z: Array) -> Array:
        """[n, d] -step times the minibatch's gradient at z, with all penalties."""
        out = block.xp.empty((len(block.clients), z.shape[-1]), self.guard.dtype)
        block.drawn[0] += batch.y.size  # gradients that are computed
        self._put_step(block, self.guard.record(z), z, batch, r, self.step, out, self.guard.record(out))
        return self.penalized(out, z, 1 - self.step * self.method.pull)

    def penalized(self, change: Array, at: Array, less: float = 1.0) -> Array:
        """`change` plus (keep - less) at, in place."""
        counted, free = self.method.keeps(self.step)
        if counted == free == less:
            return change
        split = self.guard.layout.penalized.stop
        return combination((1.0, counted - less), (change, at), change, (split, (1.0, free - less)))

    # the state is a record of the optimizer's own
    def _steer(self, gradient: Array, at: Array, point: Parameters, push: Array | None, k: int, state: Any) -> Any:
        """Make of a gradient [n, d] without penalties what local step k adds; the optimizer's next state."""
        method, optimizer = self.method, self.method.client_optimizer
        gradient += self.guard.layout.flat(penalty_gradient(self.problem.objective, point))
        if optimizer.clip_norm is not None:
            norm = (gradient.astype(np.float64) ** 2).sum(axis=1, keepdims=True) ** 0.5
            gradient *= (optimizer.clip_norm / norm.clip(optimizer.clip_norm)).astype(gradient.dtype)
        gradient += method.pull * at
        if push is not None and self.step:
            gradient -= push / self.step
        direction, state = optimizer.direction(state, gradient, at, k)
        gradient[...] = direction * (-self.step * optimizer.factor(k))
        return state
