"""Objectives by the names that jobs give them. All have the form that `form` describes."""

from mpifed.maths.objectives.form import (
    Layer,
    LinearScores,
    Objective,
    concave_gradient,
    layout_of,
    penalty,
    penalty_gradient,
    squares,
)
from mpifed.maths.objectives.linear import (
    Bias,
    Hinge,
    LeastSquares,
    Linear,
    Logistic,
    MultiLabel,
    Softmax,
    SquaredHinge,
    TrueClassLogistic,
)
from mpifed.maths.objectives.mlp import MLP, BiasedOutput, Output
from mpifed.maths.objectives.network import NeuralNetwork, Pullback
from mpifed.maths.objectives.torch_model import TorchNetwork
from mpifed.maths.parameters import Parameters, Slope

__all__ = [
    "MLP",
    "OBJECTIVES",
    "Bias",
    "BiasedOutput",
    "Hinge",
    "Layer",
    "LeastSquares",
    "Linear",
    "LinearScores",
    "Logistic",
    "MultiLabel",
    "NeuralNetwork",
    "Objective",
    "Output",
    "Parameters",
    "Pullback",
    "Slope",
    "Softmax",
    "SquaredHinge",
    "TorchNetwork",
    "TrueClassLogistic",
    "concave_gradient",
    "layout_of",
    "penalty",
    "penalty_gradient",
    "squares",
]

OBJECTIVES: dict[str, type] = {
    "mlp": MLP,
    "torch": TorchNetwork,
    "softmax": Softmax,
    "true-class-logistic": TrueClassLogistic,
    "logistic": Logistic,
    "multilabel": MultiLabel,
    "least-squares": LeastSquares,
    "hinge": Hinge,
    "squared-hinge": SquaredHinge,
}
