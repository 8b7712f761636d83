"""Objectives by the names that jobs give them. All have the form that `form` describes."""

from mpifed.core.protocols import Parameters, Slope
from mpifed.maths.objectives.form import (
    Linear,
    Objective,
    concave,
    concave_gradient,
    gradient,
    penalized,
    penalty,
    penalty_gradient,
    squares,
)
from mpifed.maths.objectives.linear import (
    Bias,
    LeastSquares,
    Logistic,
    OneVsRest,
    PerClass,
    Softmax,
    TrueClassLogistic,
)
from mpifed.maths.objectives.margins import Hinge, SquaredHinge
from mpifed.maths.objectives.network import MLP, BiasedOutput, Output

__all__ = [
    "MLP",
    "OBJECTIVES",
    "Bias",
    "BiasedOutput",
    "Hinge",
    "LeastSquares",
    "Linear",
    "Logistic",
    "Objective",
    "OneVsRest",
    "Output",
    "Parameters",
    "PerClass",
    "Slope",
    "Softmax",
    "SquaredHinge",
    "TrueClassLogistic",
    "concave",
    "concave_gradient",
    "gradient",
    "penalized",
    "penalty",
    "penalty_gradient",
    "squares",
]

OBJECTIVES: dict[str, type] = {
    "mlp": MLP,
    "softmax": Softmax,
    "one-vs-rest": OneVsRest,
    "true-class-logistic": TrueClassLogistic,
    "logistic": Logistic,
    "least-squares": LeastSquares,
    "hinge": Hinge,
    "squared-hinge": SquaredHinge,
}
