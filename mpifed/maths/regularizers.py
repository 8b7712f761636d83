"""Regularizers h: nonsmooth functions added to the objective, given by their proximal operators.

The prox of h with step c is argmin over x of h(x) + ||x - u||^2 / (2 c). Papers that write prox_{rho h}(u) =
argmin h(x) + rho/2 ||x - u||^2, as FedPDM does in (13), mean the step c = 1 / rho: the soft threshold of gamma ||x||_1
is then gamma / rho (and not gamma rho).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mpifed.core.record import Array, bare_leaves, map_leaves
from mpifed.hyperparameters import MadeByKeywords, Weight
from mpifed.maths.arrays import square_norms
from mpifed.maths.objectives import Parameters


class Regularizer(MadeByKeywords, ABC):
    """A function h of the model: a frozen dataclass with `value` and `prox`; its fields are keys of `[regularizer]`."""

    of_features: ClassVar[bool] = False  # whether it needs the weights of features, which not all models have

    @abstractmethod
    def value(self, model: Parameters) -> float:
        """h(model) in float64; infinite where the model is not allowed."""

    @abstractmethod
    def prox(self, model: Parameters, step: float) -> Parameters:
        """The minimizer over x of h(x) + ||x - model||^2 / (2 step), in the dtype of the model."""

    def check(self) -> list[str]:
        """Messages on settings that contradict each other, with the name of the table."""
        return []


@dataclass(frozen=True)
class L1(Regularizer):
    """weight * sum of |x|, which sets parameters to zero; its proximal operator is soft thresholding.

    Intercepts, and all vectors of a network, are not included unless `biases = true`. Matrices and kernels are. With
    the model's `l2` it is the elastic net.
    """

    weight: Weight
    """Factor of the sum of |x|."""
    biases: bool = False
    """Whether intercepts are counted too; a model would then be drawn towards predicting each class equally often."""

    def value(self, model: Parameters) -> float:
        return self.weight * sum(float(np.abs(leaf.astype("f8")).sum()) for leaf in _leaves(model, self.biases))

    def prox(self, model: Parameters, step: float) -> Parameters:
        def soft(u: Array) -> Array:
            limit = u.dtype.type(self.weight * step)
            nearer: Array = u - u.clip(-limit, limit)
            return nearer

        return _change(soft, model, self.biases)


@dataclass(frozen=True)
class GroupL1(Regularizer):
    """weight * sqrt(h) * sum over features of the norm of their h weights, which selects features.

    A group is a row of the model's `first`: a feature's weights in all h scores. The head belongs to no feature and is
    not included.
    """

    of_features: ClassVar[bool] = True
    weight: Weight
    """Factor of sqrt(h) * the sum of the norms."""

    def value(self, model: Parameters) -> float:
        return self._factor(model) * float(np.sqrt(square_norms(model.first)).sum())

    def prox(self, model: Parameters, step: float) -> Parameters:
        """Rows shortened by weight * sqrt(h) * step; shorter rows become zero."""
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
        inside = all(np.array_equal(leaf, self._nearest(leaf)) for leaf in _leaves(model))
        return 0.0 if inside else np.inf

    def prox(self, model: Parameters, step: float) -> Parameters:
        """The nearest model in the box, for any step."""
        return _change(self._nearest, model)

    def _nearest(self, u: Array) -> Array:
        return u.clip(u.dtype.type(self.low), u.dtype.type(self.high))

    def check(self) -> list[str]:
        came = f"[regularizer] low = {self.low:g}, high = {self.high:g}"
        if not self.low < self.high:
            return [f"{came}: no parameter can meet both; low must be below high"]
        if self.low == -np.inf and self.high == np.inf:
            return [f"{came}: limits nothing; give low, high or both"]
        return []


def _leaves(model: Parameters, biases: bool = True) -> Iterator[Array]:
    """The leaves that h depends on."""
    yield from bare_leaves(model.first)
    yield from (leaf for leaf in bare_leaves(model.head) if biases or leaf.ndim > 1)


def _change(function: Callable[[Array], Array], model: Parameters, biases: bool = True) -> Parameters:
    """The model with `function` applied to these leaves."""
    first = map_leaves(function, model.first)
    return Parameters(first, map_leaves(lambda leaf: function(leaf) if biases or leaf.ndim > 1 else leaf, model.head))


REGULARIZERS: dict[str, type[Regularizer]] = {
    "l1": L1,
    "group-l1": GroupL1,
    "box": Box,
}
