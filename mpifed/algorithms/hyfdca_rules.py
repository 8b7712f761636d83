"""The local rules of HyFDCA: how far a client moves the dual variables of its samples against one frozen w.

All chosen variables move at once. Of D as a function of all of them, -l*(-alpha) is a sum over samples, and the rest
is quadratic with the matrix XX' / (lambda N): with a curvature c of their own in its place, the variables are
independent, and one vectorized expression moves them all. The rules differ in c, and in what follows:

paper         c = ||x_i||^2 / (lambda N), exact for one variable that moves alone. Stable for few drawn samples only.
theory        c = ||x_i||^2 / lambda, N times as much: safe, and slow.
damped        c = sigma / (lambda N) with sigma >= lambda_max(XX') / 2: D never falls.
line-search   as `paper` with all samples, and of that direction the exact best part, which the server computes from
              ||X'd||^2: D never falls.
accelerated   as `damped` with sigma >= lambda_max(XX'), from an extrapolated point: FISTA (Beck, Teboulle: "A Fast
              Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", SIAM J. Imaging Sci. 2009), which
              begins anew when a step turns back (O'Donoghue, Candes: "Adaptive Restart for Accelerated Gradient
              Schemes", Found. Comput. Math. 2015).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from mpifed.core.protocols import Dual
from mpifed.core.record import ABSENT, Array, namespace
from mpifed.core.round import Round
from mpifed.maths.duals import values_along

Rule: TypeAlias = Literal["paper", "theory", "damped", "line-search", "accelerated"]

TOGETHER: tuple[Rule, ...] = ("line-search", "accelerated")  # move all samples, and need all clients
OWN_NORMS: tuple[Rule, ...] = ("paper", "theory", "line-search")  # their curvatures are the samples' own
# the parts of a direction that are tried where D is not quadratic along it
PARTS = np.append(0.0, 2.0 ** (np.arange(-15, 1) / 2))


def stable_samples(lambda_n: float, samples: int, largest: float, bend: float | None) -> int:
    """How many distinct samples rule `paper` can move at once.

    b of them overlap by about 1 + b lambda_max / N. With l* of curvature `bend`, a step then overshoots by less than
    itself up to b = (1 + bend lambda N) N / lambda_max; where alpha is bounded, and so all overshooting, up to about
    max(2, 4 lambda N) N / lambda_max.

    Parameters
    ----------
    lambda_n : lambda N
    largest : lambda_max(XX'), for rows of norm 1
    bend : of l*; None where alpha is bounded
    """
    factor = max(2.0, 4 * lambda_n) if bend is None else 1 + bend * lambda_n
    return int(min(max(1.0, factor * samples / max(largest, 1e-300)), samples))


@lru_cache(maxsize=2)
def _ordered(seed: int, index: int, samples: int, count: int) -> Array:
    """[count] the samples of a round, ascending; the same for all clients."""
    now = Round(index, seed, np.zeros(0, dtype=bool))
    return np.sort(now.draw("rows", np.array([0]), np.array([samples]), count)[0])


def drawn_among(now: Round, rows: Array, samples: int, count: int) -> Array:
    """Positions among a client's `rows` [s_i] of those that are among the round's `count` samples."""
    drawn = _ordered(now.seed, int(now.index), samples, count)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:  # without a gap
        between = drawn[np.searchsorted(drawn, rows[0]) : np.searchsorted(drawn, rows[-1], "right")]
        positions: Array = between - rows[0]
        return positions
    at = np.searchsorted(rows, drawn)
    at[at == len(rows)] = 0
    return at[rows[at] == drawn] if len(rows) else at[:0]


def local_step(
    dual: Dual, rule: Rule, alpha: Array, scores: Array, y: Array, curvature: Array | float, gamma: float
) -> Array:
    """[s] steps of the dual variables. Algorithm 5, and for rule `theory` Algorithm 3, both as corrected.

    # differs from the paper: Algorithm 5's closed form lacks y and takes ||x_i|| = 1; Algorithm 3 has u in dl(x_i w)
    where -u in dl(x_i w) is meant, and its quadratic lacks ||x_i||^2. Its s <= 1 binds only where gamma is below 1: u
    is where -l*(-a) - a x_i.w is largest (Fenchel and Young, with equality), and as the quadratic pulls back to alpha,
    the best of all steps ends between the two.
    """
    step: Array = dual.step(alpha, scores, y, curvature)
    if gamma == 1:
        return step
    if rule != "theory":
        step *= step.dtype.type(gamma)
        return step
    most = dual.toward(scores.astype(alpha.dtype, copy=False), y)
    most -= alpha
    most *= most.dtype.type(gamma)  # s gamma (u - alpha) with s in [0, 1]; for gamma = 1 no step goes beyond
    xp = namespace(step)
    return xp.clip(step, xp.minimum(most, 0), xp.maximum(most, 0), out=step)


# --- line-search ----------------------------------------------------------------------------------------------------


class Along(NamedTuple):
    """sum -l*(-(alpha + s d)) as a function of s, as sums over the samples that a client counts."""

    linear: Array  # [n] and
    quadratic: Array  # [n], where it is s linear - s^2 / 2 quadratic and a constant; else ABSENT
    values: Array  # [n, J] at the parts `PARTS`, less that at 0; else ABSENT


def along_direction(dual: Dual, alpha: Array, direction: Array, y: Array) -> Along:
    """`Along` of samples [s]; leaves have no leading axis."""
    if dual.quadratic:
        linear, quadratic = dual.coefficients(alpha, direction, y)
        return Along(linear, quadratic, ABSENT)
    values = values_along(dual, alpha, direction, y, PARTS)
    return Along(ABSENT, ABSENT, values - values[:1])


def best_part(total: Along, slope: float, curve: float) -> float:
    """The s in [0, 1] that maximizes N D(alpha + s d); where that is not quadratic, the best of `PARTS`.

    N D(alpha + s d) is sum -l*(-(alpha + s d)) - s w.X'd - s^2 / 2 ||X'd||^2 / (lambda N), and a constant.

    Parameters
    ----------
    total : over all samples
    slope : w.X'd
    curve : ||X'd||^2 / (lambda N)
    """
    if not len(total.values):
        rise, bend = float(total.linear) - slope, float(total.quadratic) + curve
        return float(np.clip(rise / bend, 0.0, 1.0)) if bend > 0 else float(rise > 0)
    return float(PARTS[np.argmax(total.values - PARTS * slope - PARTS**2 / 2 * curve)])


# --- accelerated ----------------------------------------------------------------------------------------------------


class Momentum(NamedTuple):
    """State of the accelerated rule. Server only."""

    before: Array  # [p] float64, the w of the round before
    theta: np.float64  # of FISTA's sequence, in which (1 + sqrt(1 + 4 theta^2)) / 2 comes next
    beta: np.float64  # how far the next point is extrapolated


class HyFDCAServer(NamedTuple):
    """The server's state."""

    w: Array  # [p] float64 X'alpha / (lambda N), of the clients' last answers
    returned: Array  # [p] float64 the model; ABSENT where that is w
    least: np.float64  # P of it, infinite before a loss was received; ABSENT where no loss is
    rounds: np.int64  # done
    sigma: np.float64  # lambda_max(XX') or the job's sigma; 0 where it is not needed
    part: np.float64  # of the last direction, which the clients have still to go; ABSENT but for line-search
    momentum: Momentum  # ABSENT but for accelerated
    power: Array  # [p] float64 vector of the power iteration


def momentum(before: Array, theta: float) -> Momentum:
    """The state for the next round, after a round with `theta`, or with theta = 1 after a restart."""
    following = (1 + float(np.sqrt(1 + 4 * theta**2))) / 2
    return Momentum(before, np.float64(following), np.float64((theta - 1) / following))
