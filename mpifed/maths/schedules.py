"""Schedules of step sizes and learning rates over the rounds t = 1, 2, ..."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

from annotated_types import Gt, Le

from mpifed.hyperparameters import Count, Decay, MadeByKeywords, Size, Weight


class StepSize(NamedTuple):
    """scale / t^decay, as SSCA's papers write rho and gamma; in a job `[scale, decay]`."""

    scale: Annotated[float, Gt(0), Le(1)]
    """The step size of round 1, at most 1: it is the weight of a mean."""
    decay: Decay = 0.0
    """Exponent of the round's number t; 0 is a constant step size."""

    def at(self, t: int) -> float:
        """The step size of step t, counted from 1."""
        return float(self.scale / float(t) ** self.decay)


@dataclass(frozen=True)
class Schedule(MadeByKeywords):
    """Learning rates by rounds; a subclass is a frozen dataclass of the keys of a table."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "strict": True}
    warmup: Count | None = field(default=None, kw_only=True)
    """Rounds of a linear warm-up, of which round t has t / warmup of the rate; none where absent."""

    def at(self, t: int) -> float:
        """The learning rate of round t = 1, 2, ..."""
        return self.without_warmup(t) * min(1.0, t / (self.warmup or 1))

    def without_warmup(self, t: int) -> float:
        """The same without warm-up."""
        raise NotImplementedError


@dataclass(frozen=True)
class PowerDecay(Schedule):
    """initial / (offset + t^exponent)."""

    initial: Size
    """The numerator."""
    exponent: Decay = 0.5
    """Of the round's number t."""
    offset: Weight = 0.0
    """Added to t^exponent."""
    name: Literal["power"] = "power"
    """Says that it is this schedule; may be left out."""

    def without_warmup(self, t: int) -> float:
        return float(self.initial / (self.offset + float(t) ** self.exponent))


@dataclass(frozen=True)
class StepDecay(Schedule):
    """initial, multiplied by `factor` after every `every` rounds."""

    initial: Size
    """In the first rounds."""
    factor: Annotated[float, Gt(0), Le(1)]
    """By which it is multiplied."""
    every: Count
    """Rounds between two changes."""
    name: Literal["step"] = "step"
    """Says that it is this schedule; may be left out."""

    def without_warmup(self, t: int) -> float:
        return float(self.initial * self.factor ** ((t - 1) // self.every))


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """From initial to final along half a cosine in `rounds` rounds (SGDR without restarts, arXiv:1608.03983)."""

    initial: Size
    """In round 1."""
    rounds: Count
    """Until `final` is reached, where it stays."""
    final: Weight = 0.0
    """In the last of them."""
    name: Literal["cosine"] = "cosine"
    """Says that it is this schedule; may be left out."""

    def without_warmup(self, t: int) -> float:
        """`final` from round `rounds` on, also where that is the first."""
        done = (t - 1) / (self.rounds - 1) if t < self.rounds else 1.0
        return float(self.final + (self.initial - self.final) * (1 + math.cos(math.pi * done)) / 2)


LocalSchedule: TypeAlias = PowerDecay | StepDecay | CosineDecay  # of the local steps of a round
LearningRate: TypeAlias = Size | LocalSchedule
# by the value of `name` in a job
SCHEDULES: dict[str, type] = {"power": PowerDecay, "step": StepDecay, "cosine": CosineDecay}


def unmet(rho: StepSize, gamma: StepSize) -> list[str]:
    """The conditions of SSCA's convergence theorems that these step sizes violate: (4), (6), the tracking lemma's.

    # differs from the paper: (6) is printed with gamma = 0 for gamma > 0; and the lemma behind the proofs (Ruszczynski
    1980) needs sum rho^2 < infinity too.
    """
    a, b = rho.decay, gamma.decay
    conditions = {
        "rho -> 0": a > 0,
        "sum rho = infinity": a <= 1,
        "sum rho^2 < infinity": a > 0.5,
        "gamma -> 0": b > 0,
        "sum gamma = infinity": b <= 1,
        "sum gamma^2 < infinity": b > 0.5,
        "gamma / rho -> 0": b > a,
    }
    return [condition for condition, holds in conditions.items() if not holds]
