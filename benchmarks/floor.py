"""What the hand-written loops of the benchmarks share: the network, SSCA's update, the clock."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array = NDArray[np.float32]

HIDDEN, CLASSES, PENALTY = 128, 10, 1e-5
TAU, RHO, GAMMA = 0.1, (0.9, 0.3), (0.9, 0.35)  # SSCA: (a, alpha) of a / t^alpha
LIMIT, COST = 0.13, 1e5  # of the constraint, and of its slack
WARM_UP = 10  # rounds that are not timed


class Network:
    """Loss and gradient at `rows` samples at once, in buffers that are reused."""

    def __init__(self, rows: int, features: int) -> None:
        self.x = np.empty((rows, features), np.float32)
        self.z, self.s, self.h, self.dh = np.empty((4, rows, HIDDEN), np.float32)
        self.q = np.empty((CLASSES, rows), np.float32)  # classes first: reductions over them run along memory
        self.columns = np.arange(rows)

    def scores(self, x: Array, w1: Array) -> None:
        """Puts what enters the hidden cells into z."""
        np.matmul(x, w1, out=self.z)

    def forward(self, w1: Array, w2: Array, x: Array) -> Array:
        """The probabilities [classes, rows] of `x`; leaves z, S(z) and the sigmoid for the gradient."""
        self.scores(x, w1)
        np.multiply(self.z, 0.5, out=self.s)
        np.tanh(self.s, out=self.s)
        self.s += 1
        self.s *= 0.5
        np.multiply(self.z, self.s, out=self.h)
        np.matmul(w2.T, self.h.T, out=self.q)
        self.q -= self.q.max(axis=0)
        np.exp(self.q, out=self.q)
        self.q /= self.q.sum(axis=0)
        return self.q

    def gradient(
        self, w: tuple[Array, Array], x: Array, y: NDArray[np.int64], factor: float, out: tuple[Array, Array]
    ) -> Array:
        """Puts `factor` times the summed gradient of the cross-entropy of `x`, `y` into `out`; [rows] exp(-loss)."""
        right = self.backward(w, x, y, factor)
        self.pull(x, slice(None), out)
        return right

    def backward(self, w: tuple[Array, Array], x: Array, y: NDArray[np.int64], factor: float) -> Array:
        """Leaves `factor` times the derivatives of the cross-entropy by q and z in q and dh; [rows] exp(-loss)."""
        q = self.forward(*w, x)
        right = q[y, self.columns]
        q[y, self.columns] = right - 1
        q *= factor
        np.matmul(q.T, w[1].T, out=self.dh)
        np.subtract(1, self.s, out=self.z)  # S'(z) = s + S(z) (1 - s)
        self.z *= self.h
        self.z += self.s
        self.dh *= self.z
        return right

    def pull(self, x: Array, rows: slice, out: tuple[Array, Array]) -> None:
        """Puts the gradient of some rows into `out`, from what `backward` has left."""
        np.matmul(self.h[rows].T, self.q[:, rows].T, out=out[1])
        np.matmul(x[rows].T, self.dh[rows], out=out[0])


def layers(flat: Array, features: int) -> tuple[Array, Array]:
    """The two weight matrices as views of one flat buffer."""
    first, second, _ = np.split(flat, [features * HIDDEN, (features + CLASSES) * HIDDEN])
    return first.reshape(features, HIDDEN), second.reshape(HIDDEN, CLASSES)


def glorot(features: int) -> Array:
    """The start [d], alike on every rank."""
    rng, w = np.random.default_rng(1), np.empty((features + CLASSES) * HIDDEN, np.float32)
    for layer in layers(w, features):
        layer[:] = rng.uniform(-1, 1, layer.shape) * (6 / sum(layer.shape)) ** 0.5
    return w


def mean_loss(right: Array, rows: int) -> float:
    """The part of a mean over `rows` that belongs to samples of which exp(-loss) is given."""
    return float(-np.log(np.maximum(right, 1e-30)).sum() / rows)


class Server:
    """SSCA's update of the model, in place. `counted`: the part of it whose squares this rank adds up."""

    def __init__(self, w: Array, counted: slice = slice(None), comm: MPI.Comm = MPI.COMM_SELF) -> None:
        self.w, self.counted, self.comm = w, counted, comm
        self.f, self.scratch = np.zeros((2, w.size), np.float32)  # the surrogate's tracked linear term; scratch
        self.constant = 0.0

    def step(self, t: int, g: Array, loss: float | None = None) -> None:
        """From the gradient `g`, and of constrained problems the loss; `g` is overwritten."""
        rho, gamma = RHO[0] / t ** RHO[1], GAMMA[0] / t ** GAMMA[1]
        self.f *= 1 - rho  # (14), (15) and beta of (12) in one term
        g *= rho
        self.f += g
        np.multiply(self.w, 2 * rho * ((PENALTY if loss is None else 0) - TAU), out=self.scratch)
        self.f += self.scratch
        factor = 1 / (2 * TAU) if loss is None else self.limited(rho, g, loss)
        np.multiply(self.f, -gamma * factor, out=self.scratch)  # (16), (17)
        self.w *= 1 - gamma
        self.w += self.scratch

    def limited(self, rho: float, g: Array, loss: float) -> float:
        """The factor of -f in the solution of (38), by Lemma 1."""
        w, g, f = self.w[self.counted], g[self.counted], self.f[self.counted]
        dots = np.array([np.dot(g, w), np.dot(w, w), np.dot(f, f)], np.float64)
        if self.comm.size > 1:
            self.comm.Allreduce(MPI.IN_PLACE, dots)
        self.constant = (1 - rho) * self.constant + rho * (loss + TAU * dots[1]) - dots[0]  # (39)
        level, square = self.constant - LIMIT, dots[2]
        if level <= 0:
            return 0.0
        root = max(square - 4 * TAU * level, 0.0) ** 0.5
        nu = min(COST, 4 * level / (root * (square**0.5 + root))) if root else COST  # (42)
        return nu / (2 * (1 + nu * TAU))


class Exact:
    """Sums of float32 vectors as int64 on the grid of 2^-40, each rounded by itself, as in mpifed's exact sums.

    Adding 1.5 * 2^52 * 2^-40 in float64 rounds a number to the grid and leaves its integer in the low bits.
    """

    CONSTANT = 1.5 * 2.0**12
    BITS = int(np.float64(CONSTANT).view(np.int64))

    def __init__(self, size: int) -> None:
        self.wide, self.message = np.empty(size), np.empty(size, np.int64)

    def add(self, values: Array, first_of: int = 0) -> None:
        """Adds `values`; the first of so many begins anew, and takes away what all of them will leave."""
        np.copyto(self.wide, values)
        self.wide += self.CONSTANT
        coded = self.wide.view(np.int64)
        if first_of:
            np.add(coded, (-first_of * self.BITS + 2**63) % 2**64 - 2**63, out=self.message)
        else:
            self.message += coded

    def total(self, comm: MPI.Comm, out: Array) -> None:
        """Puts the sum over all ranks into `out`."""
        comm.Allreduce(MPI.IN_PLACE, self.message)
        np.copyto(out, self.message, casting="same_kind")
        out *= 2.0**-40


def own_shards(folder: Path, comm: MPI.Comm) -> tuple[list[Path], int, int]:
    """(files of this rank's clients, an even share of neighbours; number of the first of them; clients in all)."""
    paths = sorted(folder.glob("shard-*.npz"))
    if len(paths) < comm.size:
        raise SystemExit(f"{folder}: {len(paths)} shards for {comm.size} ranks; let benchmarks/bench.py prepare them")
    first, end = (len(paths) * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    return paths[first:end], first, len(paths)


def descend(w: Array, change: Array, step: float) -> None:
    """A gradient step; `change` is -step times the gradient of the data term."""
    w *= 1 - 2 * PENALTY * step
    w += change


def peak_rss_bytes() -> int:
    """The largest resident memory of this process so far."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timed(play: Callable[[int], None], rounds: int, comm: MPI.Comm, warm_up: int = WARM_UP) -> dict[str, Any]:
    """Plays warm-up and `rounds` timed rounds; the results, over all ranks."""
    for t in range(1, warm_up + 1):
        play(t)
    comm.Barrier()
    marks, cpu_s = [time.perf_counter()], -time.process_time()
    for t in range(warm_up + 1, warm_up + rounds + 1):
        play(t)
        marks.append(time.perf_counter())
    cpu_s += time.process_time()
    median_s = float(np.median(np.diff(marks)))
    return {
        "ranks": comm.size,
        "rounds": rounds,
        "rounds_per_second": 1 / median_s,
        "seconds_per_round": median_s,
        "cpu_s_per_round": comm.allreduce(cpu_s) / rounds,
        "peak_rss_bytes": comm.allreduce(peak_rss_bytes(), MPI.MAX),
    }
