"""The time of SSCA's server step, without the sums: surrogates, the convex problem, the new model."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from mpifed.algorithms.functions import Constraint, Statistics
from mpifed.algorithms.ssca import SSCAHorizontal
from mpifed.core.record import map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.maths.objectives import MLP
from mpifed.maths.problem import Problem, Weighted
from mpifed.maths.schedules import StepSize
from mpifed.maths.terms import Loss
from mpifed.run.environment import keep_freed_memory

PARAMETERS, CONSTRAINTS = 100_000, (0, 1, 3, 8)
HIDDEN, OUTPUTS = 125, 10
CHAIN = 10  # rounds that follow each other
NOW = Round(SETUP, 1, np.ones(1, dtype=bool))


def server_steps(times: int) -> dict[int, float]:
    """The median CPU seconds of a step, by the number of constraints; the numbers of them take turns."""
    keep_freed_memory()
    made = {M: chain(M) for M in CONSTRAINTS}
    seconds: dict[int, list[float]] = defaultdict(list)
    with threadpool_limits(1):
        for _ in range(times):
            for M, (algorithm, totals) in made.items():
                server = algorithm.start_server(NOW)
                for total in totals:
                    start = time.process_time()
                    server = algorithm.absorb(server, total, NOW)
                    seconds[M].append(time.process_time() - start)
    return {M: median(taken) for M, taken in seconds.items()}


def chain(M: int) -> tuple[SSCAHorizontal, list[Any]]:
    """The loss minimized with M constraints, each on the loss of one class, and sums of random gradients."""
    limits = tuple(Constraint(Loss((m,)), 0.13) for m in range(M))
    features = PARAMETERS // HIDDEN - OUTPUTS
    problem = Problem(MLP(HIDDEN), "rows", np.array([60000]), 60000, features, OUTPUTS, constraints=limits)
    algorithm = SSCAHorizontal(100, StepSize(0.9, 0.3), StepSize(0.9, 0.35), start="paper", problem=problem)
    like, rng = algorithm.start_server(NOW).surrogate.linear, np.random.default_rng(1)
    shared = map_leaves(lambda leaf: rng.normal(0, 1, leaf.shape[1:]), like)

    def slope(leaf: Any, common: Any) -> Any:
        """Each function's gradient has a part in common with the others'; norms are about 0.5."""
        return (1e-3 * (rng.normal(0, 1, leaf.shape) + common)).astype(np.float32)

    totals = []
    for _ in range(CHAIN):
        level = rng.uniform(0, 0.5, M + 1) if M else ()
        totals.append(Weighted(Statistics(map_leaves(slope, like, shared), level), np.float64(1)))
    return algorithm, totals
