"""Terms and algorithms of one's own for the laws of certificates, named in jobs as "own_terms:..."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.algorithms.ssca_vertical import SSCAVertical
from mpifed.core.record import Array, Record, map_leaves
from mpifed.core.round import Round
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


def _walked(server: Any) -> Any:
    """A model that does not depend on the functions: they can be compared where it is."""
    model = map_leaves(lambda leaf: leaf * 0.7 + 0.3 * np.cos(np.arange(leaf.size)).reshape(leaf.shape), server.model)
    return server._replace(model=model, steps=server.steps + 1)


class WalkOverRows(SSCAHorizontal):
    """The same path whatever the problem."""

    def absorb(self, server: Any, total: Any, now: Round) -> Any:
        return _walked(server)


class WalkOverColumns(SSCAVertical):
    """The same path whatever the problem."""

    def absorb(self, server: Any, total: Any, now: Round) -> Any:
        return _walked(server)
