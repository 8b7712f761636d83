"""Mini-batch SSCA for horizontally split data: Algorithms 1 and 2, see `mpifed.algorithms.ssca_server`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from mpifed.algorithms.functions import Statistics, counts_some, statistics
from mpifed.algorithms.horizontal import (
    Rows,
    Weighted,
    check_rows,
    count_samples,
    mean,
    minibatches,
    model_template,
    start_model,
    training_rows,
    weighted_fields,
)
from mpifed.algorithms.minibatches import wrong_draw
from mpifed.algorithms.revealed import of_statistics, weight_of
from mpifed.algorithms.ssca_server import SSCABase, SSCAServer
from mpifed.algorithms.ssca_subproblem import solve
from mpifed.core.block import Batch, Block
from mpifed.core.exchange import ToServer
from mpifed.core.protocols import Features
from mpifed.core.record import ABSENT, Array, added, beside, in_memory, map_leaves, namespace, on_host
from mpifed.core.reveals import MeanGradient, Received, Revealed
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.surrogate import Surrogate, level_at, move, slope_at


@in_memory("shares", "keep")
class SSCABroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # w_t
    previous: Parameters  # w_{t-1}, where gradients are variance-reduced; else ABSENT
    shares: Array  # [K], or ABSENT
    keep: np.float64  # 1 - rho_t, where gradients are variance-reduced; else ABSENT


@in_memory("shares", "cost")
class LocalStepsBroadcast(NamedTuple):
    """Broadcast of a round with several local steps."""

    model: Parameters  # w_t
    surrogate: Surrogate  # of round t - 1
    shares: Array  # [K], or ABSENT
    step: np.int64  # t
    cost: Array  # [M] float64, c


class LocalStepsUpload(NamedTuple):
    """A client's upload after several local steps."""

    change: Parameters  # of its model
    linear: Parameters  # leaves [K, ...] of its surrogates
    constant: Array  # [K]; ABSENT without constraints


@dataclass(frozen=True)
class SSCAHorizontal(SSCABase, Rows):
    """Algorithms 1 and 2: in every round each client draws `batch_size` rows and uploads the sums of their gradients.

    With all clients present the weights are the paper's N_i/(B N); otherwise they are normalized over those present. A
    client with fewer rows takes all of them.

    `local_steps` = E > 1: the clients receive the surrogates too, and take E steps by themselves before anything is
    sent, each with another minibatch. They *move* on surrogates of corrected functions: the gradient at a client's
    point u is taken to be grad F-bar_k(w_t) + grad f_k(u) - grad f_k(w_t), the last two from one minibatch, and the
    value alike. What they *send*, beside the change of the model, are surrogates that track their uncorrected
    functions f_k(u), by the same recursion; the server averages both. With K functions that need samples a round sends
    K + 1 vectors of the model's size up and as many down, whatever E, where one step sends K up and one down. The first
    round of a stage only initializes the surrogates.
    # differs from the paper: an addition, which it leaves to future work. At w_t every correction vanishes, and
    averaged surrogates track the functions of all: however different the clients' data are, where Algorithm 1 or 2
    rests, this does too. Steps on local surrogates of local functions would drift to a compromise between the clients'
    own solutions. The clients move on what was known a round ago, so it needs smaller steps than the paper's.
    """

    seeds_rows: ClassVar[bool] = True

    @property
    def exchanges(self) -> tuple[ToServer, ...]:
        """One exchange: the server receives weighted sums of minibatch gradients, or of changes and surrogates."""
        template, functions = model_template(self.problem), len(self.functions)
        stacked = map_leaves(lambda leaf: np.empty((functions, *leaf.shape)), template)
        level = np.empty(functions) if self.problem.constraints else ABSENT
        fields = weighted_fields(self.problem, Statistics(stacked, level))
        if self.local_steps == 1:
            fused = self.fused if self.holds("fused", "answer") else None
            return (ToServer("gradients", fields, self.ask, self.answer, self.absorb, fused=fused),)
        local = weighted_fields(self.problem, LocalStepsUpload(template, stacked, level))
        return (ToServer("local-steps", local, self.ask_local, self.answer_local, self.absorb_local, one_by_one=True),)

    @property
    def setup(self) -> tuple[ToServer, ...]:
        """Counts the samples of each function, where any averages over a subset."""
        if not counts_some(self.problem):
            return ()
        return (count_samples(self.problem, self.with_shares),)

    def check(self) -> list[str]:
        """Split, batch size and local steps must fit the data and each other."""
        wrong = super().check() + check_rows(self.problem, self.batch_size)
        wrong += wrong_draw("local_steps", self.local_steps * self.batch_size)
        for key in ("label_holder", "head_client"):
            if getattr(self, key) is not None:
                wrong.append(f"[algorithm] {key} = {getattr(self, key)}: is for data split by columns; leave it out")
        if self.local_steps > 1 and self.recursive:
            wrong.append(
                '[algorithm] variance_reduction = "recursive" has no surrogates to share, which local_steps > 1 needs; '
                "choose one of the two"
            )
        if self.local_steps > 1 and self.margins == "auto":
            wrong.append(
                '[algorithm] margins = "auto" needs the values of the constraints at the model of the round, which '
                "clients with local_steps > 1 do not send; give each [[constraint]] a margin, or set local_steps = 1"
            )
        return wrong

    def start_server(self, now: Round) -> SSCAServer:
        """Step 1: any w_1, and empty surrogates."""
        return self.begin(start_model(self.problem, now))

    def ask(self, server: SSCAServer, now: Round) -> SSCABroadcast:
        """Step 3: w_t."""
        if not self.recursive:
            return SSCABroadcast(server.model, ABSENT, server.shares, ABSENT)
        return SSCABroadcast(server.model, server.previous, server.shares, self.keep(server))

    def answer(
        self, clients: tuple[()], broadcast: SSCABroadcast, block: Block, now: Round
    ) -> tuple[tuple[()], Weighted]:
        """Step 4: the mean gradients over each client's minibatch, weighted by its rows."""
        weight = self.problem.weights[block.clients]

        def sums_of(who: Array, part: Block, rows: int) -> Statistics:
            batch = training_rows(self.problem, part, part.draw(now, "minibatch", rows), now)
            each = beside(batch.y, np.repeat(weight[who, None] / rows, rows, axis=1))
            return self._statistics(broadcast, batch.X, batch.y, each)

        return clients, Weighted(block.joined(self.batch_size, sums_of), weight)

    def fused(self, broadcast: SSCABroadcast, block: Block, now: Round) -> Weighted:
        """The weighted sum of the clients' uploads, from products over many clients' minibatches at once."""

        def sums_of(clients: Block, batch: Batch) -> Statistics:
            rows, batch = batch.y.shape[1], batch.together()
            each = self.problem.weights[clients.clients].repeat(rows)
            each /= rows
            return self._statistics(broadcast, batch.X, batch.y, beside(batch.y, each[None]))

        total = added(sums_of(*pair) for pair in minibatches(self.problem, block, now, self.batch_size))
        return Weighted(map_leaves(lambda leaf: leaf[0], total), self.problem.weights[block.clients].sum())

    def _statistics(self, broadcast: SSCABroadcast, X: Features, y: Array, each: Array) -> Statistics:
        """[n, K, ...] at w_t, less what is to be forgotten of those at w_{t-1} where they are variance-reduced."""

        def at(model: Parameters, each: Array) -> Statistics:
            return statistics(self.problem, self.functions, model, X, y, each, broadcast.shares)

        now = at(broadcast.model, each)
        if not self.recursive or not broadcast.keep:
            return now
        return map_leaves(operator.add, now, at(broadcast.previous, each * -float(broadcast.keep)))

    def absorb(self, server: SSCAServer, total: Weighted, now: Round) -> SSCAServer:
        """Step 5: the surrogates (3), (10), the convex problem, the step (5)."""
        return self.advance(server, total.value, float(total.weight))

    def reveals(self, received: Received) -> Iterator[Revealed]:
        """The mean gradient of the objective; with several local steps nothing, as their models are unknown."""
        if received.answered_by(self.answer):
            gradient = of_statistics(received.answer.value.gradient, weight_of(self.problem, received))
            yield MeanGradient(received.question.model, gradient)

    # --- several local steps ----------------------------------------------------------------------------------------

    def ask_local(self, server: SSCAServer, now: Round) -> LocalStepsBroadcast:
        """w_t and the surrogates, from which every client can solve the convex problem by itself."""
        cost = self.cost(server, self.quadratics(server.surrogate).curvatures) if server.steps else server.slack
        return LocalStepsBroadcast(server.model, server.surrogate, server.shares, server.steps + 1, cost)

    def answer_local(
        self, clients: tuple[()], broadcast: LocalStepsBroadcast, block: Block, now: Round
    ) -> tuple[tuple[()], Weighted]:
        """E steps of the block's only client, weighted by its rows."""
        weight = self.problem.weights[block.clients]
        batch = min(self.batch_size, int(block.counts[0]))
        rows = block.draw(now, "minibatch", self.local_steps * batch).reshape(self.local_steps, 1, batch)
        model, surrogate = self._local(
            broadcast, (training_rows(self.problem, block, at, now, r) for r, at in enumerate(rows))
        )
        change = map_leaves(operator.sub, model, broadcast.model)
        upload = LocalStepsUpload(change, surrogate.linear, surrogate.constant if self.problem.constraints else ABSENT)

        def weighted(leaf: Array) -> Array:
            scaled: Array = leaf * leaf.dtype.type(weight[0])
            return scaled[None]

        return clients, Weighted(map_leaves(weighted, upload), weight)

    def _local(self, broadcast: LocalStepsBroadcast, batches: Iterable[Batch]) -> tuple[Parameters, Surrogate]:
        """The model of one client after its steps, and the surrogates of its own functions."""
        t, anchor, model = int(broadcast.step), broadcast.model, broadcast.model
        rho, gamma = self.rho.at(t), self.gamma.at(t)
        tracked = moving = broadcast.surrogate
        still = not moving.weight  # the surrogates are empty: only track, and stay
        slope, level = (ABSENT, ABSENT) if still else self._at_anchor(moving, anchor)
        for batch in batches:
            here = self._seen(model, batch, broadcast.shares)
            tracked = self.tracked(tracked, rho, here.gradient, here.level, model)
            if still:
                continue
            there = here if model is anchor else self._seen(anchor, batch, broadcast.shares)
            corrected = Statistics(
                map_leaves(lambda g, a, b: g + (a - b), slope, here.gradient, there.gradient),
                level + here.level - there.level if len(level) else ABSENT,
            )
            moving = self.tracked(moving, rho, corrected.gradient, corrected.level, model)
            model = move(moving, solve(moving, self.quadratics(moving), broadcast.cost).factors, gamma, model)
        return model, tracked

    def _at_anchor(self, surrogate: Surrogate, anchor: Parameters) -> tuple[Parameters, Array]:
        """Gradients and values of the surrogates at w_t, without the penalties, which `track` adds."""
        there = float(surrogate.weight)
        curvature = self.tau if self.start == "paper" else self.tau * there
        penalties = [2 * function.penalty for function in self.functions]

        def less(slope: Array, w: Array, counts: bool) -> Array:
            if not counts:
                return slope
            parts = [row - w * w.dtype.type(factor) for row, factor in zip(slope, penalties, strict=True)]
            return namespace(w).stack(parts)

        parts = self.problem.objective.penalized(anchor)
        slope = map_leaves(less, slope_at(surrogate, curvature, anchor), anchor, parts)
        if not self.problem.constraints:
            return slope, ABSENT
        level = level_at(surrogate, curvature, anchor)
        if self.start == "paper":
            level = level - np.array([function.aim for function in self.functions]) * (1 - there)
        return slope, level

    def _seen(self, model: Parameters, batch: Batch, shares: Array) -> Statistics:
        """[K, ...] estimates of the functions from one client's minibatch."""
        each = namespace(batch.y).full(batch.y.shape, 1 / batch.y.shape[1])
        sums = statistics(self.problem, self.functions, model, batch.X, batch.y, each, shares)
        first = map_leaves(lambda leaf: leaf[0], sums)
        level = on_host(first.level) if len(first.level) else ABSENT  # convex problems are solved in memory
        return self.with_server_parts(model, first._replace(level=level), 1.0)

    def absorb_local(self, server: SSCAServer, total: Weighted, now: Round) -> SSCAServer:
        """Averages the models and the surrogates."""
        means: LocalStepsUpload = mean(total)
        t = int(server.steps) + 1
        weight = 1 - (1 - self.rho.at(t)) ** self.local_steps * (1 - server.surrogate.weight)
        constant = means.constant.astype(np.float64) if self.problem.constraints else server.surrogate.constant
        surrogate = Surrogate(constant, means.linear, np.float64(weight))
        return self.after(server, map_leaves(operator.add, server.model, means.change), surrogate)
