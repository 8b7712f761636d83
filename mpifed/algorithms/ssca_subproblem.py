"""The convex problem of a round of SSCA, from the surrogates to the next step: (2), (5), (7) or (10) of Ye and Cui."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.algorithms.functions import objective_term
from mpifed.core.exchange import Problem
from mpifed.core.record import Array
from mpifed.maths.dual import lemma_1, levels, multipliers
from mpifed.maths.surrogate import Floats, Forms, Start, Surrogate, forms, gram


class Solution(NamedTuple):
    """The solution of a convex problem."""

    factors: tuple[float, ...]  # [K]: w-bar = - sum_k factors[k] l_k
    multipliers: Array  # [M]
    slack: Array  # [M]
    total: float  # T, the curvature of the Lagrangian


def quadratics(problem: Problem, surrogate: Surrogate, tau: float, start: Start) -> Forms:
    """The quadratic forms of the objective and of the constraints."""
    terms = [objective_term(problem), *(constraint.term for constraint in problem.constraints)]
    aims = [0.0, *(constraint.aim for constraint in problem.constraints)]
    return forms(surrogate, aims, [term.sampled for term in terms], tau, start)


def solve(surrogate: Surrogate, form: Forms, cost: Floats, margin: Floats | float = 0.0) -> Solution:
    """The solution in the closed forms (9), (19) and Lemma 1, or by the dual problem in M variables.

    Parameters
    ----------
    form : the surrogate's, from `quadratics`
    cost : [M] c
    margin : [M] how far below its aim each constraint is to be
    """
    constants, curvatures, rows = form
    if not len(constants):  # (9), (19)
        return Solution((1 / (2 * curvatures[0]),), np.zeros(0), np.zeros(0), float(curvatures[0]))
    constants = constants + margin
    products = gram(surrogate, rows)
    if rows == (None, 0):  # (38): ||w||^2 and one constraint
        constant, square, curvature = float(constants[0]), float(products[1, 1]), float(curvatures[1])
        multiplier = lemma_1(constant, square, curvature, float(cost[0]))
        factor = multiplier / (2 * (1 + multiplier * curvature))
        level = constant - factor * square * (1 - factor * curvature)  # at w = -factor l
        return Solution((factor,), np.array([multiplier]), np.array([max(level, 0.0)]), 1 + multiplier * curvature)
    nu = multipliers(constants, products, curvatures, cost)
    total = float(curvatures[0] + nu @ curvatures[1:])
    factors = [
        multiplier / (2 * total) for multiplier, row in zip([1.0, *nu.tolist()], rows, strict=True) if row is not None
    ]
    return Solution(tuple(factors), nu, np.maximum(levels(nu, constants, products, curvatures), 0), total)
