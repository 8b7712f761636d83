"""Sensitivity: how far an upload after local steps can move when a record of the client changes.

A record's clipped gradient has norm at most G (`clip`), and a minibatch's gradient is the sum over its records, divided
by a fixed b (`batch`). Within a round the minibatches are disjoint, so that a record is in at most one of them.
"""

from __future__ import annotations


def upload(step: float, gain: float, contraction: float, steps: int, clip: float, batch: float) -> float:
    """Sensitivity of gain * x^Q + (what is public), after Q local steps x^{r+1} = M_r(x^r) - step * g_r(x^r).

    x^0 and the maps M_r are public, |M_r(x) - M_r(x')| <= kappa |x - x'|. Up to the step r of the minibatch with the
    record, two neighbours' iterates agree. There the sums of clipped gradients differ in a single term, by 2 G / b.
    From then on the iterates differ, and of the mean gradients at two different points only the norm is bounded, by G
    each: 2 G. Hence

        gain * step * max_r (kappa^(Q-1-r) 2 G / b + sum over r' > r of kappa^(Q-1-r') 2 G),

    in which r = 0 is the largest, since 2 G / b <= 2 G. Clipped gradients that change sign within an
    arbitrarily small distance come arbitrarily close to it, so that it cannot be improved without assumptions on them.

    Parameters
    ----------
    step, gain : step size, and the factor of x^Q in the upload; the sign of the gain does not matter
    contraction : kappa, not negative
    steps : Q
    clip, batch : G, and b

    Returns
    -------
    The sensitivity, in the units of the upload.
    """
    later = 2 * clip * sum(contraction**j for j in range(steps - 1))
    return abs(gain) * step * (contraction ** (steps - 1) * 2 * clip / batch + later)
