"""Terms and algorithms of one's own for the laws of certificates, named in jobs as "own_terms:..."."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mpifed.core.record import Array
from mpifed.maths.terms import OfLoss

AFFINE = "own_terms:Affine"


@dataclass(frozen=True)
class Affine(OfLoss):
    """factor * (loss - offset): the loss in other units, which may be negative."""

    factor: float = 1.0
    offset: float = 0.0
    convex: ClassVar[bool] = True

    def phi(self, loss: Array) -> Array:
        return self.factor * (loss - self.offset)

    def phi_slope(self, loss: Array) -> Array:
        return np.full_like(loss, self.factor)


def affine_of_loss(table: Mapping[str, Any]) -> Any:
    """The same for `definitions`: values and derivative by the losses."""
    factor, offset = table.get("factor", 1.0), table.get("offset", 0.0)
    return lambda loss: factor * (loss - offset), lambda loss: np.full_like(loss, factor)
