"""Step sizes that decay."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt


class StepSize(NamedTuple):
    """scale / t^decay for t = 1, 2, ...; in a job `[scale, decay]`."""

    scale: Annotated[float, Gt(0)]
    decay: Annotated[float, Ge(0)] = 0.0

    def at(self, t: int) -> float:
        """The step size of step t, counted from 1."""
        return float(self.scale / float(t) ** self.decay)
