"""Objectives, terms and regularizers as a user may write them: right ones, and such as are wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpifed.core.record import map_leaves
from mpifed.maths import objectives, regularizers
from mpifed.maths.losses import CrossEntropy, SampleLoss
from mpifed.maths.objectives import Layer, Linear, LinearScores, Parameters, Slope
from mpifed.maths.terms import OfOutputs

# --- right ones ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MLP(objectives.MLP):
    """As mpifed's, but the user's."""


@dataclass(frozen=True)
class Softmax(objectives.Softmax):
    """As mpifed's, but the user's."""


@dataclass(frozen=True)
class InSingle(objectives.Softmax):
    """Computes in float32, whatever it is given."""

    def loss(self, head: Any, scores: Any, y: Any) -> Any:
        return super().loss(_single(head), scores.astype("f4"), y)

    def slope(self, head: Any, scores: Any, y: Any, weights: Any) -> Slope:
        found = super().slope(_single(head), scores.astype("f4"), y, weights)
        return map_leaves(lambda leaf: leaf.astype(scores.dtype), found)


def _single(head: Any) -> Any:
    return map_leaves(lambda leaf: leaf.astype("f4"), head)


class Distance(SampleLoss):
    """|z - y|, with a kink."""

    classifies: ClassVar[bool] = False
    convex: ClassVar[bool] = True

    def value(self, z: Any, y: Any) -> Any:
        return np.abs(z[..., 0] - y)

    def slope(self, z: Any, y: Any) -> Any:
        return np.sign(z - y[..., None])


@dataclass(frozen=True)
class Absolute(Linear):
    sample_loss = Distance()
    l2: float = 0.0


class Growth(Distance):
    """exp(z) - y z, which may be below zero, and explodes."""

    nonnegative: ClassVar[bool] = False

    def value(self, z: Any, y: Any) -> Any:
        return np.exp(z[..., 0]) - y * z[..., 0]

    def slope(self, z: Any, y: Any) -> Any:
        return np.exp(z) - y[..., None]


@dataclass(frozen=True)
class Exponential(Absolute):
    sample_loss = Growth()


@dataclass(frozen=True)
class Deep(LinearScores):
    """Two hidden layers of tanh, and intercepts."""

    sample_loss = CrossEntropy()

    def start(self, features: int, outputs: int, rng: Any, dtype: str) -> Parameters:
        sizes = (features, 6), (6, 5), (5, outputs)
        first, *further = (rng.standard_normal(size).astype(dtype) / 2 for size in sizes)
        return Parameters(first, DeepHead(*further, *(np.zeros(size[1], dtype) for size in sizes)))

    def layers(self, head: Any, scores: Any) -> Any:
        biases = [bias[..., None, :] for bias in head[2:]]
        one = np.tanh(scores + biases[0])
        two = np.tanh(one @ head.second + biases[1])

        def backward(slopes: Any) -> Any:
            yield Layer(two, slopes)
            down = (slopes @ head.third.swapaxes(-1, -2)) * (1 - two**2)
            yield Layer(one, down)
            yield Layer((), (down @ head.second.swapaxes(-1, -2)) * (1 - one**2))

        return two @ head.third + biases[2], backward


class DeepHead(NamedTuple):
    second: Any
    third: Any
    bias_1: Any
    bias_2: Any
    bias_3: Any


@dataclass(frozen=True)
class Ball(regularizers.Regularizer):
    """||w|| <= 1, told without any room for rounding."""

    def value(self, model: Parameters) -> float:
        return 0.0 if objectives.squares(model) <= 1.0 else np.inf

    def prox(self, model: Parameters, step: float) -> Parameters:
        longer = max(1.0, float(np.sqrt(objectives.squares(model))))
        return map_leaves(lambda leaf: leaf / leaf.dtype.type(longer), model)


@dataclass(frozen=True)
class Picture(regularizers.Regularizer):
    """Neighbouring features of an 8 x 8 picture are alike: the sum of squared differences, by its own 64 features."""

    def value(self, model: Parameters) -> float:
        rows = model.first.reshape(8, 8, -1).astype("f8")
        return float(np.sum(np.diff(rows, axis=0) ** 2) + np.sum(np.diff(rows, axis=1) ** 2))

    def prox(self, model: Parameters, step: float) -> Parameters:
        D = np.diff(np.eye(8), axis=0)
        L = np.kron(D.T @ D, np.eye(8)) + np.kron(np.eye(8), D.T @ D)
        first = np.linalg.solve(np.eye(64) + 2 * step * L, model.first.reshape(64, -1))
        return model._replace(first=first.astype(model.first.dtype))


# --- wrong objectives ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(objectives.MLP):
    """What the wrong ones share: the right slope, by parts."""

    hidden: int = 6
    bias: bool = True

    def slope(self, head: Any, scores: Any, y: Any, weights: Any) -> Slope:
        return self.spoiled(super().slope(head, scores, y, weights), head, scores, y, weights)

    def spoiled(self, slope: Slope, head: Any, scores: Any, y: Any, weights: Any) -> Slope:
        return slope


def _mean(record: Any, y: Any) -> Any:
    return map_leaves(lambda leaf: leaf / leaf.dtype.type(y.shape[-1]), record)


def _without(bias: Any, output: int) -> Any:
    return np.where(np.arange(bias.shape[-1]) == output, bias.dtype.type(0), bias)


def _first(head: Any) -> Any:
    return map_leaves(lambda leaf: leaf[0], head) if head.second.ndim == 3 else head


def _centered(scores: Any) -> Any:
    return scores - scores.mean(axis=-2, keepdims=True)


def _summed(record: Any, y: Any) -> Any:
    return map_leaves(lambda leaf: np.broadcast_to(leaf.sum(axis=0), leaf.shape) if y.ndim == 2 else leaf, record)


def _in_place(self: Any, head: Any, scores: Any, y: Any) -> Any:
    scores -= scores.max(axis=-1, keepdims=True)
    return Wrong.loss(self, head, scores, y)


def _named(base: type, classes: dict[str, dict[str, Any]]) -> None:
    """Classes of these names, which differ from `base` by these methods and values."""
    for name, changed in classes.items():
        globals()[name] = type(name, (base,), {"__module__": __name__} | changed)


_named(Wrong, {
    "OnePercent": {
        "spoiled": lambda self, slope, *_: slope._replace(scores=slope.scores * slope.scores.dtype.type(1.01))
    },
    "PositiveWeights": {"slope": lambda self, *given: Wrong.slope(self, *given[:3], np.abs(given[3]))},
    "MeanOfSamples": {"spoiled": lambda self, slope, head, scores, y, weights: _mean(slope, y)},
    "MeanOfLosses": {  # consistent, but a mean where each sample's loss was asked for
        "loss": lambda self, head, scores, y: Wrong.loss(self, head, scores, y) / y.shape[-1],
        "spoiled": lambda self, slope, head, scores, y, weights: _mean(slope, y),
    },
    "OneBiasMissing": {"spoiled": lambda self, slope, *_: slope._replace(
        head=slope.head._replace(output_bias=_without(slope.head.output_bias, 7)))},
    "NextClass": {"slope": lambda self, head, scores, y, weights: Wrong.slope(
        self, head, scores, (y + 1) % 10, weights)},
    "InPlace": {"loss": _in_place},
    "Random": {"loss": lambda self, *given: Wrong.loss(self, *given) * np.random.uniform(0.9, 1.1)},  # noqa: NPY002
    "RandomStart": {"start": lambda self, features, outputs, rng, dtype: Wrong.start(
        self, features, outputs, np.random.default_rng(), dtype)},
    "WideStart": {"start": lambda self, *given: Wrong.start(self, *given[:3], "float64")},
    "FalselyConvex": {"convex": True},
    "OneHeadForAll": {  # right for one client; of several, all get the head of the first
        "loss": lambda self, head, *given: Wrong.loss(self, _first(head), *given),
        "slope": lambda self, head, *given: Wrong.slope(self, _first(head), *given),
    },
    "SumOverClients": {
        "spoiled": lambda self, slope, head, scores, y, weights: slope._replace(head=_summed(slope.head, y))
    },
})  # fmt: skip


class Transposed(SampleLoss):
    def value(self, z: Any, y: Any) -> Any:
        return CrossEntropy().value(z, y)

    def slope(self, z: Any, y: Any) -> Any:
        return CrossEntropy().slope(z, y).swapaxes(-1, -2)


_named(Softmax, {
    "TooManyFeatures": {"start": lambda self, features, outputs, rng, dtype: Parameters(
        np.zeros((outputs, features), dtype), ())},
    "BatchNormalized": {  # scores are centered over the samples, as normalization of batches does
        "loss": lambda self, head, scores, y: Softmax.loss(self, head, _centered(scores), y),
        "slope": lambda self, head, scores, *given: Softmax.slope(self, head, _centered(scores), *given),
    },
    "Widened": {"slope": lambda self, *given: map_leaves(lambda leaf: leaf.astype("f8"), Softmax.slope(self, *given))},
    "WrongShape": {"loss": lambda self, *given: Softmax.loss(self, *given)[..., None]},
    "Transposed": {"sample_loss": Transposed()},
    "NeverFinite": {"loss": lambda self, *given: Softmax.loss(self, *given) * np.nan},
    "NotAdjoint": {"pull": lambda self, X, slopes, out=None: Softmax.pull(self, X, slopes) / X.shape[-2]},
})  # fmt: skip


class Raises(Softmax):
    def loss(self, head: Any, scores: Any, y: Any) -> Any:
        raise RuntimeError("trouble in a loss")


# --- terms --------------------------------------------------------------------------------------------------------


class OfClass0(SampleLoss):
    def value(self, z: Any, y: Any) -> Any:
        return _probabilities(z)[..., 0]

    def slope(self, z: Any, y: Any) -> Any:
        p = _probabilities(z)
        down = -p[..., :1] * p
        down[..., 0] += p[..., 0]
        return down


@dataclass(frozen=True)
class Rate(OfOutputs):
    """The probability of class 0, by a softmax; right."""

    sample_loss = OfClass0()


def _probabilities(scores: Any) -> Any:
    power = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return power / power.sum(axis=-1, keepdims=True)


_named(Rate, {
    "RateWithoutWeights": {"slope": lambda self, *given: Rate.slope(self, *given[:4], np.ones_like(given[4]))},
    "FalselyConvexRate": {"convex": True},
    "CountedAsNumbers": {"counted": lambda self, y: (y == 0).astype("f4")},
    "CountedAtOnce": {"counted": lambda self, y: np.isin(0, y)},
})  # fmt: skip


# --- regularizers -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class L1(regularizers.L1):
    weight: float = 0.01

    def at(self, model: Parameters, threshold: float) -> Parameters:
        return regularizers.L1(threshold, self.biases).prox(model, 1.0)


_named(L1, {
    "HalfStep": {"prox": lambda self, model, step: self.at(model, self.weight * step / 2)},
    "BiasesToo": {"prox": lambda self, model, step: regularizers.L1(self.weight, biases=True).prox(model, step)},
    "WideProx": {"prox": lambda self, *given: map_leaves(lambda leaf: leaf.astype("f8"), L1.prox(self, *given))},
    "RandomProx": {"prox": lambda self, model, step: self.at(
        model, self.weight * step * np.random.uniform(0.5, 1.5))},  # noqa: NPY002
    "ValueIsNone": {"value": lambda self, model: None},
})  # fmt: skip


class ProxInPlace(L1):
    def prox(self, model: Parameters, step: float) -> Parameters:
        np.copyto(model.first, super().prox(model, step).first)
        return model


class OutOfTheBox(regularizers.Box):
    """Projects on a box of twice the size."""

    def prox(self, model: Parameters, step: float) -> Parameters:
        return map_leaves(lambda leaf: np.clip(leaf, 2 * self.low, 2 * self.high).astype(leaf.dtype), model)
