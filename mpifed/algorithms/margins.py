"""`margins = "auto"`: how far below its limits SSCA aims, so that they are met at the end although all is estimated.

# differs from the paper: an addition. Its Algorithms 2 and 4 end a few per cent above the limit: the surrogate of a
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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.algorithms.slack_costs import recent
from mpifed.core.record import Array
from mpifed.maths.surrogate import Floats

SURE = 3.0
WIDEST = 1.5


class Margins(NamedTuple):
    """Server only: the margins, and the statistics from which they follow."""

    margin: Array  # [M] taken off the limits in the convex problem
    last: Array  # [M] the last value of F - aim
    variance: Array  # [M] sigma^2: running mean, from the differences of consecutive values


def start_margins(constraints: int) -> Margins:
    return Margins(np.zeros(constraints), np.zeros(constraints), np.zeros(constraints))


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
