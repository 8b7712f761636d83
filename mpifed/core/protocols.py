"""The records and arrays of models, and what dual methods need of losses.

Shapes: n clients, s samples, p features, h scores; leading axes broadcast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from mpifed.core.record import Array

# a record of each model's own class, which who holds a model of any class cannot know
Head: TypeAlias = Any


class CsrRows(Protocol):
    """A CSR matrix [s, p] of SciPy."""

    data: Array
    indices: Array
    indptr: Array

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...  # of any kind of number

    @property
    def T(self) -> CsrRows: ...

    def __getitem__(self, at: slice | Array | tuple[slice, Array]) -> CsrRows: ...

    def __matmul__(self, weights: Array) -> Array: ...

    def toarray(self) -> Array: ...


# [b, p] rows of a shard, dense or CSR as its `sparse` says, which mypy cannot follow
Piece: TypeAlias = Any
Features: TypeAlias = "Array | tuple[CsrRows, ...]"  # [..., s, p], or n CSR matrices [s, p]


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


class Dual(Protocol):
    """The dual of a loss. Models that dual methods can train have it as their attribute `dual`."""

    quadratic: ClassVar[bool]  # whether l* is a quadratic function on its domain, so that it has `coefficients`

    def conjugate(self, alpha: Array, y: Array) -> Array:
        """[..., s] l*(-alpha), infinite outside its domain."""

    def feasible(self, alpha: Array, y: Array) -> Array:
        """[..., s] the nearest point of the domain of l*(-alpha)."""

    def toward(self, scores: Array, y: Array) -> Array:
        """[..., s] u with -u a subgradient of the loss at the scores: the alpha that is optimal for them."""

    def step(self, alpha: Array, scores: Array, y: Array, curvature: Array | float) -> Array:
        """[..., s] the delta that maximizes -l*(-(alpha + delta)) - m delta - curvature / 2 delta^2.

        `curvature` >= 0 is [..., s], or a scalar. `alpha` must be feasible; alpha + delta is then feasible too, also
        after rounding. Where the curvature is 0, as for a row of zeros, m is 0 as well.
        """

    def single_step(self, alpha: float, score: float, y: float, curvature: float) -> float:
        """`step` for a single sample, in Python floats: 30 times as fast as with arrays of length 1."""

    def coefficients(self, alpha: Array, delta: Array, y: Array) -> tuple[Array, Array]:
        """(linear [...], quadratic [...]) float64: the dual loss along delta, if it is `quadratic`.

        The sum over the last axis of -l*(-(alpha + s delta)) is a constant + s linear - s^2 / 2 quadratic, for all s at
        which alpha + s delta is feasible.
        """
