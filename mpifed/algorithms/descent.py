"""What a round's local steps start from, and what each of them does; see `mpifed.algorithms.local`."""

from __future__ import annotations

from typing import NamedTuple

from mpifed.core.record import Array, beside, map_leaves
from mpifed.maths.objectives import Parameters


class Descent(NamedTuple):
    """A round's local steps x <- keep x + push - step (gradient + concave), and where they begin and end."""

    model: Parameters  # common to all, leaves without the leading axis
    step: float
    keep: Parameters  # a number for each leaf, see `LocalSteps.keeps`
    push: Parameters | None = None  # leaves [n, ...], or common to all like those of a model
    starts: Parameters | None = None  # where each client begins, leaves [n, ...]; None: all at `model`
    tolerance: float = 0.0  # a client stops after a step whose direction has a squared norm of at most this

    def only(self, who: Array) -> Descent:
        """The same for the clients at positions `who` of the block."""

        def of_each(leaf: Array, common: Array) -> Array:
            return leaf if leaf.ndim == common.ndim or len(who) == len(leaf) else leaf[beside(leaf, who)]

        push, starts = (
            None if record is None else map_leaves(of_each, record, self.model) for record in (self.push, self.starts)
        )
        return self._replace(push=push, starts=starts)
