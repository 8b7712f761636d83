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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import NumericalError
from mpifed.core.exchange import Block, Field, OwnRecord
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, beside, leaves, map_leaves, namespace, on_host
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round
from mpifed.data.block import without_rows
from mpifed.maths.arrays import assign, power_of_two
from mpifed.maths.clipping import clip_record, clipped_gradient, gradient_alone, has_own_code, record_factors
from mpifed.maths.objectives import LinearScores
from mpifed.maths.parameters import Parameters
from mpifed.maths.privacy.mechanism import Mechanism, may_be_narrow, mechanism, release
from mpifed.maths.privacy.release import Release
from mpifed.maths.privacy.settings import Privacy
from mpifed.maths.problem import Weighted, mean
from mpifed.privacy.open import Minibatch, Open

Floats = NDArray[np.float64]
SERVER = np.array([-1])  # whose noise the server's is
_LARGEST = 1e18  # norm of a model


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
        with np.errstate(over="ignore", invalid="ignore"):
            norm = float(np.linalg.norm(model))
        if self.privacy.on_grid and not norm < _LARGEST:
            raise NumericalError(
                f"[algorithm]: the model has a norm of {norm:.3g}, with which nothing private can be computed: it must "
                f"be below {_LARGEST:.3g}; lower the step size"
            )

    def conflicts(self) -> Iterator[Refusal]:
        problem = self.problem
        if not self.privacy.public_preparation:  # else no network is built for it
            undrawn = problem.objective.undrawn_parameter(problem.features, problem.outputs)
            yield Refusal(
                undrawn,
                "[model] build",
                f'"{undrawn}" is the same whatever the seed, as weights that were trained are, and what these have '
                "learned of the data is counted by no epsilon",
                "give a function that draws it, or where it is public [privacy] public_preparation = true",
            )
        yield Refusal(
            self.work.several and not self.privacy.on_gradients,
            "[privacy]",
            "noise on the upload is for uploads of one part, shaped like the model; this method's is not",
            'take level = "sample", noise = "secure"',
        )
        if self.privacy.on_grid:
            yield self.how.too_wide(self.problem.clients if self.privacy.whole else 1)


@dataclass(frozen=True, eq=False)
class _Clipped(_Private):
    """Local steps go along clipped gradients."""

    clips = True

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
        gain, total, reach = -step / self.work.batch, self.clipped(at, batch), self.privacy.reach
        if self.privacy.on_gradients and self.privacy.on_grid:
            each, sigma = np.full(len(clients), 1 / reach), self.how.sigma
            purpose, unit = f"gradient {r}", gain * reach
            assign(out, on_grid(self.how, purpose, total, each, sigma, clients, now, unit, self.dtype))
        else:
            map_leaves(lambda there, leaf: namespace(leaf).multiply(leaf, gain, out=there), out, total)


@dataclass(frozen=True, eq=False)
class NoisyGradients(_Clipped):
    """Noise on every clipped gradient, by each client: all that follows is processing of what is released."""

    draws = "anew"

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
        objective = self.problem.objective
        if not has_own_code(objective):
            return super().put_step(at, batch, step, r, clients, now, out)
        at = self.of_clients(at)
        for i in range(len(clients)):
            own = map_leaves(lambda leaf, i=i: leaf[[i % len(leaf)]], at)
            found = gradient_alone(objective, own, *[part[i : i + 1] for part in batch.arguments])
            assign(map_leaves(lambda leaf, i=i: leaf[i : i + 1], out), found)

    def fields(self, like: Record, degrees: Record) -> Weighted:
        fields = super().fields(like, degrees)
        if not self.privacy.whole:
            return fields
        bound = power_of_two(self.how.bound)
        return fields._replace(value=map_leaves(lambda leaf: Field(np.shape(leaf), 1.0, bound, whole=True), like))

    def leave(self, uploaded: OwnRecord, step: float, block: Block, now: Round) -> tuple[OwnRecord, OwnRecord]:
        """Where integers are summed, they leave the client."""
        privacy, record, sigma, clients = self.privacy, self.record(uploaded), self.how.sigma, block.clients
        if not privacy.on_grid:
            clipped = clip_record(record, privacy.bound)
            left = self.layout.flat(map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), clipped))
            return left, left
        each = np.full(len(clients), 1 / privacy.bound) * on_host(record_factors(record, privacy.bound))
        gain, dtype = (None, "float64") if privacy.whole else (privacy.bound, self.problem.dtype)
        if privacy.whole:
            sigma *= 0.0 if privacy.trust == "central" else 1 / np.sqrt(now.fewest)  # of the sum's noise
        left = self.layout.flat(on_grid(self.how, "upload", record, each, sigma, clients, now, gain, dtype))
        if not (privacy.whole and self.work.remembers):
            return left, left
        return left, (left * (privacy.bound * 2.0**-self.how.exponent)).astype(self.problem.dtype)

    def present(self, total: Weighted) -> float:
        """Under Poisson sampling its expectation, as the sum is secret."""
        if self.privacy.by_coins:
            return float(self.problem.clients_per_round or self.problem.clients)
        return super().present(total)

    def arrive(self, total: Weighted, step: float, now: Round) -> OwnRecord:
        """The mean, plus the server's noise where trust is "central"."""
        if self.privacy.trust == "local":
            return mean(total)
        value, how = np.asarray(total.value)[None], self.how.of_sum()
        if self.privacy.on_grid:
            factor = np.array([2.0**-how.exponent])  # the sum is in steps of the grid
            sigma = how.sigma if self.privacy.trust == "central" else 0.0
            unit, dtype = self.privacy.bound, self.problem.dtype
            value = self.layout.flat(
                on_grid(how, "server", self.record(value), factor, sigma, SERVER, now, unit, dtype)
            )
        return mean(Weighted(value[0], np.array(self.present(total))))

    def released(self) -> Release:
        ones = np.ones(self.problem.clients)
        per_round = self.problem.clients_per_round or self.problem.clients
        secret = self.privacy.by_coins and not self.work.remembers and per_round < self.problem.clients
        rate = ones * per_round / self.problem.clients if secret else ones
        return Release(1, self.multiplier, rate, by_chance=secret)


@dataclass(frozen=True, eq=False)
class PaperUploads(_Clipped):
    """Noise in floats on each upload, after local steps along clipped gradients, for the sensitivity of (19)."""

    dtype = "float64"  # type: ignore[assignment]  # whatever the job's is

    def contraction(self, step: float) -> float:
        """The Lipschitz constant of a local step's public part: the largest over the parts, mapped separately.

        The curvature of the penalty that is not convex is -beta/2 to 2 beta; intercepts do not have it.
        """
        l2, beta = 2 * float(self.problem.objective.l2), self.problem.objective.nonconvex_penalty
        pull, decay, layout = self.work.pull, self.work.optimizer.weight_decay, self.layout
        keep, least = 1 - step * (pull + l2 + decay), 0.0
        if layout.penalized.stop:
            least = max(abs(keep - 2 * step * beta), abs(keep + step * beta / 2))
        return max(least, abs(1 - step * (pull + decay))) if layout.penalized.stop < layout.size else least

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
        """Noise is drawn in memory, the same for every device; it gives no privacy guarantee."""
        record = map_leaves(lambda leaf: leaf.astype(self.problem.dtype, copy=False), self.record(uploaded))
        spread, names = self.privacy.multiplier * self.sensitivity(step), (name for name, _ in leaves(record))

        def noisy(leaf: Array) -> Array:
            noise = now.normals(f"upload {next(names)}", block.clients, leaf.shape[1:], leaf.dtype.name)
            noise *= noise.dtype.type(spread)
            return leaf + beside(leaf, noise)

        left = self.layout.flat(map_leaves(noisy, record) if spread else record)
        return left, left

    def released(self) -> Release:
        drawn = np.minimum(1.0, self.work.taken * np.minimum(1.0, self.work.batch / self.problem.counts))
        return Release(1, self.multiplier, drawn, paper_rate=drawn)

    def conflicts(self) -> Iterator[Refusal]:
        work, upload, other = self.work, '[privacy] noise = "paper"', 'take noise = "secure", or level = "client"'
        smallest, rows = int(np.argmin(self.problem.counts)), work.taken * work.batch
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
        kept = work.hidden and f"clients keep {work.hidden}, which depends on past records"
        unknown = work.gain is None and not work.several and not work.optimizer.special
        yield Refusal(
            kept or unknown,
            upload,
            "how far one record moves an upload is not known of this method: "
            + (kept or "its class has no `gain` beside its `upload`, `begin`, `push` and `renew`"),
            other,
        )
        yield from super().conflicts()


def kind_of(privacy: Privacy) -> type[Open]:
    """The class of a private job's guard."""
    if privacy.on_gradients:
        return NoisyGradients
    return PaperUploads if privacy.by_paper else NoisyUploads


def on_grid(
    how: Mechanism, purpose: str, record: AnyRecord, each: Floats, sigma: float, clients: NDArray[np.int64], now: Round,
    gain: float | None, dtype: str,
) -> AnyRecord:  # fmt: skip
    """Each client's part of `record`, leaves [n, ...], times `each` [n], released; see `mechanism.release`."""
    parts, n = bare_leaves(record), len(clients)
    values = np.concatenate([on_host(leaf).reshape(n, -1) for leaf in parts], axis=1)
    noisy = np.empty(values.shape, dtype)
    one = now.secure and np.all(each == each[0])  # whose noise is whose does not matter
    rows, out = (array.reshape(1 if one else n, -1) for array in (values, noisy))
    for i, row in enumerate(rows):
        release(how, row, float(each[i]), sigma, now.words(purpose, int(clients[i])), gain, out[i])
    left = iter(np.split(noisy, np.cumsum([leaf[0].size for leaf in parts])[:-1], axis=1))
    return map_leaves(lambda leaf: beside(leaf, next(left).reshape(leaf.shape)), record)
