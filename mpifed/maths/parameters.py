"""The records and arrays of models.

Shapes: n clients, s samples, p features, h scores; leading axes broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeAlias

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


class NamedArrays(tuple[Any, ...]):  # of arrays, or of what `map_leaves` puts in their place
    """The base of records whose fields need not be identifiers, such as `conv1.weight`: see `named_arrays`."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *values: object) -> NamedArrays:
        return super().__new__(cls, values)

    def __reduce__(self) -> tuple[Callable[..., NamedArrays], tuple[object, ...]]:
        return _named, (self._fields, *self)


@cache
def named_arrays(fields: tuple[str, ...]) -> type[NamedArrays]:
    """The class of records with these fields."""
    return type("NamedArrays", (NamedArrays,), {"_fields": fields})


def _named(fields: tuple[str, ...], *values: object) -> NamedArrays:
    return named_arrays(fields)(*values)
