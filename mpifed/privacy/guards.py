"""What stands between a client's numbers and everybody else: privacy, around methods that do not know of it.

A method with local steps hands its gradients and its uploads to a guard, and goes on with what comes back:

- `Open`, of `mpifed.privacy.open`, lets everything through.
- `NoisyGradients` (level "sample", local noise): every local step's sum of gradients over a minibatch is clipped record
  by record and made noisy by the client. Iterates, dual variables and uploads only process what is noisy already.
- `NoisyUploads` (level "client"): uploads are clipped. Each client adds its own noise (local), a share of the sum's
  (distributed), or the server does (central). Of the latter two the integers themselves are summed, see
  `mpifed.maths.privacy.mechanism`; a client with local noise may do with its release what it likes.
- `PaperUploads`: local steps take clipped gradients, and the client's noise, in floats, fits what the FedPDM-DP paper
  states in (19) of how far one record can move their outcome.

Whatever becomes an integer is computed in float64, or, where the mechanism counts its error, summed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError
from mpifed.core.exchange import Block, Field, OwnRecord
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, leaves, map_leaves, namespace
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import without_rows
from mpifed.maths.arrays import assign, column, power_of_two
from mpifed.maths.clipping import clip_record, clipped_gradient, gradient_alone, has_own_code, record_factors
from mpifed.maths.objectives import LinearScores
from mpifed.maths.parameters import Parameters
from mpifed.maths.privacy.mechanism import Mechanism, Noise, may_be_narrow, mechanism, release
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.problem import Problem, Weighted, mean
from mpifed.privacy.open import LocalWork, Minibatch, Open

Floats = NDArray[np.float64]
SERVER = np.array([-1])  # whose noise the server's is
_LARGEST = 1e18  # norm of a model's part


@dataclass(frozen=True, eq=False)
class _Private(Open):
    """What all private guards share."""

    draws = "secretly"
    quiet: ClassVar[Mapping[str, str]] = {"over": "ignore", "invalid": "ignore"}  # it would depend on the data

    @property
    def privacy(self) -> Privacy:
        return self.problem.private

    @cached_property
    def how(self) -> Mechanism:
        """The mechanism of all rounds."""
        return mechanism(self.privacy, self.layout.size, self.work.batch, self.problem.clients, self.narrow)

    @cached_property
    def narrow(self) -> bool:
        """Whether sums of clipped gradients may be in float32, which the mechanism then counts."""
        known = isinstance(self.problem.objective, LinearScores) and self.problem.dtype == "float32"
        return known and may_be_narrow(self.privacy, self.layout.size, self.work.batch)

    @property
    def multiplier(self) -> Floats:
        """[N] noise multipliers of continuous noise with the same privacy."""
        privacy = self.privacy
        return np.full(self.problem.clients, self.how.equivalent if privacy.on_grid else privacy.multiplier)

    def shown(self, block: Block) -> Block:
        """No row, where noise covers the change alone."""
        return without_rows(block) if self.clips else block

    def clipped(self, at: Parameters, batch: Minibatch) -> Parameters:
        """[n, ...] sums of the rows' clipped gradients."""
        at = map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), at)
        objective, clip = self.problem.objective, self.privacy.bound
        if has_own_code(objective):
            at = self.of_clients(at)
        return clipped_gradient(objective, at, batch.X, batch.y, batch.weights, clip, self.narrow, *batch.keys)

    def of_clients(self, at: Parameters) -> Parameters:
        """A model with leaves [1, ...], where it is common to all clients."""
        return map_leaves(lambda leaf, like: leaf if leaf.ndim > like.ndim else leaf[None], at, self.like)

    def check_model(self, model: Array, step: float) -> None:
        """See that the public model is not so large that nothing can be computed from it.

        Raises
        ------
        NumericalError
            when it is not finite, or too large.
        """
        if not self.privacy.on_grid:
            return
        for name, leaf in leaves(self.record(model)):
            flat = leaf.reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                norm = math.sqrt(flat @ flat)
            if not norm < _LARGEST:
                raise NumericalError(
                    f"[algorithm]: the model's `{name}` has a norm of {norm:.3g}, with which nothing private can be "
                    f"computed: it must be below {_LARGEST:.3g}; lower the step size"
                )

    def conflicts(self) -> Iterator[Refusal]:
        if self.privacy.on_grid:
            yield self.how.too_wide(self.problem.clients if self.privacy.whole else 1)


@dataclass(frozen=True, eq=False)
class NoisyGradients(_Private):
    """Noise on every clipped gradient, by each client: all that follows is processing of what is released."""

    draws = "anew"
    clips = True

    def anew(
        self, block: Block, now: Round, steps: int, keys: Callable[[int], tuple[Array, ...]], gain: float
    ) -> Iterator[Minibatch]:
        for r in range(steps):
            rows = block.draw(now, f"minibatch {r}", self.work.batch, secret=True)
            yield self.minibatch(block.take(rows), keys(r), gain)

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
        return Release(self.work.taken, self.multiplier, rate, paper_rate=rate)


@dataclass(frozen=True, eq=False)
class NoisyUploads(_Private):
    """Noise on each client's clipped upload, or on the sum of these; all weigh the same."""

    @cached_property
    def weights(self) -> Floats:
        return np.ones(self.problem.clients)

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
        """NaN, for which a clipped upload is zero, where a client's pass raises; no client's pass moves another."""
        if not has_own_code(self.problem.objective):
            return super().put_step(at, batch, step, r, clients, now, out)
        at = self.of_clients(at)
        for i in range(len(clients)):
            own = map_leaves(lambda leaf, i=i: leaf[[i % len(leaf)]], at)
            found = gradient_alone(self.problem.objective, own, *batch.only(slice(i, i + 1)).arguments)
            for j, leaf in enumerate(bare_leaves(out)):
                leaf[i] = np.nan if found is None else bare_leaves(found)[j][0]

    def fields(self, like: Record, degrees: Record) -> Weighted:
        fields = super().fields(like, degrees)
        if not self.privacy.whole:
            return fields
        bound = power_of_two(self.how.bound)
        return fields._replace(value=map_leaves(lambda leaf: Field(np.shape(leaf), 1.0, bound, whole=True), like))

    def leave(self, uploaded: OwnRecord, step: float, block: Block, now: Round) -> tuple[OwnRecord, OwnRecord]:
        left = self.layout.flat(self._noisy(self.record(uploaded), block.clients, now))
        if not (self.privacy.whole and self.work.remembers):
            return left, left
        return left, (left * (self.privacy.bound * 2.0**-self.how.exponent)).astype(self.problem.dtype)

    def _noisy(self, uploaded: Parameters, clients: Array, now: Round) -> Parameters:
        """Each client's upload as it leaves the client: as integers where integers are summed."""
        privacy, dtype = self.privacy, self.problem.dtype
        if not privacy.on_grid:
            return map_leaves(lambda leaf: leaf.astype(dtype, copy=False), clip_record(uploaded, privacy.bound))
        each = np.full(len(clients), 1 / privacy.bound)
        if namespace(bare_leaves(uploaded)[0]) is np:
            each *= record_factors(uploaded, privacy.bound)
        else:  # factors stay on the device
            uploaded = clip_record(map_leaves(lambda leaf: leaf.astype("f8"), uploaded), privacy.bound)
        if privacy.trust == "local":
            return on_grid(self.how, "upload", uploaded, each, self.how.sigma, clients, now, privacy.bound, dtype)
        part = 0.0 if privacy.trust == "central" else 1 / np.sqrt(now.fewest)  # of the sum's noise
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
        value = self.record(np.asarray(total.value)[None])
        if privacy.on_grid:
            how = self.how.of_sum()
            factor = np.array([2.0**-how.exponent])  # the sum is in steps of the grid
            sigma = how.sigma if privacy.trust == "central" else 0.0
            value = on_grid(how, "server", value, factor, sigma, SERVER, now, privacy.bound, self.problem.dtype)
        return mean(Weighted(self.layout.flat(value)[0], np.array(self.present(total))))

    def released(self) -> Release:
        ones = np.ones(self.problem.clients)
        per_round = self.problem.clients_per_round or self.problem.clients
        secret = self.privacy.by_coins and not self.work.remembers and per_round < self.problem.clients
        rate = ones * per_round / self.problem.clients if secret else ones
        return Release(1, self.multiplier, rate, by_chance=secret)

    def conflicts(self) -> Iterator[Refusal]:
        yield _whole(self.work)
        yield from super().conflicts()


@dataclass(frozen=True, eq=False)
class PaperUploads(_Private):
    """Noise in floats on each upload, after local steps along clipped gradients, for the sensitivity of (19)."""

    clips = True
    dtype = "float64"  # type: ignore[assignment]  # whatever the job's is

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
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
        """(19), which takes a minibatch's gradient to move by 2 G in every step, whatever its size.

        So it is no less than what is true of gradients that are clipped one by one. Minibatches of a round are
        disjoint: two neighbours' iterates agree up to the step of the one with the record, where sums differ in a
        single term, by 2 G / b; from then on each of the mean gradients at two different points has a norm of at most
        G. Each step stretches by kappa, the contraction, at most.
        """
        work = self.work
        assert work.gain is not None  # the job is refused without one
        kappa = self.contraction(step)
        return abs(work.gain) * step * 2 * self.privacy.bound * sum(kappa**r for r in range(work.taken))

    def leave(self, uploaded: OwnRecord, step: float, block: Block, now: Round) -> tuple[OwnRecord, OwnRecord]:
        uploaded = map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), self.record(uploaded))
        spread = np.full(len(block.clients), self.privacy.multiplier * self.sensitivity(step))
        left = self.layout.flat(_in_floats("upload", uploaded, spread, block.clients, now))
        return left, left

    def released(self) -> Release:
        drawn = np.minimum(1.0, self.work.taken * np.minimum(1.0, self.work.batch / self.problem.counts))
        return Release(1, self.multiplier, drawn, paper_rate=drawn)

    def conflicts(self) -> Iterator[Refusal]:
        work, upload, other = self.work, '[privacy] noise = "paper"', 'take noise = "secure", or level = "client"'
        smallest, rows = int(np.argmin(self.problem.counts)), work.taken * work.batch
        yield _whole(work)
        yield Refusal(
            work.optimizer.special,
            f"[client_optimizer] {work.optimizer.special}",
            "the paper's sensitivity is of plain steps, all at one rate",
            f"leave it out, or {other}",
        )
        yield Refusal(
            rows > (has := self.problem.counts[smallest]),
            upload,
            f"{work.taken} local steps of batch {work.batch} take {rows} records, and "
            f"{self.problem.name_of(smallest)} has {has}; each record may count once in a round",
            f"lower one of them, or {other}",
        )
        yield Refusal(
            work.gain is None and not work.several and not work.optimizer.special,
            upload,
            "how far one record moves an upload is not known of this method, whose class has no `gain` beside its "
            "`upload`, `begin`, `push` and `renew`",
            other,
        )
        yield Refusal(
            work.hidden,
            upload,
            f"clients keep {work.hidden}, which depends on past records in a way for which no bound is proven",
            other,
        )
        yield from super().conflicts()


def _whole(work: LocalWork) -> Refusal:
    """Of uploads with several parts."""
    return Refusal(
        work.several,
        "[privacy]",
        "noise on the upload is for uploads of one part, shaped like the model; this method's is not",
        'take level = "sample", noise = "secure"',
    )


def private_guard(problem: Problem, layout: Layout, like: Parameters, work: LocalWork) -> Open:
    """The guard of a job with `[privacy]`."""
    if problem.private.on_gradients:
        return NoisyGradients(problem, layout, like, work)
    kind = PaperUploads if problem.private.by_paper else NoisyUploads
    return kind(problem, layout, like, work)


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
