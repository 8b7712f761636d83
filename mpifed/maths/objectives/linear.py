"""Models without a hidden layer: linear classifiers, linear regression and support vector machines.

The penalty of all is l2 * ||w||^2: where papers write lambda / 2, lambda is 2 * l2, and scikit-learn's C, which
multiplies the sum of losses added to ||w||^2 / 2, is 1 / (2 * l2 * samples). Dual methods have no intercept; a column
of ones serves as one, but is penalized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator

from mpifed.core.record import ABSENT, Array
from mpifed.hyperparameters import Weight
from mpifed.maths import losses
from mpifed.maths.objectives.form import Layer, Layers, LinearScores
from mpifed.maths.parameters import Parameters, Slope


class Bias(NamedTuple):
    """The head of a model with an intercept for each score."""

    bias: Array  # [h] added to the scores


Head: TypeAlias = Bias | tuple[()]


@dataclass(frozen=True)
class Linear(LinearScores):
    """The base of models whose outputs are X times the weights, and intercepts: a subclass has a `sample_loss`.

    Where `bias` is None the job's algorithm decides; here None means no intercepts.
    """

    bias: bool | None = None
    """Whether there are intercepts; where absent they are, unless the algorithm has none (those of dual variables and
    of cells)."""
    penalize_bias: bool = field(default=False, kw_only=True)
    """Count intercepts in `l2` and `nonconvex_penalty` too."""

    @property
    def convex(self) -> bool:  # type: ignore[override]  # as its loss is
        return self.sample_loss.convex

    def start(self, features: int, outputs: int, rng: Generator, dtype: str) -> Parameters:
        """The initial model: zeros, since the loss is convex."""
        h = 1 if self.sample_loss.binary else outputs
        return Parameters(np.zeros((features, h), dtype), Bias(np.zeros(h, dtype)) if self.bias else ())

    def apply_head(self, head: Head, scores: Array) -> tuple[Array, Callable[[Array], Slope]]:
        """As by the single layer: local steps on few rows take a tenth longer through a list of layers."""
        outputs = scores + head.bias[..., None, :] if head else scores
        return outputs, lambda slopes: Slope(Bias(slopes.sum(axis=-2)) if head else (), slopes)

    def layers(self, head: Head, scores: Array) -> tuple[Array, Layers]:
        return self.class_scores(head, scores), lambda slopes: [Layer(ABSENT, slopes)]


@dataclass(frozen=True)
class PenalizedTwice(Linear):
    """The base of those that may have a second penalty, beta of (25) in the paper of `TrueClassLogistic`."""

    nonconvex_penalty: Weight = 0.0
    """Factor of the sum of w^2 / (1 + w^2), without intercepts: a smooth penalty that is not convex."""


@dataclass(frozen=True)
class Softmax(PenalizedTwice):
    """Multinomial logistic regression: the scores are the logits."""

    sample_loss = losses.CrossEntropy()


@dataclass(frozen=True)
class TrueClassLogistic(PenalizedTwice):
    """The loss (25) of FedPDM-DP as printed, log(1 + exp(-z_y)): only the score of the sample's class enters.

    Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek: "Privacy-Preserving Federated Primal-Dual Learning for
    Non-convex Problems with Non-smooth Regularization" (IEEE MLSP 2023); its beta is `nonconvex_penalty`.
    It is degenerate: no class is ever penalized, so that all scores may grow together. Intercepts alone reach a tiny
    loss at 10 % accuracy with ten classes, and accuracy may decrease with the loss. It serves to reproduce the paper;
    otherwise use `Softmax`.
    """

    sample_loss = losses.TrueClass()


@dataclass(frozen=True)
class Logistic(PenalizedTwice):
    """Logistic regression of two classes, 0 and 1, with a single score z: loss log(1 + exp(-(2y - 1) z)).

    Softmax with two classes has twice the parameters for the same predictions, and a different optimum with a penalty.
    """

    sample_loss = losses.LogisticLoss()


@dataclass(frozen=True)
class MultiLabel(PenalizedTwice):
    """A logistic regression for each of a sample's labels, 0 or 1, of which the loss is the mean (binary relevance)."""

    sample_loss = losses.BinaryCrossEntropy()


@dataclass(frozen=True)
class LeastSquares(Linear):
    """Linear regression: loss (x'w - y)^2 / 2."""

    sample_loss = losses.SquaredError()


@dataclass(frozen=True)
class Hinge(Linear):
    """The support vector machine: loss max(0, 1 - t z) of two classes y, 0 and 1, with a single score z; t = 2y - 1."""

    sample_loss = losses.HingeLoss()


@dataclass(frozen=True)
class SquaredHinge(Linear):
    """The support vector machine with a smooth loss, max(0, 1 - t z)^2, scikit-learn's "squared_hinge"."""

    sample_loss = losses.SquaredHingeLoss()
