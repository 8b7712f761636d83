"""How far an upload after local steps can move when one record of the client changes.

A record's clipped gradient has norm G (`clip`) at most, and a minibatch's gradient is the sum over its records,
divided by a fixed b (`batch`). Within a round the minibatches are disjoint, so that a record is in one at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
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

    x^0 and the maps M_r are public, |M_r(x) - M_r(x')| <= kappa |x - x'|. Up to the step r of the minibatch that has
    the record, two neighbours' iterates agree. There the sums of clipped gradients differ in one term: by 2 G / b
    when it is replaced and G / b when it is left out ("reach / b"). From then on the iterates differ, and of the mean
    gradient at two different points nothing is known but that both have norm G at most: 2 G. Hence

        gain * step * max_r (kappa^(Q-1-r) reach/b + sum over r' > r of kappa^(Q-1-r') 2 G),

    in which r = 0 is the largest, since reach/b <= 2 G. Clipped gradients that turn round at the slightest push come
    as close to it as one likes, so it cannot be improved without assumptions on the gradient.

    Parameters
    ----------
    step, gain : float
        Step size, and the factor of x^Q in the upload; the sign of the gain does not matter.
    contraction : float
        kappa, not negative.
    steps : int
        Q.
    clip, batch : float
        G, and what a minibatch's sum is divided by: its size; under Poisson sampling the expected one.
    adjacency, sampling : str
        As in `Privacy`.

    Returns
    -------
    float
        The sensitivity, in the units of the upload.

    Raises
    ------
    UsageError
        For Poisson sampling and more than one step: a minibatch may then have any number of records, and its gradient
        no bound.

    """
    if sampling == "poisson" and steps > 1:
        raise UsageError(
            f'[privacy] sampling = "poisson" with noise_on = "upload" and {steps} local steps: a minibatch has no'
            " largest size, so a step from a model that has already changed has no bound; use one local step,"
            ' sampling = "fixed", or noise_on = "gradients"'
        )
    later = 2 * clip * sum(contraction**j for j in range(steps - 1))
    return abs(gain) * step * (contraction ** (steps - 1) * reach(clip, adjacency) / batch + later)


def reach(clip: float, adjacency: str) -> float:
    """By how much a sum of contributions clipped to norm G can change: 2 G when one is replaced, G when left out."""
    return clip * (2.0 if adjacency == "replace-one" else 1.0)


class Hidden(NamedTuple):
    """FedPDM whose dual variables stay with the clients: bounds for each round, whoever takes part in which."""

    drift: Floats  # [T] how far two neighbours' dual variables can be apart after the round
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
    """Sensitivities of FedPDM's uploads when a client never gives away its dual variable.

    A round starts at the server's x_0, and makes Q steps on the augmented Lagrangian, with an l2 penalty mu |x|^2
    outside of the clipped gradients:

        x^{r+1} = x^r - step (g_r - lambda + rho (x^r - x_0) + 2 mu x^r) = a x^r - step g_r + step (lambda + rho x_0),

    a = 1 - step (rho + 2 mu). With S = sum of a^(Q-1-r) g_r and c = 1 + a + ... + a^(Q-1),

        x^Q     = a^Q x_0 - step S + step c (lambda + rho x_0),
        lambda+ = lambda + rho (x_0 - x^Q)  = b lambda + rho step S + public,            b = 1 - rho step c,
        y       = x^Q - lambda+ / rho       = -2 step S + (1 - 2 b) lambda / rho + public,

    where public means a function of x_0, and b = a^Q when mu = 0. Where mu differs between the parameters, as between
    weights and intercepts, a and b are diagonal; below |a|, |b| and |1 - 2 b| then stand for the largest, their norms.

    What is conditioned on. Draw the coins (who takes part, which records are drawn) first: they do not depend on the
    data, and privacy for all their values is privacy for their mixture. Given them, and the noisy uploads so far,
    which fix x_0, an upload is a fixed function of the data plus fresh noise. So the rounds are an adaptive
    composition of Gaussian mechanisms, each with the sensitivity below. That holds whether the record is drawn in the
    round or not, since lambda remembers it: there is no amplification by sampling, and the rate is 1 in every round
    in which the client takes part.

    One round. The first gradient is taken at x_0, where at most one term differs: reach/batch. From the second step
    on the iterates differ, even where the record is not drawn, through lambda: 2 G. So S differs by at most
    dS = |a|^(Q-1) reach/batch + (1 + |a| + ... + |a|^(Q-2)) 2 G, which is what `upload` gives.

    All rounds. Let D_t bound the distance of the two dual variables after round t, D_0 = 0, whatever rounds of the
    first t the client took part in. If it takes part in round t, the distance is at most |b| D_{t-1} + rho step dS;
    if not, lambda is as it was, and the distance at most D_{t-1}. So D_t = max(D_{t-1}, |b| D_{t-1} + rho step dS)
    is such a bound again: for any pattern of participation, by induction. The upload of round t then differs by at
    most 2 step dS + |1 - 2 b| D_{t-1} / rho. For Q = 1 gradients exist with which that is attained in a given round.

    Parameters
    ----------
    step_sizes : sequence of T floats
        The step of each round.
    rho : float
        rho.
    penalties : sequence of floats
        mu of each kind of parameter, as of weights and intercepts.
    steps : int
        Q.
    clip, batch, adjacency, sampling
        As in `upload`.

    Returns
    -------
    Hidden
        For each of the T rounds.

    Raises
    ------
    UsageError
        As `upload` does.

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
