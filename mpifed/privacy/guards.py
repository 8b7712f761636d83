"""What stands between a client's numbers and everybody else: privacy, around methods that do not know of it.

A method with local steps hands its gradients and its uploads to a guard, and goes on with what comes back:

- `Open`, of `mpifed.privacy.open`, lets everything through.
- `NoisyGradients` (level "sample", local noise): every local step's sum of gradients over a minibatch is clipped record
  by record and made noisy by the client. Iterates, dual variables and uploads only process what is noisy already.
- `NoisyUploads`: local steps take clipped gradients, and the noise fits how far one record can move their outcome; at
  level "client" the upload itself is clipped. Each client adds its own (local), a share of the sum's (distributed), or
  the server does (central). Of the latter two the integers themselves are summed, see `mpifed.maths.privacy.mechanism`;
  a client with local noise may do with its release what it likes.
- `PaperUploads`: the same, with noise for the sensitivity that the FedPDM-DP paper states in (19).

Whatever becomes an integer is computed in float64, or, where the mechanism counts its error, summed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.exchange import Block, Field, OwnRecord
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, leaves, map_leaves, namespace
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import without_rows
from mpifed.maths.arrays import assign, column, power_of_two
from mpifed.maths.clipping import clip_record, clippable, clipped_gradient, record_factors
from mpifed.maths.objectives import LinearScores
from mpifed.maths.parameters import Parameters
from mpifed.maths.privacy.mechanism import Mechanism, Noise, may_be_narrow, mechanism, release
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.sensitivity import upload
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.problem import Problem, Weighted, mean
from mpifed.privacy.open import LocalWork, Minibatch, Open

Floats = NDArray[np.float64]
SERVER = np.array([-1])  # whose noise the server's is
_SMALL = 2.0**29  # sensitivities: rounding errors of numbers below are small beside them, see `Mechanism.inexact`
_DIVERGING = 2.0**16  # by how much local steps may enlarge what is rounded before them


@dataclass(frozen=True, eq=False)
class _Private(Open):
    """What all private guards share."""

    draws = "secretly"

    @property
    def privacy(self) -> Privacy:
        return self.problem.private

    @cached_property
    def how(self) -> Mechanism:
        """The mechanism of all rounds."""
        rows = self.work.batch * (1 if self.privacy.on_gradients else self.work.taken)
        return mechanism(self.privacy, self.layout.size, rows, self.problem.clients, self.narrow)

    @cached_property
    def narrow(self) -> bool:
        """Whether sums of clipped gradients may be in float32, which the mechanism then counts."""
        known = isinstance(self.problem.objective, LinearScores) and self.problem.dtype == "float32"
        return known and may_be_narrow(self.privacy, self.layout.size, self.work.batch)

    def shown(self, block: Block) -> Block:
        """No row, where noise covers the change alone."""
        return without_rows(block) if self.clips else block

    def clipped(self, at: Parameters, batch: Minibatch) -> Parameters:
        """[n, ...] sums of the rows' clipped gradients."""
        at = map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), at)
        objective, clip = self.problem.objective, self.privacy.bound
        return clipped_gradient(objective, at, batch.X, batch.y, batch.weights, clip, self.narrow, *batch.keys)

    def check_model(self, model: Array, step: float) -> None:
        """See that the public model is not so large that rounding would move the outcome of local steps.

        What clients keep needs no look: means of releases, or sums from which the next release is counted, are within
        the mechanism's bound.

        Raises
        ------
        NumericalError
            when it is not finite, or too large beside the sensitivity.
        """
        if not self.privacy.on_grid:
            return
        most = self.largest(step)
        for name, leaf in leaves(self.record(model)):
            flat = leaf.reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                norm = math.sqrt(flat @ flat)
            if not norm < most:
                raise NumericalError(
                    f"[algorithm]: the model's `{name}` has a norm of {norm:.3g}, with which nothing private can be "
                    f"computed: it must be below {most:.3g}; lower the step size"
                )

    def largest(self, step: float) -> float:
        """The norm below which each part of the model must be."""
        return 1e18

    def conflicts(self) -> Iterator[Refusal]:
        objective = self.problem.objective
        yield Refusal(
            self.privacy.level == "sample" and not clippable(objective),
            "[model] name",
            f"{type(objective).__name__} has no layers whose gradients can be clipped",
            "derive it from LinearScores or NeuralNetwork of mpifed.maths.objectives",
        )
        if self.privacy.on_grid:
            yield self.how.too_wide(self.problem.clients if self.privacy.whole else 1)


@dataclass(frozen=True, eq=False)
class NoisyGradients(_Private):
    """Noise on every clipped gradient, by each client: all that follows is processing of what is released."""

    draws = "anew"
    clips = True

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
        gain = -step / self.work.batch
        total, reach, purpose = self.clipped(at, batch), self.privacy.reach, f"gradient {r}"
        if self.privacy.on_grid:
            each = np.full(len(clients), 1 / reach)
            noisy = on_grid(self.how, purpose, total, each, self.how.sigma, clients, now, gain * reach, self.dtype)
        else:
            spread = np.full(len(clients), abs(gain) * self.privacy.multiplier * reach)
            moved = map_leaves(lambda leaf: (leaf * gain).astype(self.dtype), total)
            noisy = _in_floats(purpose, moved, spread, clients, now)
        assign(out, noisy)

    def released(self) -> Release:
        rate = np.minimum(1.0, self.work.batch / self.problem.counts)
        return Release(self.work.taken, _multiplier(self, np.ones(self.problem.clients)), rate, paper_rate=rate)


@dataclass(frozen=True, eq=False)
class NoisyUploads(_Private):
    """Noise on what a client uploads, or on the sum of uploads."""

    @property
    def clips(self) -> bool:  # type: ignore[override]
        """At level "client" the upload alone is clipped."""
        return self.privacy.level == "sample"

    @property
    def dtype(self) -> str:
        """float64 where the outcome of local steps is rounded to integers."""
        return "float64" if self.privacy.level == "sample" else self.problem.dtype

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
        if self.privacy.level == "client":
            super().put_step(at, batch, step, r, clients, now, out)
            return
        gain, total = -step / self.work.batch, self.clipped(at, batch)
        map_leaves(lambda there, leaf: namespace(leaf).multiply(leaf, gain, out=there), out, total)

    def contraction(self, step: float) -> float:
        """The Lipschitz constant of a local step's public part: the largest over the parts, mapped separately.

        The curvature of the penalty that is not convex is -beta/2 to 2 beta; intercepts do not have it.
        """
        l2, beta = 2 * float(self.problem.objective.l2), self.problem.objective.nonconvex_penalty
        pull, decay, layout = self.work.pull, self.work.optimizer.weight_decay, self.layout
        kinds = []
        if layout.penalized.stop:
            keep = 1 - step * (pull + l2 + decay)
            kinds.append(max(abs(keep - 2 * step * beta), abs(keep + step * beta / 2)))
        if layout.penalized.stop < layout.size:
            kinds.append(abs(1 - step * (pull + 0.0 + decay)))
        return max(kinds)

    def sensitivity(self, step: float) -> float:
        """How far a client's upload can move when a record, or the client, changes; proven, in units of the model."""
        privacy, work = self.privacy, self.work
        if privacy.level == "client":
            return privacy.reach
        kappa = self.contraction(step)
        if work.taken * math.log2(max(kappa, 1.0)) > math.log2(_DIVERGING):
            raise UsageError(
                f'[privacy] noise_on = "upload": each of {work.taken} local steps may enlarge a difference {kappa:.4g}'
                f" times, and with it roundings, {_DIVERGING:g} times or more together; lower the step size, or "
                "local_steps"
            )
        return upload(step, _known(work.gain), kappa, work.taken, privacy.bound, work.batch)

    def paper_sensitivity(self, step: float) -> float:
        """What (19) states, which takes a minibatch's gradient to move by 2 G in every step, whatever its size."""
        if self.privacy.level == "client":
            return math.nan
        kappa = self.contraction(step)
        return _known(self.work.gain) * step * 2 * self.privacy.bound * sum(kappa**r for r in range(self.work.taken))

    def unit(self, step: float) -> float:
        """The sensitivity to which the noise is calibrated."""
        return self.sensitivity(step)

    def largest(self, step: float) -> float:
        if self.privacy.level == "client":
            return super().largest(step)
        growth = max(self.contraction(step), 1.0) ** self.work.taken
        return _SMALL * self.sensitivity(step) / (self.work.taken * growth)

    @cached_property
    def weights(self) -> Floats:
        return np.ones(self.problem.clients) if self.privacy.level == "client" else super().weights

    def fields(self, like: Record, degrees: Record) -> Weighted:
        fields = super().fields(like, degrees)
        if not self.privacy.whole:
            return fields
        bound = power_of_two(self.how.bound)
        return fields._replace(value=map_leaves(lambda leaf: Field(np.shape(leaf), 1.0, bound, whole=True), like))

    def check_gain(self, upload: Callable[[Array], OwnRecord], change: Array) -> None:
        if self.privacy.level == "client":
            return
        once, gain = upload(change.copy()), _known(self.work.gain)
        moved, size = abs(upload(2 * change) - once), abs(once) + gain * abs(change)
        if (abs(moved - gain * abs(change)) > 1e-4 * size.max()).any():
            raise UsageError(
                f"[algorithm]: the class says gain = {self.work.gain:g}, and its `upload` moves by other multiples of "
                "the change; correct it, for the noise is made for `gain`"
            )

    def leave(self, uploaded: OwnRecord, step: float, block: Block, now: Round) -> tuple[OwnRecord, OwnRecord]:
        left = self.layout.flat(self._noisy(self.record(uploaded), step, block, now))
        if not (self.privacy.whole and self.work.remembers):
            return left, left
        # only at level "client" do clients keep what sums of integers are made of, and there all weigh 1
        return left, (left * (self.unit(step) * 2.0**-self.how.exponent)).astype(self.problem.dtype)

    def weighted(self, left: OwnRecord, clients: Array, *kept: Record) -> Weighted:
        """Integers are weighted already."""
        return Weighted(left, self.weight(clients)) if self.privacy.whole else super().weighted(left, clients, *kept)

    def _noisy(self, uploaded: Parameters, step: float, block: Block, now: Round) -> Parameters:
        """Each client's upload as it leaves the client: as weighted integers where integers are summed."""
        privacy, unit, clients, dtype = self.privacy, self.unit(step), block.clients, self.problem.dtype
        weight, part = self.weight(clients), 1.0
        if privacy.trust != "local":  # what a client adds of the weighted sum's noise
            part = 0.0 if privacy.trust == "central" else 1 / np.sqrt(now.fewest)
        if not privacy.on_grid:
            if privacy.level == "client":
                uploaded = clip_record(uploaded, privacy.bound)
            uploaded = map_leaves(lambda leaf: leaf.astype(dtype, copy=False), uploaded)
            spread = np.full(len(weight), privacy.multiplier * unit)
            if privacy.trust != "local":
                spread *= 0.0 if privacy.trust == "central" else self.heaviest / (np.sqrt(now.fewest) * weight)
            return _in_floats("upload", uploaded, spread, clients, now)
        each = np.full(len(clients), 1 / unit)
        if privacy.level == "client":
            if namespace(bare_leaves(uploaded)[0]) is np:
                each *= record_factors(uploaded, privacy.bound)
            else:  # factors stay on the device
                uploaded = clip_record(map_leaves(lambda leaf: leaf.astype("f8"), uploaded), privacy.bound)
        if privacy.trust == "local":
            return on_grid(self.how, "upload", uploaded, each, self.how.sigma, clients, now, unit, dtype)
        each *= weight / self.heaviest
        return on_grid(self.how, "upload", uploaded, each, self.how.sigma * part, clients, now, None, "float64")

    def present(self, total: Weighted) -> float:
        """Under Poisson sampling its expectation, as the sum is secret."""
        if self.privacy.by_coins:
            return float(self.problem.clients_per_round or self.problem.clients)
        return super().present(total)

    def arrive(self, total: Weighted, step: float, now: Round) -> OwnRecord:
        """The mean, plus the server's noise where trust is "central"."""
        privacy = self.privacy
        if privacy.trust == "local":
            return mean(total)
        unit, value = self.unit(step) * self.heaviest, self.record(np.asarray(total.value)[None])
        if privacy.on_grid:
            how, central = self.how.of_sum(), privacy.trust == "central"
            factor = np.array([2.0**-how.exponent])  # the sum is in steps of the grid
            sigma = how.sigma if central else 0.0
            value = on_grid(how, "server", value, factor, sigma, SERVER, now, unit, self.problem.dtype)
        elif privacy.trust == "central":
            value = _in_floats("server", value, np.array([privacy.multiplier * unit]), SERVER, now)
        return mean(Weighted(self.layout.flat(value)[0], np.array(self.present(total))))

    def released(self) -> Release:
        problem, privacy = self.problem, self.privacy
        ones = np.ones(problem.clients)
        if privacy.level == "client":
            per_round = problem.clients_per_round or problem.clients
            secret = privacy.by_coins and not self.work.remembers and per_round < problem.clients
            rate = ones * per_round / problem.clients if secret else ones
            return Release(1, _multiplier(self, ones), rate, by_chance=secret)
        drawn = np.minimum(1.0, self.work.taken * np.minimum(1.0, self.work.batch / problem.counts))
        part = ones if privacy.trust == "local" else self.weights / self.heaviest
        return Release(1, _multiplier(self, part), drawn)

    def conflicts(self) -> Iterator[Refusal]:
        work, privacy, upload = self.work, self.privacy, '[privacy] noise_on = "upload"'
        sample, special, rows = privacy.level == "sample", work.optimizer.special, work.taken * work.batch
        smallest = int(np.argmin(self.problem.counts))
        has, other = self.problem.counts[smallest], 'take noise_on = "gradients", or level = "client"'
        yield Refusal(
            work.several,
            "[privacy]",
            "noise on the upload is for uploads of one part, shaped like the model; this method's is not",
            'take level = "sample", noise_on = "gradients"',
        )
        yield Refusal(
            sample and special,
            f"[client_optimizer] {special}",
            "with noise on the upload of what single records add a sensitivity is proven for plain steps alone, all at "
            "one rate",
            'leave it out, or take [privacy] noise_on = "gradients", or level = "client"',
        )
        yield Refusal(
            sample and rows > has,
            upload,
            f"{work.taken} local steps of batch {work.batch} take {rows} records, and "
            f"{self.problem.name_of(smallest)} has {has}; "
            "each record may count once in a round",
            'lower one of them, or take noise_on = "gradients"',
        )
        yield Refusal(
            sample and work.gain is None and not work.several and not special,
            upload,
            "how far one record moves an upload is not known of this method, whose class has no `gain` beside its "
            "`upload`, `begin`, `push` and `renew`",
            other,
        )
        yield Refusal(
            sample and work.hidden,
            upload,
            f"clients keep {work.hidden}, which depends on past records in a way for which no bound is proven",
            other,
        )
        yield Refusal(
            sample and work.remembers and privacy.trust != "local",
            f'[privacy] trust = "{privacy.trust}"',
            "clients of this method keep what they compute from their own upload, which only local noise makes public",
            'take trust = "local", level = "client", or fedavg',
        )
        yield from super().conflicts()


@dataclass(frozen=True, eq=False)
class PaperUploads(NoisyUploads):
    """Noise for the sensitivity of (19)."""

    def unit(self, step: float) -> float:
        return self.paper_sensitivity(step)

    def released(self) -> Release:
        """(19) is no less than the sensitivity that is proven."""
        release = super().released()
        return release._replace(paper_rate=release.rate)


def private_guard(problem: Problem, layout: Layout, like: Parameters, work: LocalWork) -> Open:
    """The guard of a job with `[privacy]`."""
    if problem.private.on_gradients:
        return NoisyGradients(problem, layout, like, work)
    kind = PaperUploads if problem.private.accounting == "paper" else NoisyUploads
    return kind(problem, layout, like, work)


def _known(gain: float | None) -> float:
    assert gain is not None  # the job is refused without one
    return abs(gain)


def _multiplier(guard: _Private, distance: Floats) -> Floats:
    """[N] noise multipliers for neighbours at these distances, in sensitivities."""
    privacy = guard.privacy
    return guard.how.equivalent_multiplier(distance) if privacy.on_grid else privacy.multiplier / distance


def on_grid(
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
        noise = now.normals(next(names), clients, leaf.shape[1:], leaf.dtype.name)
        noise *= column(spread.astype(noise.dtype), noise)
        noisy = beside(leaf, noise)
        noisy += leaf
        return noisy

    return map_leaves(add, record)
