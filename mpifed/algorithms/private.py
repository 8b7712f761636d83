"""Differential privacy for algorithms on rows: clipping, noise, and the account of what is released.

The algorithms describe their upload by a `Share`; everything else is here, once. Where the noise goes:

- on the gradients (level "sample", local noise): every local step's sum of gradients over a minibatch is clipped record
  by record and made noisy by the client. Iterates, dual variables and uploads only process what is noisy already.
- on the upload: local steps take clipped gradients, and the noise fits how far one record can move their outcome; at
  level "client" the upload itself is clipped. Each client adds its own (local), a share of the sum's (distributed), or
  the server does (central). Of the latter two the integers themselves are summed, see `mpifed.maths.privacy.mechanism`;
  a client with local noise may do with its release what it likes.

Whatever becomes an integer is computed in float64, or, where the mechanism counts its error, summed in float32.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.algorithms.horizontal import Weighted, mean, model_template, power_of_two, weighted_fields
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Field, Problem
from mpifed.core.privacy import Privacy
from mpifed.core.protocols import Parameters
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, leaves, map_leaves, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.arrays import column
from mpifed.maths.clipping import clip_record, clippable, record_factors
from mpifed.maths.kernels import with_noise
from mpifed.maths.objectives import LinearScores
from mpifed.maths.privacy.mechanism import Mechanism, Noise, may_be_narrow, mechanism, release
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.sensitivity import upload

Floats = NDArray[np.float64]
SERVER = np.array([-1])  # whose noise the server's is
_SMALL = 2.0**29  # sensitivities: rounding errors of numbers below are small beside them, see `Mechanism.inexact`
_DIVERGING = 2.0**16  # by how much local steps may enlarge what is rounded before them


class Share(NamedTuple):
    """The influence of a single record on a client's upload, in the worst case, in the units of the model."""

    sensitivity: float  # how far the upload can move; proven
    paper: float  # the sensitivity that (19) states; NaN where it states none
    how: Mechanism | None  # of private jobs
    remembers: bool = False  # whether the upload depends on states, and so on more than the round
    growth: float = 1.0  # by how much all local steps together may enlarge an error made in one of them


NO_SHARE = Share(np.nan, np.nan, None)  # without `[privacy]`


def privacy_of(problem: Problem) -> Privacy | None:
    """The job's `[privacy]` settings; None without."""
    return problem.privacy


def settings(problem: Problem) -> Privacy:
    """The `[privacy]` settings of a job that has some."""
    assert problem.privacy is not None
    return problem.privacy


@lru_cache(maxsize=8)
def mechanism_of(problem: Problem, steps: int, batch: int) -> Mechanism:
    """The mechanism of a private job whose rounds have `steps` local steps on `batch` records each."""
    privacy = settings(problem)
    rows = batch if privacy.on_gradients else steps * batch
    return mechanism(privacy, _values(problem), rows, problem.clients, sums_narrow(problem, batch))


@lru_cache(maxsize=8)
def sums_narrow(problem: Problem, batch: int) -> bool:
    """Whether sums of clipped gradients may be in float32, which the mechanism then counts."""
    known = isinstance(problem.objective, LinearScores) and problem.dtype == "float32"
    return known and may_be_narrow(settings(problem), _values(problem), batch)


def _values(problem: Problem) -> int:
    """d, the numbers of the model."""
    return sum(np.size(leaf) for leaf in bare_leaves(model_template(problem)))


def weights(problem: Problem, block: Block) -> Floats:
    """[n] the clients' weights in the mean: their rows; all alike at level "client"."""
    privacy = privacy_of(problem)
    if privacy is not None and privacy.level == "client":
        return np.ones(len(block.clients))
    rows: Floats = problem.weights[block.clients]
    return rows


def working_dtype(problem: Problem) -> str:
    """The dtype of local steps: float64 where their outcome is rounded to integers."""
    privacy = privacy_of(problem)
    wide = privacy is not None and privacy.level == "sample" and not privacy.on_gradients
    return "float64" if wide else problem.dtype


def upload_fields(problem: Problem, share: Share) -> Weighted:
    privacy, like = privacy_of(problem), model_template(problem)
    if privacy is None or share.how is None or not privacy.whole:
        return weighted_fields(problem, like)
    bound, heaviest_ = power_of_two(share.how.bound), power_of_two(float(problem.weights.max()))
    value = map_leaves(lambda leaf: Field(np.shape(leaf), 1.0, bound, whole=True), like)
    return Weighted(value, Field((), 2.0**-40, heaviest_, degree=0))


@lru_cache(maxsize=8)  # every block of clients asks for that of the round
def upload_share(
    problem: Problem, step: float, gain: float, kappa: float, steps: int, batch: int, remembers: bool = False
) -> Share:
    """The share of an upload gain * x + (something public) after `steps` local steps of Lipschitz constant `kappa`.

    Of private jobs: the others have `NO_SHARE`, for which no constant is computed.
    The paper's sensitivity (19) takes a minibatch's gradient to move by 2 G in every step, whatever its size.
    """
    privacy = settings(problem)
    how = mechanism_of(problem, steps, batch)
    if privacy.on_gradients:
        return Share(np.nan, np.nan, how)
    if privacy.level == "client":
        return Share(privacy.reach, np.nan, how, remembers)
    clip = privacy.bound
    if steps * math.log2(max(kappa, 1.0)) > math.log2(_DIVERGING):
        raise UsageError(
            f'[privacy] noise_on = "upload": each of {steps} local steps may enlarge a difference {kappa:.4g} times, '
            f"and with it roundings, {_DIVERGING:g} times or more together; lower the step size, or local_steps"
        )
    proven = upload(step, gain, kappa, steps, clip, batch)
    paper = gain * step * 2 * clip * sum(kappa**r for r in range(steps))
    return Share(proven, paper, how, remembers, max(kappa, 1.0) ** steps)


def noisy_gradient(
    problem: Problem, total: Parameters, gain: float, batch: int, r: int, block: Block, now: Round
) -> Parameters:
    """gain times each client's sum of clipped gradients as the client releases it in local step r.

    Parameters
    ----------
    total : leaves [n, ...] float64, or float32 where `sums_narrow`
    """
    privacy = settings(problem)
    how, reach, purpose = mechanism_of(problem, 1, batch), privacy.reach, f"gradient {r}"
    if not privacy.on_grid:
        spread = np.full(len(block.clients), abs(gain) * privacy.multiplier * reach)
        moved = map_leaves(lambda leaf: (leaf * gain).astype(problem.dtype), total)
        return _in_floats(purpose, moved, spread, block.clients, now)
    each = np.full(len(block.clients), 1 / reach)
    return _on_grid(how, purpose, total, each, how.sigma, block.clients, now, gain * reach, problem.dtype)


def protected(problem: Problem, share: Share, uploaded: Record, weight: Floats, block: Block, now: Round) -> Record:
    """Each client's upload as it leaves the client: as weighted integers where integers are summed.

    Parameters
    ----------
    uploaded : leaves [n, ...]: the client's change before it is protected; may be overwritten
    weight : [n] of each client in the mean
    """
    privacy = privacy_of(problem)
    if privacy is None or privacy.on_gradients:
        return uploaded
    how, unit, clients = _how(share), _unit(problem, share), block.clients
    if not privacy.on_grid:
        if privacy.level == "client":
            uploaded = clip_record(uploaded, privacy.bound)
        uploaded = map_leaves(lambda leaf: leaf.astype(problem.dtype, copy=False), uploaded)
        if privacy.trust == "central":
            return uploaded
        spread = np.full(len(weight), privacy.multiplier * unit)
        if privacy.trust == "distributed":  # a part of the weighted sum's noise
            spread *= heaviest(problem) / (np.sqrt(now.fewest) * weight)
        return _in_floats("upload", uploaded, spread, clients, now)
    each = np.full(len(clients), 1 / unit)
    if privacy.level == "client":
        if namespace(bare_leaves(uploaded)[0]) is np:
            each *= record_factors(uploaded, privacy.bound)
        else:  # factors stay on the device
            uploaded = clip_record(map_leaves(lambda leaf: leaf.astype("f8"), uploaded), privacy.bound)
    if privacy.trust == "local":
        return _on_grid(how, "upload", uploaded, each, how.sigma, clients, now, unit, problem.dtype)
    sigma = how.sigma / np.sqrt(now.fewest) if privacy.trust == "distributed" else 0.0
    each *= weight / heaviest(problem)
    return _on_grid(how, "upload", uploaded, each, sigma, clients, now, None, "float64")


def known(problem: Problem, share: Share, leaving: Record, weight: Floats) -> Record:
    """Each client's upload as released, in the units of the model and not weighted."""
    privacy = privacy_of(problem)
    if privacy is None or privacy.on_gradients or not privacy.whole:
        return leaving
    step = _unit(problem, share) * heaviest(problem) * 2.0 ** -_how(share).exponent
    return map_leaves(lambda leaf: (leaf * column(step / weight, leaf)).astype(problem.dtype), leaving)


def weighted(problem: Problem, leaving: Record, weight: Floats) -> Weighted:
    """Uploads [n, ...] times the clients' weights [n], in place, with the weights; integers are weighted already."""
    privacy = privacy_of(problem)
    whole = privacy is not None and privacy.whole and not privacy.on_gradients
    return Weighted(leaving if whole else _times(leaving, weight), weight)


def present_weight(problem: Problem, total: Weighted) -> float:
    """The total weight of the participating clients; under Poisson sampling its expectation, as the sum is secret."""
    privacy = privacy_of(problem)
    if privacy is not None and privacy.by_coins:
        return float(problem.clients_per_round or problem.clients)
    return float(total.weight)


def mean_released(problem: Problem, share: Share, total: Weighted, now: Round) -> Parameters:
    """The mean of the uploads, plus the server's noise where trust is "central"."""
    privacy, value = privacy_of(problem), total.value
    if privacy is None or privacy.trust == "local":
        change: Parameters = mean(total)
        return change
    weight, unit = present_weight(problem, total), _unit(problem, share) * heaviest(problem)
    value, central = map_leaves(lambda leaf: np.asarray(leaf)[None], value), privacy.trust == "central"
    if privacy.on_grid:
        how = _how(share).of_sum()
        sigma, factor = how.sigma if central else 0.0, np.array([2.0**-how.exponent])  # the sum is in steps of the grid
        value = _on_grid(how, "server", value, factor, sigma, SERVER, now, unit, problem.dtype)
    elif central:
        value = _in_floats("server", value, np.array([privacy.multiplier * unit]), SERVER, now)
    change = mean(Weighted(map_leaves(lambda leaf: leaf[0], value), np.array(weight)))
    return change


def released(problem: Problem, share: Share, steps: int, batch: int) -> Release:
    """What a round releases, for `steps` gradients over `batch` records of each participating client."""
    privacy, clients, how = settings(problem), problem.clients, _how(share)
    fraction = np.minimum(1.0, batch / problem.counts)
    z, ones, none = privacy.multiplier, np.ones(clients), np.full(clients, np.nan)
    multiplier = how.equivalent_multiplier if privacy.on_grid else lambda distance: z / distance
    if privacy.on_gradients:
        rate = np.where(fraction < 1, fraction, 1.0)
        return Release(steps, multiplier(ones), rate, ones * z, fraction)
    unit, drawn = _unit(problem, share), np.minimum(1.0, steps * fraction)
    if privacy.level == "client":
        per_round = problem.clients_per_round or clients
        secret = privacy.by_coins and not share.remembers and per_round < clients
        rate = ones * per_round / clients if secret else ones
        return Release(1, multiplier(ones * share.sensitivity / unit), rate, none, none, by_chance=secret)
    part = ones if privacy.trust == "local" else problem.weights / heaviest(problem)
    return Release(
        1, multiplier(part * share.sensitivity / unit), drawn, z * unit / (part * share.paper), drawn,
    )  # fmt: skip


def heaviest(problem: Problem) -> float:
    """The largest weight of a client."""
    privacy = privacy_of(problem)
    return 1.0 if privacy is not None and privacy.level == "client" else float(problem.weights.max())


def refuse_large(problem: Problem, share: Share, steps: int, model: Record) -> None:
    """See that the public model, from which local steps start, is not so large that rounding would move their outcome.

    Dual and control variables need no look: they are means of releases, which are within the mechanism's bound.

    Raises
    ------
    NumericalError
        when it is not finite, or too large beside the sensitivity.
    """
    privacy = privacy_of(problem)
    if privacy is None or not privacy.on_grid:
        return
    most = 1e18
    if privacy.level == "sample" and not privacy.on_gradients:
        most = _SMALL * share.sensitivity / (steps * share.growth)
    for name, leaf in leaves(model):
        flat = leaf.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = math.sqrt(flat @ flat)
        if not norm < most:
            raise NumericalError(
                f"[algorithm]: the model's `{name}` has a norm of {norm:.3g}, with which nothing private can be "
                f"computed: it must be below {most:.3g}; lower the step size"
            )


def wrong_privacy(problem: Problem, steps: int, batch: int) -> list[str]:
    """Errors of the privacy settings for this data, one message each."""
    privacy, wrong = privacy_of(problem), list[str]()
    if privacy is None:
        return wrong
    smallest = int(np.argmin(problem.counts))
    rows = int(problem.counts[smallest])
    if not privacy.on_gradients and privacy.level == "sample" and steps * batch > rows:
        wrong.append(
            f'[privacy] noise_on = "upload": {steps} local steps of batch {batch} take {steps * batch} records, '
            f"and client {smallest} has {rows}; each record may count once in a round: lower one of them, or take "
            'noise_on = "gradients"'
        )
    if privacy.level == "sample":
        wrong += clippable(problem.objective)
    if privacy.on_grid:
        wrong += mechanism_of(problem, steps, batch).wrong(problem.clients if privacy.whole else 1)
    return wrong


def _how(share: Share) -> Mechanism:
    assert share.how is not None  # of private jobs
    return share.how


def _unit(problem: Problem, share: Share) -> float:
    """The sensitivity to which the noise on an upload is calibrated."""
    privacy = settings(problem)
    return share.paper if privacy.accounting == "paper" else share.sensitivity


def _times(record: Record, factors: Floats) -> Record:
    """Leaves [n, ...] times factors [n], in place."""
    if (factors == 1).all():
        return record

    def scale(leaf: Array) -> Array:
        leaf *= column(factors, leaf)
        return leaf

    return map_leaves(scale, record)


def _on_grid(
    how: Mechanism, purpose: str, record: AnyRecord, each: Floats, sigma: float, clients: NDArray[np.int64], now: Round,
    gain: float | None, dtype: str,
) -> AnyRecord:  # fmt: skip
    """Each client's part of `record`, leaves [n, ...], times `each` [n], released; see `mechanism.release`."""
    xp = namespace(bare_leaves(record)[0])
    record = map_leaves(xp.ascontiguousarray, record)
    noisy = map_leaves(lambda leaf: xp.empty(leaf.shape, dtype), record)
    pairs, n = list(zip(bare_leaves(record), bare_leaves(noisy), strict=True)), len(clients)
    size = sum(leaf.size for leaf, _ in pairs)
    if n == 1 or (now.secure and np.all(each == each[0])):
        noise = Noise(sigma, now.words(purpose, int(clients[0])), size)
        for leaf, out in pairs:
            release(how, leaf, float(each[0]), noise, gain, out)
        return noisy
    for i, (client, factor) in enumerate(zip(clients.tolist(), each.tolist(), strict=True)):
        noise = Noise(sigma, now.words(purpose, client), size // n)
        for leaf, out in pairs:
            release(how, leaf[i], factor, noise, gain, out[i])
    return noisy


def _in_floats(purpose: str, record: AnyRecord, spread: Floats, clients: NDArray[np.int64], now: Round) -> AnyRecord:
    """`record`, leaves [n, ...], plus normal noise of standard deviations `spread` [n]; gives no privacy guarantee.

    Noise is drawn in memory, the same for every device.
    """
    if not spread.any():
        return record
    names = iter([f"{purpose} {name}" for name, _ in leaves(record)])

    def add(leaf: Array) -> Array:
        return with_noise(leaf, now.normals(next(names), clients, leaf.shape[1:], leaf.dtype.name), spread)

    return map_leaves(add, record)
