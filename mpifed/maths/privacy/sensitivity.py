"""Sensitivity: how far an upload after local steps can move when a record of the client changes.

A record's clipped gradient has norm at most G (`clip`), and a minibatch's gradient is the sum over its records, divided
by a fixed b (`batch`). Within a round the minibatches are disjoint, so that a record is in at most one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.privacy import reach
from mpifed.maths.privacy.release import Floats


def upload(
    step: float,
    gain: float,
    contraction: float,
    steps: int,
    clip: float,
    batch: float,
    adjacency: str,
    sampling: str = "fixed",
) -> float:
    """Sensitivity of gain * x^Q + (what is public), after Q local steps x^{r+1} = M_r(x^r) - step * g_r(x^r).

    x^0 and the maps M_r are public, |M_r(x) - M_r(x')| <= kappa |x - x'|. Up to the step r of the minibatch with the
    record, two neighbours' iterates agree. There the sums of clipped gradients differ in a single term: by 2 G / b
    when it is replaced and G / b when it is left out ("reach / b"). From then on the iterates differ, and of the mean
    gradients at two different points only the norm is bounded, by G each: 2 G. Hence

        gain * step * max_r (kappa^(Q-1-r) reach/b + sum over r' > r of kappa^(Q-1-r') 2 G),

    in which r = 0 is the largest, since reach/b <= 2 G. Clipped gradients that change sign within an
    arbitrarily small distance come arbitrarily close to it, so that it cannot be improved without assumptions on them.

    Parameters
    ----------
    step, gain : step size, and the factor of x^Q in the upload; the sign of the gain does not matter
    contraction : kappa, not negative
    steps : Q
    clip, batch : G, and the divisor of a minibatch's sum: its size, under Poisson sampling its expected size
    adjacency, sampling : as in `Privacy`

    Returns
    -------
    The sensitivity, in the units of the upload.

    Raises
    ------
    UsageError : for Poisson sampling and more than one step: a minibatch may then have any number of records, and its
        gradient is not bounded.
    """
    if sampling == "poisson" and steps > 1:
        raise UsageError(
            f'[privacy] sampling = "poisson" with noise_on = "upload" and {steps} local steps: the size of'
            " a minibatch is not bounded, nor is a step from a model that has already changed; use one local step,"
            ' sampling = "fixed", or noise_on = "gradients"'
        )
    later = 2 * clip * sum(contraction**j for j in range(steps - 1))
    return abs(gain) * step * (contraction ** (steps - 1) * reach(clip, adjacency) / batch + later)


class Hidden(NamedTuple):
    """Bounds for each round of FedPDM with private dual variables, for any pattern of participation."""

    drift: Floats  # [T] bound of the distance between two neighbours' dual variables after the round
    sensitivity: Floats  # [T] of the upload of the round, given all uploads before it


def upload_hidden(
    step_sizes: Sequence[float],
    rho: float,
    steps: int,
    clip: float,
    batch: float,
    adjacency: str,
    sampling: str = "fixed",
    penalties: Sequence[float] = (0.0,),
) -> Hidden:
    """Sensitivities of FedPDM's uploads when clients do not upload their dual variables.

    A round starts at the server's x_0, and makes Q steps on the augmented Lagrangian, with an l2 penalty mu |x|^2
    outside of the clipped gradients:

        x^{r+1} = x^r - step (g_r - lambda + rho (x^r - x_0) + 2 mu x^r) = a x^r - step g_r + step (lambda + rho x_0),

    a = 1 - step (rho + 2 mu). With S = sum of a^(Q-1-r) g_r and c = 1 + a + ... + a^(Q-1),

        x^Q     = a^Q x_0 - step S + step c (lambda + rho x_0),
        lambda+ = lambda + rho (x_0 - x^Q)  = b lambda + rho step S + public,            b = 1 - rho step c,
        y       = x^Q - lambda+ / rho       = -2 step S + (1 - 2 b) lambda / rho + public,

    where public means a function of x_0, and b = a^Q if mu = 0. Where mu differs between the parameters, as between
    weights and intercepts, a and b are diagonal; below |a|, |b| and |1 - 2 b| then stand for the largest, their norms.

    Conditioning. Draw participation and minibatches first: they do not depend on the data, and privacy for all their
    values implies privacy for the mixture. Given them, and the noisy uploads so far,
    which fix x_0, an upload is a fixed function of the data plus fresh noise. So the rounds are an adaptive
    composition of Gaussian mechanisms, each with the sensitivity below. That holds whether the record is drawn in the
    round or not, since lambda depends on it: there is no amplification by sampling, and the rate is 1 in every round
    in which the client participates.

    One round. The first gradient is evaluated at x_0, where at most one term differs: reach/batch. From the second step
    on the iterates differ, even where the record is not drawn, through lambda: 2 G. So S differs by at most
    dS = |a|^(Q-1) reach/batch + (1 + |a| + ... + |a|^(Q-2)) 2 G, which is what `upload` gives.

    All rounds. Let D_t bound the distance of the two dual variables after round t, D_0 = 0, whichever of the
    first t rounds the client participated in. If it participates in round t, the distance is at most
    |b| D_{t-1} + rho step dS; if not, lambda is unchanged, and the distance is at most D_{t-1}. So, by induction,
    D_t = max(D_{t-1}, |b| D_{t-1} + rho step dS) is a bound for any pattern of participation. The upload of round t
    then differs by at most 2 step dS + |1 - 2 b| D_{t-1} / rho. For Q = 1 there are gradients that attain this in a
    given round.

    Parameters
    ----------
    step_sizes : [T] the step of each round
    penalties : mu of each kind of parameter, for example of weights and of intercepts
    steps, clip, batch, adjacency, sampling : as in `upload`

    Returns
    -------
    For each of the T rounds.

    Raises
    ------
    UsageError : as `upload`.
    """
    drifts, sensitivities, drift = [], [], 0.0
    for step in step_sizes:
        factors = [1 - step * (rho + 2 * mu) for mu in penalties]
        gradients = upload(1.0, 1.0, max(map(abs, factors)), steps, clip, batch, adjacency, sampling)
        memories = [1 - rho * step * sum(a**j for j in range(steps)) for a in factors]
        sensitivities.append(2 * step * gradients + max(abs(1 - 2 * b) for b in memories) * drift / rho)
        drift = max(drift, max(map(abs, memories)) * drift + rho * step * gradients)
        drifts.append(drift)
    return Hidden(np.array(drifts), np.array(sensitivities))
