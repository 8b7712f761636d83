"""The mean gradient of clients' minibatches, computed from their uploads by anybody who knows model and job.

Algorithms' methods `reveals` share it, see `mpifed.core.reveals`. Nothing here is an attack yet: penalties, step sizes,
weights and control variates are public or follow from what was sent before, and are only taken off. With noise
on gradients or uploads, the result is noisy. Records have no axis of clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpifed.algorithms.local import LocalSteps
from mpifed.core.exchange import Problem
from mpifed.core.protocols import Model
from mpifed.core.record import AnyRecord, map_leaves
from mpifed.core.reveals import MeanGradient, Received
from mpifed.maths.objectives import Parameters, penalty_gradient


def wide(record: AnyRecord) -> AnyRecord:
    return map_leaves(lambda leaf: np.asarray(leaf, dtype=np.float64), record)


def of_step(objective: Model, model: Parameters, moved: Parameters, step: float) -> Parameters:
    """The mean gradient, without penalties, behind *one* local step from `model`.

    `mpifed.algorithms.local` moves by step * (drift - gradient - that of the penalties) in all its algorithms, and this
    takes the drift, c_i - c of SCAFFOLD or lambda_i of FedPDM, as zero, which it is in a client's first round: whoever
    knows it adds it. A first step of FedProx does not feel mu. After several steps this is the sum of their gradients,
    at models that differ.

    Parameters
    ----------
    moved : an upload divided by its weight; of FedPDM, what `fedpdm_moved` makes of it
    step : the step size that came with the broadcast
    """
    of_penalties = penalty_gradient(objective, wide(model))
    return map_leaves(lambda change, of_penalty: -change / step - of_penalty, wide(moved), of_penalties)


def of_statistics(gradient: Parameters, weight: float) -> Parameters:
    """The mean gradient of the objective, from an upload of SSCA with leaves [K, ...]; it has no penalty.

    With recursive variance reduction it is a difference of two gradients on the same rows: of one row still a matrix
    of rank one, whose row `reconstruction.direction` finds.
    """
    return map_leaves(lambda leaf: leaf[0] / weight, wide(gradient))


def fedpdm_moved(value: AnyRecord, dual: AnyRecord, rho: float) -> AnyRecord:
    """x_i - x_0 from an upload y_i - x_0 = 2 (x_i - x_0) - lambda_i / rho, divided by its weight."""
    return map_leaves(lambda y, dual: (y + dual / rho) / 2, wide(value), wide(dual))


def weight_of(problem: Problem, received: Received) -> float:
    """The weight of a `Weighted` upload or sum; where it is sealed, the one it must have."""
    if received.sealed:
        return float(problem.weights[list(received.clients)].sum())
    return float(received.answer.weight)


def unweighted(problem: Problem, received: Received) -> Parameters:
    """The value of a `Weighted` upload or sum, divided by its weight."""
    weight = weight_of(problem, received)
    value: Parameters = received.answer.value
    return map_leaves(lambda leaf: leaf / weight, wide(value))


def gradient_of_steps(
    local: LocalSteps, received: Received, model: Parameters, moved: Parameters, first: bool = False
) -> Iterator[MeanGradient]:
    """What local steps from `model` reveal: the mean of their gradients, at models that hardly differ.

    Nothing where a schedule has ended at 0.

    Parameters
    ----------
    moved : how far they came, on the mean over the clients whose answers these are
    first : whether clients keep states, which all know in their first round alone
    """
    decay, rate = local.optimizer.weight_decay, local.rate(float(received.question.step))
    if not rate:
        return
    mean = of_step(local.problem.objective, model, moved, rate)
    if decay:
        mean = map_leaves(lambda g, w: g - decay * w, mean, wide(model))
    yield MeanGradient(model, mean, first)
