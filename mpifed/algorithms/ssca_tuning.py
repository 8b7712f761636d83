"""What SSCA may choose by itself while it runs: costs of slack, margins, gradients with less noise.

# differs from the paper: all three are additions.

`slack_cost = "auto"`: the cost of slack in SSCA's convex problems, adapted during the run.

The paper's c must exceed the multipliers, which are not known beforehand, and a c far
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

`margins = "auto"`: how far below its limits SSCA aims, so that they are met at the end although all is estimated.

The paper's Algorithms 2 and 4 end a few per cent above the limit: the surrogate of a
# constraint averages minibatches of earlier models, from which noise has moved the model away, and so lags behind the
# constraint's value now; and the model follows its errors.

Every round brings an unbiased value of F_m(w_t), the mean over the round's minibatches, which the surrogates need
anyway; nothing more is sent. The margin of a constraint is the integral of its excess over a level a little below the
limit: it grows while the values lie above that level, and shrinks while they lie below, so in the long run their mean
*is* there, whatever the surrogates' bias. The level lies `SURE` standard errors of the surrogate's value below the
limit: it is that error which the model follows from round to round. With sigma the spread of one round's value, the
surrogate's is sigma sqrt(rho / (2 - rho)), which vanishes with rho, and the margin with it. `WIDEST` sigma bound the
margin, since it grows in vain while a limit is out of reach yet.
Multiplying a constraint with its limit by a factor multiplies its margin, and changes no model.

`variance_reduction = "recursive"`: the estimates d_t = g(w_t) + (1 - rho_t) (d_{t-1} - g(w_{t-1})), both gradients from
one minibatch (STORM: A. Cutkosky, F. Orabona, NeurIPS 2019, arXiv:1905.10018), and alike for the values of constraints.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.algorithms.functions import Statistics
from mpifed.core.record import ABSENT, Array, map_leaves
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


def recent(t: int) -> float:
    """The weight of round t in a running mean over the last tenth of the rounds, but 20 of them where there are."""
    return max(1 / t, min(1 / 20, 10 / t))


def typical(costs: SlackCosts) -> Floats:
    """[M] multipliers of the recent rounds, weighted by how far they moved the model."""
    return costs.ratio / np.where(costs.inverse > 0, costs.inverse, 1)


def next_costs(costs: SlackCosts, curvatures: Floats) -> tuple[Floats, Floats]:
    """[M] c of the convex problem whose surrogates have these curvatures [M + 1], the objective's first; their bounds.

    They are clipped so that the weights of objective and constraint stay comparable.
    """
    if not len(costs.cost):  # without limits a round has no time for this
        return costs.cost, costs.cost
    scale = curvatures[0] / curvatures[1:]
    return np.clip(ROOM * typical(costs), LEAST * scale, MOST * scale), MOST * scale


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


# --- margins ---

SURE = 3.0
WIDEST = 1.5


class Margins(NamedTuple):
    """Server only: the margins, and the statistics from which they follow."""

    margin: Array  # [M] taken off the limits in the convex problem
    last: Array  # [M] the last value of F - aim
    variance: Array  # [M] sigma^2: running mean, from the differences of consecutive values


def steer(margins: Margins, t: int, excess: Floats, rho: float, carried: float) -> Margins:
    """The margins after round t.

    Parameters
    ----------
    excess : [M] unbiased estimates of F - aim at w_t; exact zeros leave a constraint without margin
    rho : the weight of this round in the surrogates
    carried : the part of the last round's error that these estimates still contain, if variance-reduced; else 0
    """
    weight = recent(t)
    variance = margins.variance
    if t > 1:  # consecutive values differ by noise rather than by what the model has moved
        both = (excess - margins.last) ** 2 / 2 * (1 + carried) / (1 - carried) ** 2
        first = max(weight, 1 / (t - 1))
        variance = (1 - first) * variance + first * both
    sigma = np.sqrt(variance)
    goal = excess + SURE * np.sqrt(rho / (2 - rho)) * sigma
    return Margins(np.clip(margins.margin + weight * goal, 0, WIDEST * sigma), excess, variance)


# --- variance reduction ---


def renewed_estimate(old: Statistics, sums: Statistics, weight: float, keep: float) -> Statistics:
    """d_t and v_t, from those of the last round and `sums`, which are `weight` times this round's estimates."""

    def renewed(old: Array, new: Array) -> Array:
        fresh: Array = old * old.dtype.type(keep)
        fresh += new * old.dtype.type(1 / weight)
        return fresh

    slope = map_leaves(renewed, old.gradient, sums.gradient)
    return Statistics(slope, keep * old.level + sums.level / weight if len(sums.level) else ABSENT)
