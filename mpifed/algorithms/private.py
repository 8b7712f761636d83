"""What differential privacy adds to an algorithm for rows: clipping, noise, and the account of what is released.

The algorithms say what their upload is made of, as a `Share`; everything else is here, once. Where the noise goes:

- on the gradients (level "sample", local noise): every local step's mean gradient over a minibatch is clipped record by
  record and made noisy by the client. Iterates, dual variables and uploads only process what is noisy already.
- on the upload: local steps take clipped gradients, and the noise fits how far one record can move their outcome; at
  level "client" the upload itself is clipped. Each client adds its own (local), a share of the sum's (distributed), or
  the server does (central).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import Weighted, mean, model_template
from mpifed.core.block import Block
from mpifed.core.exchange import Problem
from mpifed.core.record import Array, Record, bare_leaves, leaves, map_leaves, on_host
from mpifed.core.round import Round
from mpifed.maths.arrays import beside, column
from mpifed.maths.clipping import clip_record, clippable
from mpifed.maths.kernels import with_noise
from mpifed.maths.privacy.discrete import discretely_noisy, inflation
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.sensitivity import upload
from mpifed.maths.privacy.settings import Privacy

Floats = NDArray[np.float64]
SERVER = np.array([-1])  # whose noise the server's is


class Share(NamedTuple):
    """What a client's upload tells of one of its records, in the worst case, in the units of the model."""

    sensitivity: float  # how far the upload can move; proven
    paper: float  # the sensitivity that (19) states; NaN where it states none
    remembers: bool = False  # whether the upload depends on hidden states, and so on more than the records drawn


def privacy_of(problem: Problem) -> Privacy | None:
    """The job's settings, if it is private."""
    found: Privacy | None = problem.privacy
    return found


def weights(problem: Problem, block: Block) -> Floats:
    """[n] what the block's clients count in the mean: their rows, or all alike where clients are protected."""
    privacy = privacy_of(problem)
    if privacy is not None and privacy.level == "client":
        return np.ones(len(block.clients))
    found: Floats = problem.weights[block.clients]
    return found


def gradient_noise(privacy: Privacy, batch: int) -> float:
    """The standard deviation of the noise on a mean gradient over `batch` records."""
    return privacy.multiplier * privacy.reach / batch


def upload_share(
    problem: Problem, step: float, gain: float, kappa: float, steps: int, batch: int, remembers: bool = False
) -> Share:
    """What an upload gain * x + (something public) tells after so many local steps of Lipschitz constant `kappa`.

    The paper's sensitivity (19) takes a minibatch's gradient to move by 2 G in every step, whatever its size.
    """
    privacy = privacy_of(problem)
    if privacy is None or privacy.on_gradients:
        return Share(np.nan, np.nan)
    if privacy.level == "client":
        return Share(privacy.reach, np.nan, remembers)
    clip = privacy.bound
    proven = upload(step, gain, kappa, steps, clip, batch, privacy.adjacency, privacy.sampling)
    return Share(proven, gain * step * 2 * clip * sum(kappa**r for r in range(steps)), remembers)


def protected(problem: Problem, share: Share, uploaded: Record, weight: Floats, block: Block, now: Round) -> Record:
    """Each client's upload as it leaves the client, before it is weighted.

    Parameters
    ----------
    uploaded : leaves [n, ...]: how far the client would move what the server knows; may be overwritten
    weight : [n] of each client in the mean
    """
    privacy = privacy_of(problem)
    if privacy is None or privacy.on_gradients:
        return uploaded
    if privacy.level == "client":
        uploaded = clip_record(uploaded, privacy.bound)
    if privacy.model == "central":
        return uploaded
    spread = np.full(len(weight), _sigma(problem, share))
    if privacy.model == "distributed":  # a part of the weighted sum's noise
        spread *= heaviest(problem) / (np.sqrt(now.fewest) * weight)
    return noisy(privacy, "upload", uploaded, spread, block.clients, now)


def present_weight(problem: Problem, total: Weighted) -> float:
    """The weight of the clients of a round; where they come by chance, that expected: how many came is secret."""
    privacy = privacy_of(problem)
    if privacy is not None and privacy.by_coins:
        return float(problem.clients_per_round or problem.clients)
    return float(total.weight)


def mean_released(problem: Problem, share: Share, total: Weighted, now: Round) -> Record:
    """The mean of the uploads, with the server's noise where it is the server who adds it."""
    privacy, value, weight = privacy_of(problem), total.value, present_weight(problem, total)
    if privacy is not None and privacy.model == "central":
        spread = np.array([_sigma(problem, share) * heaviest(problem)])
        value = map_leaves(lambda leaf: leaf[None], value)
        value = map_leaves(lambda leaf: leaf[0], noisy(privacy, "server", value, spread, SERVER, now))
    return mean(Weighted(value, weight))


def noisy(
    privacy: Privacy, purpose: str, record: Record, spread: Floats, clients: NDArray[np.int64], now: Round
) -> Record:
    """`record`, leaves [n, ...], plus normal noise of standard deviations `spread` [n]; it may be overwritten.

    Noise is always drawn in memory, the same for every device; that on grids is added there too.
    """
    if not spread.any():
        return record
    names = iter([name for name, _ in leaves(record)])

    def add(leaf: Array) -> Array:
        name = f"{purpose} {next(names)}"
        if privacy.distribution == "discrete":
            return beside(leaf, discretely_noisy(on_host(leaf), spread))
        return with_noise(leaf, now.normals(name, clients, leaf.shape[1:], leaf.dtype.name), spread)

    return map_leaves(add, record)


def released(problem: Problem, share: Share, steps: int, batch: int) -> Release:
    """What a round gives away, with so many `steps` on gradients over `batch` records for each client present."""
    privacy, clients = problem.privacy, problem.clients
    fraction = np.minimum(1.0, batch / problem.counts)
    z, ones, none = privacy.multiplier, np.ones(clients), np.full(clients, np.nan)
    if privacy.on_gradients:
        rate = np.where(fraction < 1, fraction, 1.0)
        return Release(steps, ones * z / _rounded(problem), rate, ones * z, fraction)
    sigma, sensitivity = _sigma(problem, share), share.sensitivity * _rounded(problem)
    if privacy.level == "client":
        per_round = problem.clients_per_round or clients
        secret = privacy.model == "central" and not share.remembers and per_round < clients
        rate = ones * per_round / clients if secret else ones
        return Release(1, ones * sigma / sensitivity, rate, none, none, by_chance=secret)
    heavy = ones if privacy.model == "local" else heaviest(problem) / problem.weights
    drawn = np.minimum(1.0, steps * fraction)
    return Release(
        1, heavy * sigma / sensitivity, ones if share.remembers else drawn, heavy * sigma / share.paper, drawn
    )


def heaviest(problem: Problem) -> float:
    """The largest weight of a client in the sum."""
    privacy = privacy_of(problem)
    return 1.0 if privacy is not None and privacy.level == "client" else float(problem.weights.max())


def weighted(uploaded: Record, weight: Floats) -> Weighted:
    """Uploads [n, ...] times the clients' weights [n], in place, and the weights."""
    if np.all(weight == 1):
        return Weighted(uploaded, weight)

    def scale(leaf: Array) -> Array:
        leaf *= column(weight, leaf)
        return leaf

    return Weighted(map_leaves(scale, uploaded), weight)


def wrong_privacy(problem: Problem, steps: int, batch: int) -> list[str]:
    """What does not fit between the settings of privacy and the data, one message each."""
    privacy, wrong = privacy_of(problem), list[str]()
    if privacy is None:
        return wrong
    smallest = int(np.argmin(problem.counts))
    rows = int(problem.counts[smallest])
    if not privacy.on_gradients and privacy.level == "sample":
        if steps * batch > rows:
            wrong.append(
                f'[privacy] noise_on = "upload": {steps} local steps of batch {batch} take {steps * batch} records, '
                f"and client {smallest} has {rows}; each record may count once in a round: lower one of them, or take "
                'noise_on = "gradients"'
            )
        if privacy.sampling == "poisson" and steps > 1:
            wrong.append(
                '[privacy] sampling = "poisson" with noise_on = "upload": the sensitivity is proven for one local '
                f'step; set local_steps = 1 (now {steps}), or take sampling = "fixed" or noise_on = "gradients"'
            )
    if privacy.level == "sample":
        wrong += clippable(problem.objective, model_template(problem).head)
    return wrong


def _sigma(problem: Problem, share: Share) -> float:
    """The standard deviation of the noise on an upload."""
    privacy: Privacy = problem.privacy
    return privacy.multiplier * (share.paper if privacy.accounting == "paper" else share.sensitivity)


def _rounded(problem: Problem) -> float:
    """By which factor the rounding of discrete noise to its grid raises the sensitivity."""
    privacy: Privacy = problem.privacy
    if privacy.distribution != "discrete":
        return 1.0
    values = sum(np.size(leaf) for leaf in bare_leaves(model_template(problem)))
    return inflation(privacy.multiplier, values)
