"""What epsilon can be proved for the noise that the paper's analysis asks for: FedPDM-DP, Theorems 1 and 2.

The noise follows from a claimed total by (20), with p T participations as the paper counts them, and (18), (19). How
much it protects depends on what is read into the paper:

- what bounds a gradient. Assumption 3 bounds that of a minibatch: then one record can turn it round, and (19), which
  has no 1/b, is tight. Clipping record by record would make the same noise b times stronger.
- whether lambda_i is known. (19) takes it to be; in Algorithm 1 it is hidden and remembers all records, so that more
  can differ and sampling amplifies nothing.
- the exponent of q in (20): 2 as printed, 1 in what it is taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.maths.privacy import accounting, paper

DELTA, ROUNDS, BATCH, SHARD, CLIENTS, PRESENT, RHO = 1e-5, 300, 30, 600, 100, 5, 10.0
RATE = BATCH / SHARD


class Truth(NamedTuple):
    """Epsilons that can be proved, where one total was claimed."""

    claimed: float
    one_round: float  # the epsilon of one upload that (20) has in it, for which Lemma 1 is then used
    multiplier: float  # standard deviation of the noise / (19)
    public: float  # a client whose lambda is public
    hidden: float  # Algorithm 1 as it stands
    public_printed: float  # the same two with q^2 as printed
    hidden_printed: float


def truth(claimed: float, rounds: NDArray[np.int64]) -> Truth:
    """Of a client who takes part in `rounds`, counted from 0."""
    multiplier = paper.composed(1.0, RATE, ROUNDS * PRESENT / CLIENTS, DELTA) / claimed
    printed = multiplier * RATE  # epsilon of a round is 1 / q times larger
    found = [one(m, rounds) for m in (multiplier, printed) for one in (_public, _hidden)]
    a_round = np.sqrt(2 * np.log(1.25 / DELTA)) / multiplier  # (18)
    return Truth(claimed, float(a_round), multiplier, *found)


def _public(multiplier: float, rounds: NDArray[np.int64]) -> float:
    return accounting.epsilon(multiplier, RATE, len(rounds), DELTA)


def _hidden(multiplier: float, rounds: NDArray[np.int64]) -> float:
    """Each upload by its own sensitivity, at the steps of `prox`, and none of them amplified."""
    steps = [1 / (RHO + np.sqrt(t)) for t in range(1, ROUNDS + 1)]
    true = sensitivities(steps, RHO)
    stated = 4 * np.array(steps)  # (19) after one local step, on gradients of norm 1
    together = float(np.sqrt(np.sum((true[rounds] / stated[rounds]) ** 2)))  # of Gaussians, a single one
    return accounting.unamplified(multiplier / together, 1, DELTA)


def sensitivities(steps: Sequence[float], rho: float) -> NDArray[np.float64]:
    """[T] how far one record can move each round's upload when lambda_i is hidden, by one step on a gradient of norm 1.

    With x_0 public, g the gradient and b = 1 - rho step, a round computes

        x       = public + step (lambda - g),
        lambda+ = lambda + rho (x_0 - x)  = b lambda + rho step g + public,
        y       = x - lambda+ / rho       = -2 step g + (1 - 2 b) lambda / rho + public.

    Participation and minibatches do not depend on the data, and the noisy uploads so far fix x_0. Given all of them an
    upload is a fixed function of the data plus fresh noise, whether the record is drawn or not: no sampling amplifies,
    and rounds compose adaptively. Two neighbours' g are at most 2 apart. So if D bounds how far their lambda are, then
    max(D, |b| D + 2 rho step) does after a round, in which the client may have been absent; and the upload differs by
    at most 4 step + |1 - 2 b| D / rho, which some gradients attain.
    """
    found, drift = [], 0.0
    for step in steps:
        b = 1 - rho * step
        found.append(4 * step + abs(1 - 2 * b) * drift / rho)
        drift = max(drift, abs(b) * drift + 2 * rho * step)
    return np.array(found)
