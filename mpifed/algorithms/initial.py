"""The model of a problem before round 0, and its shapes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.record import map_leaves
from mpifed.maths.objectives import Parameters, layout_of
from mpifed.maths.problem import Problem

if TYPE_CHECKING:
    from mpifed.core.round import Round
    from mpifed.core.vector import Layout


def start_model(problem: Problem, now: Round) -> Parameters:
    """The model of round 0: that of `[model] start`, or the objective's own, a function of the job's seed."""
    if problem.start is not None:
        return map_leaves(np.copy, problem.start)
    return problem.objective.start(problem.features, problem.outputs, now.rng("model"), problem.dtype)


@lru_cache(maxsize=8)  # every block of clients asks for it
def model_template(problem: Problem) -> Parameters:
    """A model in the right shapes, for the fields of an exchange: zeros that take no memory."""
    model, rng = problem.start, np.random.default_rng(0)
    if model is None:
        model = problem.objective.start(problem.features, problem.outputs, rng, problem.dtype)
    return map_leaves(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), model)


@lru_cache(maxsize=8)  # every block of clients asks for it
def model_layout(problem: Problem) -> Layout:
    """Where the parts of the problem's model stand in a vector."""
    return layout_of(problem.objective, model_template(problem))
