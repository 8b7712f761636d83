"""The records and arrays of models.

Shapes: n clients, s samples, p features, h scores; leading axes broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mpifed.core.record import Array

# a record of each model's own class, which who holds a model of any class cannot know
Head: TypeAlias = Any


class Parameters(NamedTuple):
    """A model: the weights of the features, and the head, the parameters that turn scores into predictions.

    Where scores are not linear in the features, all parameters are in the head.
    """

    first: Array  # [p, h]; ABSENT where scores are not linear in the features
    head: Head  # all other parameters; () where there are none


class Slope(NamedTuple):
    """Derivatives of the samples' weighted sum of losses."""

    head: Head  # with respect to the head: its shapes, each with the leading axes
    scores: Array  # [..., s, h] with respect to each sample's scores


# from the slope at the scores of a pass through a model to the gradient, leaves [..., *shape]
Backward: TypeAlias = Callable[[Slope], Parameters]
