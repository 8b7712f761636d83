"""Step sizes that decay."""

from __future__ import annotations

from typing import NamedTuple

from mpifed.maths.ranges import Decay, Size, Weight


class StepSize(NamedTuple):
    """scale / t^decay for t = 1, 2, ...; in a job `[scale, decay]`."""

    scale: Size
    decay: Decay = 0.0

    def at(self, t: int) -> float:
        """The step size of step t, counted from 1."""
        return float(self.scale / float(t) ** self.decay)


class ShiftedStepSize(NamedTuple):
    """scale / (shift + t^decay), t = 1, 2, ...; in a job `[scale, decay, shift]`: a / (b + sqrt(t)) is [a, 0.5, b]."""

    scale: Size
    decay: Decay = 0.0
    shift: Weight = 0.0

    def at(self, t: int) -> float:
        """The step size of step t, counted from 1."""
        return float(self.scale / (self.shift + float(t) ** self.decay))


def unmet(rho: StepSize, gamma: StepSize) -> list[str]:
    """Which conditions of SSCA's convergence theorems these step sizes do not fulfil: (4), (6), the tracking lemma's.

    # differs from the paper: (6) is printed with gamma = 0 for gamma > 0; and the lemma on which the proofs rest
    (Ruszczynski 1980) needs sum rho^2 < infinity too.
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
