"""`slack_cost = "auto"`: the cost of slack in SSCA's convex problems, adapted during the run.

# differs from the paper: an addition. Its c must exceed the multipliers, which are not known beforehand, and a c far
# above them lets noise in a constraint's estimate throw the model far.

The convex problem of round t moves the model by -(grad F-bar_0 + sum nu_m grad F-bar_m) / (2 T) at w_t, with T =
tau_0 + sum nu_m tau_m. Where the model rests, these moves cancel over the rounds, so the multipliers of the true
problem are the mean of nu_m / T divided by the mean of 1 / T: the mean of the multipliers, each weighted by how far its
round moves the model (a plain mean is several times too large, since rounds with large multipliers hardly move it). The
cost is `ROOM` times that mean over the recent rounds, between bounds that the curvatures give. So
- where a cost is too small, the multiplier stays at it, the mean follows, and the cost grows geometrically: faster
  where a limit was out of reach in nearly all recent rounds, since the mean is then over fewer of them;
- where multipliers have once been large, the first smaller ones outweigh them, and the cost falls within a few rounds;
- multiplying a function with its limit and its curvature by a factor divides its cost by it (the objective: multiplies
  all costs), and no model changes;
- limits that contradict each other make it grow to `MOST`, and no further.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array
from mpifed.maths.surrogate import Floats

ROOM = 1.5  # the cost relative to the multiplier: room for what noise demands, and for growth
LEAST, MOST = 1.0, 1e6  # bounds of c_m tau_m / tau_0: at the upper, the objective has a millionth of the weight
ALWAYS, QUICK = 0.9, 0.25  # the share of recent rounds at the cost from which on a mean is over so few, and its weight
AT_CAP = 0.999  # of the cost, from which on a multiplier counts as having reached it


class SlackCosts(NamedTuple):
    """Server only. Means are over the recent rounds, see `recent`."""

    cost: Array  # [M] c of the last convex problem
    inverse: Array  # [M] mean of 1 / T
    ratio: Array  # [M] mean of nu / T
    capped: Array  # [M] share of the rounds in which the multiplier was at its cap, which is the largest cost if "auto"
    short: Array  # [M] share of the rounds in which the multiplier was at its cost: the limit was out of reach


def start_costs(constraints: int) -> SlackCosts:
    zeros = np.zeros(constraints)
    return SlackCosts(*[zeros] * 5)


def recent(t: int) -> float:
    """The weight of round t in a running mean over the last tenth of the rounds, but 20 of them where there are."""
    return max(1 / t, min(1 / 20, 10 / t))


def typical(costs: SlackCosts) -> Floats:
    """[M] multipliers of the recent rounds, weighted by how far they moved the model."""
    return costs.ratio / np.where(costs.inverse > 0, costs.inverse, 1)


def largest(curvatures: Floats) -> Floats:
    """[M] upper bounds of the costs; `curvatures` [M + 1] of the surrogates, the objective's first."""
    return bounded(np.full(len(curvatures) - 1, np.inf), curvatures)


def bounded(cost: Floats, curvatures: Floats) -> Floats:
    """[M] `cost`, clipped so that the weights of objective and constraint stay comparable."""
    if not len(cost):
        return cost
    scale = curvatures[0] / curvatures[1:]
    return np.clip(cost, LEAST * scale, MOST * scale)


def next_costs(costs: SlackCosts, curvatures: Floats) -> Floats:
    """[M] c of the convex problem whose surrogates have these curvatures [M + 1], the objective's first."""
    return bounded(ROOM * typical(costs), curvatures) if len(costs.ratio) else costs.ratio


def after_round(costs: SlackCosts, t: int, cost: Floats, cap: Floats, multipliers: Floats, total: float) -> SlackCosts:
    """The means updated by round t: its costs [M] and caps [M], and the convex problem's multipliers and T."""
    if not len(cost):
        return costs
    weight = recent(t)
    quick = np.where(costs.short >= ALWAYS, max(weight, QUICK), weight)
    return SlackCosts(
        cost=cost,
        inverse=(1 - quick) * costs.inverse + quick / total,
        ratio=(1 - quick) * costs.ratio + quick * multipliers / total,
        capped=(1 - weight) * costs.capped + weight * (multipliers >= AT_CAP * cap),
        short=(1 - weight) * costs.short + weight * (multipliers >= AT_CAP * cost),
    )
