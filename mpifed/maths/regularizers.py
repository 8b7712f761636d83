"""Regularizers h: what is added to the objective without being smooth, known by its prox.

The prox of h with step c is argmin over x of h(x) + ||x - u||^2 / (2 c). Papers that write prox_{rho h}(u) =
argmin h(x) + rho/2 ||x - u||^2, as FedPDM does in (13), mean the step c = 1 / rho: the soft threshold of gamma ||x||_1
is then gamma / rho (and not gamma rho).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from mpifed.core.record import Array, bare_leaves, map_leaves, unflat
from mpifed.maths.arrays import square_norms
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Weight


class Regularizer(ABC):
    """h of a model: a frozen dataclass whose fields are the keys of `[regularizer]`, with `value` and `prox`."""

    @abstractmethod
    def value(self, model: Parameters) -> float:
        """h, in float64; infinite where it forbids the model."""

    @abstractmethod
    def prox(self, model: Parameters, step: float) -> Parameters:
        """The minimizer over x of h(x) + ||x - model||^2 / (2 step), in the dtype of the model."""

    def check(self) -> list[str]:
        """Which of its settings are wrong together, one message each, with the name of the table."""
        return []


@dataclass(frozen=True)
class L1(Regularizer):
    """weight * sum of |x|, which makes parameters zero.

    Intercepts are left free unless `biases = true`. Matrices of the head, as a network's second layer, count.
    """

    weight: Weight
    """Factor of the sum of |x|."""
    biases: bool = False
    """Whether intercepts are counted too; a model would then be drawn towards predicting each class equally often."""

    def value(self, model: Parameters) -> float:
        """weight * sum of |x|."""
        return self.weight * sum(float(np.abs(leaf.astype("f8")).sum()) for leaf in _parts(model, self.biases))

    def prox(self, model: Parameters, step: float) -> Parameters:
        """The soft threshold weight * step."""
        return _change(lambda u: _soft(u, self.weight * step), model, self.biases)


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """weight * sum of |x| + square_weight * sum of x^2; biases as in `L1`.

    The squares are those of the objective's `penalty`, and may as well stand there: here they enter by the prox, and
    are no part of the gradients.
    """

    weight: Weight
    """Factor of the sum of |x|."""
    square_weight: Weight
    """Factor of the sum of x^2."""
    biases: bool = False
    """Whether intercepts are counted too; a model would then be drawn towards predicting each class equally often."""

    def value(self, model: Parameters) -> float:
        """weight * sum of |x| + square_weight * sum of x^2."""
        squares = sum(float(np.sum(leaf.astype("f8") ** 2)) for leaf in _parts(model, self.biases))
        return L1(self.weight, self.biases).value(model) + self.square_weight * squares

    def prox(self, model: Parameters, step: float) -> Parameters:
        """The soft threshold weight * step, divided by 1 + 2 square_weight * step."""
        shrink = 1 + 2 * self.square_weight * step
        return _change(lambda u: _soft(u, self.weight * step) / u.dtype.type(shrink), model, self.biases)


@dataclass(frozen=True)
class GroupL1(Regularizer):
    """weight * sqrt(h) * sum over features of the norm of their h weights: a feature is used, or left out altogether.

    A group is a row of the model's `first`, what one feature adds to all h scores. The head belongs to no feature and
    is left free.
    """

    weight: Weight
    """Factor of sqrt(h) * the sum of the norms."""

    def value(self, model: Parameters) -> float:
        """weight * sqrt(h) * sum of norms."""
        return self._factor(model) * float(np.sqrt(square_norms(model.first)).sum())

    def prox(self, model: Parameters, step: float) -> Parameters:
        """Rows are shortened by weight * sqrt(h) * step; those that are no longer than that become zero."""
        threshold, norm = self._factor(model) * step, np.sqrt(square_norms(model.first))
        shorter = 1 - np.divide(threshold, norm, out=np.ones_like(norm), where=norm > threshold)
        return model._replace(first=model.first * shorter[..., None].astype(model.first.dtype))

    def _factor(self, model: Parameters) -> float:
        return self.weight * float(np.sqrt(model.first.shape[-1]))


@dataclass(frozen=True)
class Box(Regularizer):
    """low <= x <= high for all parameters, those of the head too: 0 inside, infinite outside."""

    low: float = -np.inf
    """Lower bound of each parameter."""
    high: float = np.inf
    """Upper bound of each parameter."""

    def value(self, model: Parameters) -> float:
        """0, or infinite."""
        inside = all(np.array_equal(leaf, self._nearest(leaf)) for leaf in _parts(model))
        return 0.0 if inside else np.inf

    def prox(self, model: Parameters, step: float) -> Parameters:
        """The nearest model in the box, whatever the step."""
        return _change(self._nearest, model)

    def _nearest(self, u: Array) -> Array:
        return u.clip(u.dtype.type(self.low), u.dtype.type(self.high))

    def check(self) -> list[str]:
        """There must be a box."""
        came = f"[regularizer] low = {self.low:g}, high = {self.high:g}"
        if not self.low < self.high:
            return [f"{came}: leaves no room for a parameter; low must be below high"]
        if self.low == -np.inf and self.high == np.inf:
            return [f"{came}: limits nothing; give low, high or both"]
        return []


@dataclass(frozen=True)
class L0Ball(Regularizer):
    """At most `nonzeros` parameters of the whole model, head and biases among them, are not zero; else h is infinite.

    The set is not convex: the prox is the nearest model in it, and one of the nearest where absolute values tie.
    """

    nonzeros: Annotated[int, Gt(0), Le(10**15)]
    """Parameters that may be other than zero."""

    def value(self, model: Parameters) -> float:
        """0, or infinite."""
        return 0.0 if sum(int(np.count_nonzero(leaf)) for leaf in _parts(model)) <= self.nonzeros else np.inf

    def prox(self, model: Parameters, step: float) -> Parameters:
        """The largest parameters in absolute value stay, of equal ones the first; whatever the step."""
        flat = np.concatenate([leaf.reshape(-1) for leaf in _parts(model)])
        size = np.abs(flat)
        if self.nonzeros < len(size):
            least = np.partition(size, -self.nonzeros)[-self.nonzeros]
            ties = np.flatnonzero(size == least)
            flat[size < least] = 0
            flat[ties[self.nonzeros - int(np.sum(size > least)) :]] = 0
        projected: Parameters = unflat(flat, model)
        return projected


def _soft(u: Array, threshold: float) -> Array:
    """The soft threshold: u moved towards zero, and not beyond."""
    limit = u.dtype.type(threshold)
    return u - u.clip(-limit, limit)


def _parts(model: Parameters, biases: bool = True) -> Iterator[Array]:
    """The leaves that h is of."""
    yield model.first
    yield from (leaf for leaf in bare_leaves(model.head) if biases or leaf.ndim > 1)


def _change(function: Callable[[Array], Array], model: Parameters, biases: bool = True) -> Parameters:
    """The model with those leaves changed."""
    first = function(model.first)
    return Parameters(first, map_leaves(lambda leaf: function(leaf) if biases or leaf.ndim > 1 else leaf, model.head))


REGULARIZERS: dict[str, type[Regularizer]] = {
    "l1": L1,
    "elastic-net": ElasticNet,
    "group-l1": GroupL1,
    "box": Box,
    "l0-ball": L0Ball,
}
