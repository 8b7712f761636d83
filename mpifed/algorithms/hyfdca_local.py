"""The state and arithmetic of HyFDCA's clients, see `mpifed.algorithms.hyfdca`: dual steps on their own samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from mpifed.algorithms.hybrid import (
    bend,
    counted,
    lambda_n,
    largest_loss,
    once_a_group,
    own_part,
    padded,
    partial_scores,
    unpadded,
)
from mpifed.algorithms.hyfdca_rules import (
    OWN_NORMS,
    TOGETHER,
    Along,
    Rule,
    along_direction,
    drawn_among,
    local_step,
    stable_samples,
)
from mpifed.core.block import Block, ClientData
from mpifed.core.exchange import Problem
from mpifed.core.record import ABSENT, Array, beside, by_columns, in_memory, index, map_leaves, namespace
from mpifed.core.round import Round


@by_columns("w")
class HyFDCABroadcast(NamedTuple):
    """Broadcast of the first exchange of a round, as far as the rule needs it."""

    w: Array  # [p] to each client its own columns
    sigma: np.float64
    number: np.float64  # line-search: how much of the last direction to go; accelerated: beta
    gamma: np.float64


@in_memory("sigma_gamma")
class HyFDCAClients(NamedTuple):
    """State of the clients; arrays over a client's rows are padded with zeros to the width S of the block."""

    alpha: Array  # [n, S] of its samples
    scores: Array  # [n, S] x.w, as last received; () where a client has whole rows
    norms: Array  # [n, S] ||x||^2; () where the rule needs none
    sent: Array  # [n, S] the sum of the steps it has sent; () where all clients take part
    other: Array  # [n, S] line-search: the direction; accelerated: alpha of the round before; else ()
    sigma_gamma: Array  # [n, 2] float64 sigma and gamma, of the round's broadcast
    losses: Array  # [n] float64 the sum of the losses at the w of the round; () unless they decide which w is returned
    turned: Array  # [n] accelerated: the sum by which is judged whether to begin anew; else ()


@dataclass(frozen=True)
class Local:
    """A client's part of HyFDCA, with its settings; `keeps_steps`, `losses_too`: whether steps and losses are kept."""

    problem: Problem
    rule: Rule
    inner: int | None
    draws: Literal["rows", "client"]
    keeps_steps: bool
    losses_too: bool

    def start(self, block: Block) -> HyFDCAClients:
        """alpha = 0, which is feasible for every loss."""
        n = len(block.clients)

        def zeros(needed: bool = True) -> Array:
            return np.zeros((n, int(block.counts.max())), block.dtype) if needed else ABSENT

        together = self.rule in TOGETHER
        return HyFDCAClients(
            alpha=zeros(),
            scores=zeros(self.problem.split != "rows"),
            norms=zeros(self.rule in OWN_NORMS),
            sent=zeros(self.keeps_steps),
            other=zeros(together),
            sigma_gamma=np.zeros((n, 2)),
            losses=np.zeros(n) if self.losses_too else ABSENT,
            turned=np.zeros(n) if self.rule == "accelerated" else ABSENT,
        )

    def begun(self, clients: HyFDCAClients, broadcast: HyFDCABroadcast) -> HyFDCAClients:
        """The states at the beginning of a round: moved by the last direction's best part, or extrapolated."""
        n, alpha, number = len(clients.alpha), clients.alpha, clients.alpha.dtype.type
        clients = clients._replace(sigma_gamma=np.tile([broadcast.sigma, broadcast.gamma], (n, 1)))
        if self.rule == "line-search":
            moved = number(broadcast.number) * clients.other
            moved += alpha
            return clients._replace(alpha=moved)
        if self.rule == "accelerated":
            return clients._replace(alpha=alpha + number(broadcast.number) * (alpha - clients.other), other=alpha)
        return clients

    def scores(self, broadcast: HyFDCABroadcast, block: Block) -> list[Array]:
        """n arrays [s_i] x.w in the client's columns."""
        return [partial_scores(shard, own_part(broadcast.w, shard), block.dtype) for shard in block.shards]

    def losses(self, scores: Sequence[Array], block: Block) -> Array:
        """[n] sums of the losses at these scores, each sample counted once; clipped to what can be uploaded."""
        sums, most = [], largest_loss(self.problem) * self.problem.target_scale**2
        for m, shard in zip(scores, block.shards, strict=True):
            once = index(m, counted(self.problem, shard.client))
            losses = self.problem.objective.loss((), m[once][:, None], shard.y[once])
            sums.append(losses.sum(dtype=np.float64).clip(None, most))
        return block.xp.stack(sums)

    @property
    def alike(self) -> bool:
        """Whether all holders of a sample have the same state of it and compute the same step."""
        return not self.keeps_steps and self.draws == "rows"

    def steps(
        self, clients: HyFDCAClients, scores: Sequence[Array], block: Block, now: Round, shared: bool = False
    ) -> list[Array]:
        """n arrays [s_i] of dual steps; `shared`: divided by the number of the sample's holders."""

        def step(i: int) -> Array:
            steps = self._step(clients, i, scores[i], block.shards[i], now)
            if shared:
                share = _share(self.problem, block.shards[i].client)
                steps *= beside(steps, share) if share.ndim else share
            return steps

        return once_a_group(block, self.alike, step)

    def _step(self, clients: HyFDCAClients, i: int, m: Array, shard: ClientData, now: Round) -> Array:
        """The dual step of the i-th client of a block, for x.w = m [s_i]."""
        dual, (sigma, gamma) = self.problem.dual, clients.sigma_gamma[i].tolist()
        alpha, y = clients.alpha[i, : shard.samples], shard.y
        norms = clients.norms[i, : shard.samples] if len(clients.norms) else None
        at = self._drawn(shard, sigma, now)
        if at is None:
            return local_step(dual, self.rule, alpha, m, y, self._curvature(norms, sigma), gamma)
        steps, at = namespace(alpha).zeros_like(alpha), beside(alpha, at)
        curvature = self._curvature(None if norms is None else norms[at], sigma)
        steps[at] = local_step(dual, self.rule, alpha[at], m[at], y[at], curvature, gamma)
        return steps

    def _curvature(self, norms: Array | None, sigma: float) -> Array | float:
        if norms is None:
            return sigma / lambda_n(self.problem)
        factor = 1 / lambda_n(self.problem) * (self.problem.samples if self.rule == "theory" else 1)
        curvature: Array = norms * norms.dtype.type(factor)
        return curvature

    def _drawn(self, shard: ClientData, sigma: float, now: Round) -> Array | None:
        """D: positions of the samples that move in this round; None: all of them."""
        count, problem = self.count(sigma), self.problem
        if count is None or count >= problem.samples:
            return None
        if self.draws == "rows":
            return drawn_among(now, shard.rows, problem.samples, count)
        draws = self.inner or max(1, round(count * shard.samples / int(problem.counts.sum())))
        drawn: Array = now.draw("rows", np.array([shard.client]), np.array([shard.samples]), draws)[0]
        return drawn

    def count(self, sigma: float) -> int | None:
        """How many distinct samples move in a round, over all clients; None: all of them."""
        if self.inner is not None:
            return max(1, round(self.inner * self.problem.samples / float(self.problem.counts.mean())))
        if self.rule != "paper":
            return None
        return stable_samples(lambda_n(self.problem), self.problem.samples, sigma, bend(self.problem))

    def moved(self, clients: HyFDCAClients, steps: Sequence[Array], block: Block) -> HyFDCAClients:
        """alpha after the steps of all holders, projected back to the domain, which rounding may leave."""
        dual, width = self.problem.dual, clients.alpha.shape[1]
        before = unpadded(clients.alpha, block)
        alpha = once_a_group(block, self.alike, lambda i: dual.feasible(before[i] + steps[i], block.shards[i].y))
        if self.rule == "line-search":
            return clients._replace(other=padded((new - old for new, old in zip(alpha, before, strict=True)), width))
        if self.rule == "accelerated":
            clients = clients._replace(turned=self._turned(clients, before, alpha, block))
        return clients._replace(alpha=padded(alpha, width))

    def _turned(self, clients: HyFDCAClients, start: list[Array], end: list[Array], block: Block) -> Array:
        """[n] (extrapolated - new).(new - old), each sample counted once; positive where the step turns back."""
        sums = []
        for i, (shard, old) in enumerate(zip(block.shards, unpadded(clients.other, block), strict=True)):
            each = (start[i] - end[i]) * (end[i] - old)
            sums.append(each[index(each, counted(self.problem, shard.client))].sum(dtype=np.float64))
        return namespace(clients.alpha).stack(sums)

    def along(self, clients: HyFDCAClients, block: Block) -> Along:
        """The conjugates along the direction."""
        sums = []
        for i, shard in enumerate(block.shards):
            once, rows = index(clients.alpha, counted(self.problem, shard.client)), slice(0, shard.samples)
            alpha, direction = clients.alpha[i, rows][once], clients.other[i, rows][once]
            sums.append(along_direction(self.problem.dual, alpha, direction, shard.y[once]))
        return map_leaves(lambda *parts: block.xp.stack(parts), *sums)


@lru_cache(maxsize=1024)
def _share(problem: Problem, client: int) -> Array:
    """[s_i], or [] if all are equal: 1 / the number of holders of a client's samples."""
    rows = problem.rows
    share: Array = (1 / rows.holders[rows.of(client)]).astype(problem.dtype)
    return share[0] if (share == share[0]).all() else share
