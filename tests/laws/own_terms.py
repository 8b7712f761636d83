"""Terms and algorithms of one's own for the laws of certificates, named in jobs as "own_terms:..."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mpifed.core.record import Array, Record
from mpifed.maths.objectives import Objective, Slope
from mpifed.maths.terms import Sampled

AFFINE = "own_terms:Affine"


@dataclass(frozen=True)
class Affine(Sampled):
    """factor * (loss - offset): the loss in other units, which may be negative."""

    factor: float = 1.0
    offset: float = 0.0
    convex: ClassVar[bool] = True

    def loss(self, objective: Objective, head: Record, scores: Array, y: Array) -> Array:
        return self.factor * (objective.loss(head, scores, y) - self.offset)

    def slope(self, objective: Objective, head: Record, scores: Array, y: Array, weights: Array) -> Slope:
        found = objective.slope(head, scores, y, self.factor * weights)
        return found._replace(loss=self.factor * (found.loss - self.offset))


def affine_of_loss(table: Mapping[str, Any]) -> Any:
    """The same for `jobs.constraints.functions`: values and derivative by the losses."""
    factor, offset = table.get("factor", 1.0), table.get("offset", 0.0)
    return lambda loss: factor * (loss - offset), lambda loss: np.full_like(loss, factor)
