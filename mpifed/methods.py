"""All that a method of one's own is written with: `from mpifed.methods import LocalMethod, ...`.

Methods with local steps and one upload derive from `LocalMethod`; others give their exchanges themselves, and derive
from `Rows`, `Columns` or `Grid`, by how the data are split.
"""

from __future__ import annotations

from mpifed.algorithms.algorithm import Algorithm, Rows
from mpifed.algorithms.cells import Grid
from mpifed.algorithms.columns import Columns
from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.fedpdm import FedPDM
from mpifed.algorithms.fedprox import FedProx
from mpifed.algorithms.local_method import Done, Local, LocalMethod, Sent, Server
from mpifed.algorithms.measure import Measure
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.reveals import DualSum, DualVariables, InnerProducts, MeanGradient, Received, ScoreDerivatives
from mpifed.algorithms.scaffold import Scaffold
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Placed
from mpifed.core.lazy import Lazy
from mpifed.core.record import Array, beside, leaves, map_leaves
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Batch, Block
from mpifed.hyperparameters import Count, Repeats, Size, Weight
from mpifed.maths.arrays import column, zeros
from mpifed.maths.objectives import Parameters, penalty_gradient
from mpifed.maths.optimizers import SGD, ServerOptimizer, ServerSGD
from mpifed.maths.privacy.release import Release
from mpifed.maths.problem import Problem, Weighted, mean, model_template, start_model, weighted_fields

__all__ = [
    "SGD", "Algorithm", "Array", "Batch", "Block", "Columns", "Count", "Done", "DualSum", "DualVariables", "Exchange",
    "FedAvg", "FedPDM", "FedProx", "Field", "Grid", "InnerProducts", "Layout", "Lazy", "Local", "LocalMethod",
    "MeanGradient", "Measure", "Parameters", "Placed", "Problem", "Received", "Refusal", "Release", "Repeats", "Round",
    "Rows", "Scaffold", "ScoreDerivatives", "Sent", "Server", "ServerOptimizer", "ServerSGD", "Size", "Weight",
    "Weighted", "beside", "check_rows", "column", "leaves", "map_leaves", "mean", "model_template", "penalty_gradient",
    "start_model", "weighted_fields", "zeros",
]  # fmt: skip
