"""`[compression]`: what clients send in place of their uploads u, [n, d], so that it takes fewer bytes.

A compressor C is unbiased, E C(u) = u and E ||C(u) - u||^2 <= omega ||u||^2, or a contraction, ||C(u) - u||^2 <=
(1 - delta) ||u||^2; an unbiased one divided by 1 + omega is a contraction in the mean, delta = 1 / (1 + omega).
Whatever is drawn follows from the job's seed, the round and the client.

Here u is a client's upload, as a rule its change of the model, minus its step times a mean gradient.
# differs from the papers: theirs is the gradient itself, by another factor where learning rates are constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
from annotated_types import Gt, Le

from mpifed.core.record import Array, beside, on_host
from mpifed.core.round import Round
from mpifed.hyperparameters import Count, MadeByKeywords
from mpifed.maths.arrays import column
from mpifed.maths.optimizers import State

Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class Compression(MadeByKeywords):
    """A compressor of uploads, and what it remembers of those before."""

    memory: Literal["none", "error-feedback", "ef21", "ef21-sgdm", "diana"] = "none"
    """What clients keep, so that the model still comes to the optimum. error-feedback: what was left out is added to
    the next upload (S. P. Karimireddy et al., arXiv:1901.09847); ef21: only the change from the last estimate travels
    (P. Richtarik, I. Sokolov, I. Fatkhullin, arXiv:2106.05203); ef21-sgdm: that of a mean over rounds, for minibatches
    (I. Fatkhullin, A. Tyurin, P. Richtarik, arXiv:2305.15155); diana: the difference from a slow mean, with unbiased
    compressors (K. Mishchenko et al., arXiv:1901.09269)."""
    alpha: Share | None = None
    """How much of a new upload enters the mean of ef21-sgdm (0.1 where absent) or diana (the most that is proven,
    1 / (1 + omega))."""

    unbiased: ClassVar[bool] = True

    def omega(self, d: int) -> float:
        """The bound of an unbiased compressor's variance."""
        return 0.0

    def bits(self, d: int, width: int) -> int:
        """The length of a client's message, without entropy coding, where numbers have so many bits."""
        raise NotImplementedError

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        """[n, d] C(u), of an array in memory."""
        raise NotImplementedError

    def rate(self, d: int) -> float:
        """alpha, with its default."""
        return self.alpha or (1 / (1 + self.omega(d)) if self.memory == "diana" else 0.1)

    @property
    def counts_absent(self) -> bool:
        """Whether the server's estimate is of all clients, and so changes by those present alone."""
        return self.memory in ("ef21", "ef21-sgdm", "diana")

    # --- memories -----------------------------------------------------------------------------------------------------

    def start(self, x: Array) -> State:
        """What one client keeps before it first takes part."""
        zeros = np.zeros_like(x)
        if self.memory == "ef21-sgdm":
            return Momentum(zeros, zeros, np.ones((), x.dtype))
        return () if self.memory == "none" else zeros

    def start_server(self, x: Array) -> State:
        """What the server keeps: the mean of the clients' estimates."""
        return np.zeros_like(x) if self.counts_absent else ()

    def send(self, u: Array, kept: State, now: Round, clients: Array) -> tuple[Array, Array, State]:
        """[n, d] what travels, [n, d] the upload as all others then know it, and what clients keep."""
        d, memory, known = u.shape[1], self.memory, kept
        if memory == "ef21-sgdm":  # v <- (1 - alpha) v + alpha u, at first u
            u, known = kept.mean + column(kept.share, u) * (u - kept.mean), kept.estimate
        told = u if memory == "none" else known + u if memory == "error-feedback" else u - known
        message = beside(u, self.compress(on_host(told), now, clients))
        if memory not in ("none", "diana"):  # which need a contraction
            message *= u.dtype.type(1 / (1 + self.omega(d)))
        if not self.counts_absent:  # e <- a - C(a)
            return message, message, kept if memory == "none" else told - message
        seen = known + message  # g <- g + C(u - g)
        if memory == "diana":  # h <- h + alpha C(u - h)
            return message, seen, known + self.rate(d) * message
        return message, seen, seen if memory == "ef21" else Momentum(u, seen, 0 * kept.share + self.rate(d))

    def receive(self, kept: State, mean: Array, share: float) -> tuple[State, Array]:
        """What the server keeps, and [d] the mean upload as it knows it, from the mean message of those present.

        Parameters
        ----------
        share : of all clients' weight that is present
        """
        if not self.counts_absent:
            return kept, mean
        if self.memory == "diana":
            return kept + self.rate(len(mean)) * share * mean, kept + mean
        estimate = kept + share * mean
        return estimate, estimate


class Momentum(NamedTuple):
    """What clients keep with ef21-sgdm."""

    mean: Array  # [n, d] v_i
    estimate: Array  # [n, d] g_i
    share: Array  # [n] of the next upload in the mean: all of the first one


# --- compressors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sparse(Compression):
    """The base of compressors that send some coordinates alone."""

    k: Count | None = None
    """How many coordinates a client sends; give this or `fraction`."""
    fraction: Share | None = None
    """Share of its coordinates that a client sends, at least one."""

    def number(self, d: int) -> int:
        """How many coordinates of d are sent."""
        return self.k or max(1, round((self.fraction or 0) * d))


@dataclass(frozen=True, kw_only=True)
class TopK(Sparse):
    """The k largest coordinates by absolute value, of equal ones the first; a contraction, delta = k / d.

    A message has k numbers in the job's dtype, each with its index of ceil(log2 d) bits.
    """

    unbiased: ClassVar[bool] = False

    def bits(self, d: int, width: int) -> int:
        return self.number(d) * (width + (d - 1).bit_length())

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        return np.stack([largest(row, self.number(u.shape[1])) for row in u])


def largest(u: Array, k: int) -> Array:
    """[d] u with its k largest numbers alone; NaN counts as the largest, so that it is noticed."""
    bits = u.view(f"i{u.itemsize}")  # which without their signs are in the order of the absolute values
    size = bits & np.iinfo(bits.dtype).max
    least = np.partition(size, len(u) - k)[len(u) - k]
    chosen = size >= least
    if more := int(np.count_nonzero(chosen)) - k:
        chosen[np.flatnonzero(size == least)[-more:]] = False
    kept: Array = np.multiply(bits, chosen, out=size).view(u.dtype)
    return kept


@dataclass(frozen=True, kw_only=True)
class RandK(Sparse):
    """k coordinates drawn uniformly, times d / k; unbiased, omega = d / k - 1.

    A message has k numbers in the job's dtype. Which coordinates they are follows from the job's seed, the round and
    the client, and so all know it: no index travels.
    """

    def omega(self, d: int) -> float:
        return d / self.number(d) - 1

    def bits(self, d: int, width: int) -> int:
        return self.number(d) * width

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        n, d = u.shape
        at, kept = now.draw("compression", clients, np.full(n, d), self.number(d)), np.zeros_like(u)
        np.put_along_axis(kept, at, np.take_along_axis(u, at, axis=1) * u.dtype.type(d / self.number(d)), axis=1)
        return kept


@dataclass(frozen=True, kw_only=True)
class QSGD(Compression):
    """Multiples of ||u|| / levels, up or down at random; unbiased, omega = min(d / levels^2, sqrt(d) / levels).

    D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnovic (NeurIPS 2017, arXiv:1610.02132). A message has ||u|| in the
    job's dtype, and a sign and a level of ceil(log2(levels + 1)) bits for each coordinate.
    # differs from the paper: levels have bits of a fixed number, where it codes frequent ones in fewer.
    """

    levels: Count
    """Levels beside 0; 1: signs and zeros."""

    def omega(self, d: int) -> float:
        return min(d / self.levels**2, math.sqrt(d) / self.levels)

    def bits(self, d: int, width: int) -> int:
        return width + d * (1 + self.levels.bit_length())

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        norm = np.linalg.norm(u.astype("f8", copy=False), axis=1, keepdims=True).astype(u.dtype).astype("f8")
        level = np.abs(u) * (self.levels / np.where(norm == 0, 1, norm))
        level = np.minimum(np.floor(level + _uniform(u, now, clients)), self.levels)
        rounded: Array = np.copysign(level * (norm / self.levels), u).astype(u.dtype)
        return rounded


@dataclass(frozen=True, kw_only=True)
class Natural(Compression):
    """Powers of two, up or down at random; unbiased, omega = 1 / 8.

    S. Horvath, C.-Y. Ho, L. Horvath, A. N. Sahu, M. Canini, P. Richtarik (2019, arXiv:1905.10988). A message has a sign
    and an exponent for each coordinate, 9 bits in float32, 12 in float64.
    """

    def omega(self, d: int) -> float:
        return 1 / 8

    def bits(self, d: int, width: int) -> int:
        return d * (1 + np.finfo(f"f{width // 8}").nexp)

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        mantissa, exponent = np.frexp(u)  # |mantissa| is 0, or from 1/2 to 1
        up = _uniform(u, now, clients) < 2 * np.abs(mantissa) - 1
        power = np.where(np.isfinite(mantissa) & (mantissa != 0), np.copysign(u.dtype.type(0.5), u), mantissa)
        rounded: Array = np.ldexp(power, exponent + up)
        return rounded


@dataclass(frozen=True, kw_only=True)
class Sign(Compression):
    """Signs times the mean absolute value; a contraction, delta = ||u||_1^2 / (d ||u||^2).

    A message has that mean in the job's dtype, and a bit for each coordinate; 0 has the sign it has in memory.
    """

    unbiased: ClassVar[bool] = False

    def bits(self, d: int, width: int) -> int:
        return width + d

    def compress(self, u: Array, now: Round, clients: Array) -> Array:
        scale = np.abs(u).mean(axis=1, keepdims=True, dtype="f8").astype(u.dtype)
        signs: Array = np.copysign(scale, u)
        return signs


def _uniform(u: Array, now: Round, clients: Array) -> Array:
    """[n, d] numbers from 0 to 1."""
    return np.stack([now.rng("compression", int(i)).random(u.shape[1], u.dtype) for i in clients])


COMPRESSORS: dict[str, type[Compression]] = {
    "top-k": TopK,
    "rand-k": RandK,
    "qsgd": QSGD,
    "natural": Natural,
    "sign": Sign,
}
