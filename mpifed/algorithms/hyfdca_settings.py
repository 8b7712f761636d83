"""HyFDCA's settings, and their checks against each other and the data, see `mpifed.algorithms.hyfdca`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from mpifed.algorithms.hybrid import check_duals
from mpifed.algorithms.hybrid_measures import Grid
from mpifed.algorithms.hyfdca_local import Local
from mpifed.algorithms.hyfdca_rules import OWN_NORMS, TOGETHER, Rule
from mpifed.maths.ranges import Count, Size
from mpifed.maths.schedules import StepSize


@dataclass(frozen=True)
class HyFDCASettings(Grid):
    """The keys of `[algorithm]`, and what follows from them alone."""

    default_security: ClassVar[str] = "encrypted"
    why_everybody: ClassVar[str] = "its sums are of all of them"
    why_no_gap: ClassVar[str] = (
        'rule "paper" leaves it large while the model is good already; take rule = "damped", "line-search" or '
        '"accelerated"'
    )
    rule: Rule = "line-search"
    """How local dual steps are chosen: paper, theory, damped, line-search or accelerated; the last two need all
    clients."""
    inner: Count | None = None
    """Samples that a client draws in a round, on average; where absent all of them, with rule paper as many as are
    stable for rows of norm 1."""
    sigma: Size | None = None
    """Curvature that damped and accelerated steps assume, and paper without `inner`; where absent from a power
    iteration."""
    gamma: StepSize | None = None
    """Step size of the rules paper and theory, scale / t^decay, at most 1; 1 where absent."""
    draws: Literal["rows", "client"] = "rows"
    """rows: the samples of a round are drawn once, the same for all who hold them; client: each client draws its own,
    as in the paper."""
    primal: Literal["clear", "sealed"] = "sealed"
    """X'alpha travels sealed, as `[aggregation] security` says, or in the clear, as in the paper."""
    returns: Literal["best", "mean", "last"] | None = None
    """Which w is the model: best: of least objective, needs all clients; mean: of all rounds, weighted by t^8; last, as
    in the paper. Where absent, best if all take part, else mean."""

    @property
    def partial_participation(self) -> bool:
        """Whether not all clients take part in every round."""
        return self.problem.clients_per_round not in (None, self.problem.clients)

    @property
    def needs_everybody(self) -> bool:
        """All clients must participate, unless the job says otherwise and the rule allows it."""
        return not self.partial_participation or self.rule in TOGETHER

    @property
    def certifies_gap(self) -> bool:
        """P - D is a bound with every rule, but stays large with rule "paper", which moves few samples in a round."""
        return self.rule != "paper"

    @property
    def model_is(self) -> str:
        return self.returns or ("mean" if self.partial_participation else "best")

    @cached_property
    def local(self) -> Local:
        keeps_steps, losses = self.partial_participation and not self.whole, self.model_is == "best"
        return Local(self.problem, self.rule, self.inner, self.draws, keeps_steps, losses)

    @property
    def whole(self) -> bool:
        """Whether every client holds whole rows, disjoint from those of others."""
        return self.problem.split == "rows"

    @property
    def sealed(self) -> bool:
        """Whether X'alpha travels as `[aggregation] security` says."""
        return self.primal == "sealed"

    @property
    def needs_sigma(self) -> bool:
        """Whether lambda_max(XX') determines step sizes."""
        return self.rule not in OWN_NORMS or (self.rule == "paper" and self.inner is None)

    def check(self) -> list[str]:
        return check_duals(self.problem) or list(self._wrong())

    def warnings(self) -> list[str]:
        """What sealed sums do not hide."""
        if self.rule != "paper" or not self.sealed:
            return []
        return [
            '[algorithm] rule = "paper" moves few rows in a round, on small data one: then w moves along that row, and '
            'who receives w has it up to its length, in every channel; `mpifed audit` looks for it ("moved-row"), and '
            'rule = "damped" moves all rows'
        ]

    def _wrong(self) -> Iterator[str]:
        """Errors of the settings, one message each."""
        counts = self.problem.counts
        smallest = int(np.argmin(counts))
        if self.inner is not None and self.rule in TOGETHER:
            yield f'[algorithm] inner = {self.inner}: rule "{self.rule}" moves all samples; leave it out'
        elif self.inner is not None and self.inner > counts[smallest]:
            yield (
                f"[algorithm] inner = {self.inner}: the smallest shard (client {smallest}) has {counts[smallest]} "
                "samples; lower inner"
            )
        if self.gamma is not None and self.rule not in ("paper", "theory"):
            yield f'[algorithm] gamma: rule "{self.rule}" has no step size but its own; leave it out'
        elif self.gamma is not None and self.gamma.at(1) > 1:
            yield f"[algorithm] gamma = {self.gamma.scale:g}: step sizes above 1 leave the domain; lower it"
        if self.sigma is not None and not self.needs_sigma:
            yield f'[algorithm] sigma = {self.sigma:g}: rule "{self.rule}" does not use it; leave it out'
        if self.returns == "best" and self.partial_participation:
            yield (
                '[algorithm] returns = "best": with absent clients the loss at a w is unknown; take "mean" or "last", '
                "or let all clients take part"
            )
        if self.draws == "client" and self.local.count(1.0) is None:
            yield f'[algorithm] draws = "client": rule "{self.rule}" draws nothing; leave it out, or give inner'
