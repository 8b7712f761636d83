"""The floor of the benchmarks: federated training written by hand with mpi4py and NumPy, for speed and nothing else.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/handwritten.py 1 300 DATA

Network 784-128-10 without biases, swish and softmax cross-entropy, penalty 1e-5 ||w||^2, all in float32 and in memory.
Every rank repeats the server's update, so that a round has one Allreduce of one flat buffer. The cases are those of
case1.toml ... beside this file; DATA holds one shard-*.npz a client (x [s, p], y [s]), all of one size. Rank 0 prints
one line of JSON. No code is shared with mpifed.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array = NDArray[np.float32]

HIDDEN, CLASSES, PENALTY = 128, 10, 1e-5
TAU, RHO, GAMMA = 0.1, (0.9, 0.3), (0.9, 0.35)  # SSCA: (a, alpha) of a / t^alpha
CHUNK = 1000  # most rows of one product: more leave the cache, fewer make poor products
WARM_UP = 10  # rounds that are not timed


class Case(NamedTuple):
    """The work of one round."""

    algorithm: str
    batch: int
    step: tuple[float, float] = (0.5, 0.1)  # (a, alpha) of a / t^alpha
    clients_per_round: int = 0  # 0: all of them


CASES = {
    "1": Case("ssca", batch=100),
    "1-products": Case("products", batch=100),  # the matrix products of case 1 and nothing else
    "1-fedsgd": Case("fedsgd", batch=100),
    "2": Case("fedavg", batch=30, step=(0.1, 0.0), clients_per_round=5),
    "3": Case("fedsgd", batch=10),
}


class Shards(NamedTuple):
    """The clients of this rank, one after the other."""

    X: Array  # [n * s, p]
    y: NDArray[np.int64]  # [n * s]
    first: int  # number of the first client here
    clients: int  # n
    samples: int  # s, of each client
    all_clients: int  # N, over all ranks


class Network:
    """Loss and gradient at `rows` samples at once, in buffers that are reused."""

    def __init__(self, rows: int, features: int) -> None:
        self.x = np.empty((rows, features), np.float32)
        self.z, self.s, self.h, self.dh = np.empty((4, rows, HIDDEN), np.float32)
        self.q = np.empty((CLASSES, rows), np.float32)  # classes first: reductions over them run along memory
        self.columns = np.arange(rows)

    def forward(self, w1: Array, w2: Array, x: Array) -> Array:
        """The probabilities [classes, rows] of `x`; leaves z, S(z) and the sigmoid for the gradient."""
        np.matmul(x, w1, out=self.z)
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
    ) -> None:
        """Puts `factor` times the summed gradient of the cross-entropy of `x`, `y` into `out`."""
        q = self.forward(*w, x)
        q[y, self.columns] -= 1
        q *= factor
        np.matmul(self.h.T, q.T, out=out[1])
        np.matmul(q.T, w[1].T, out=self.dh)
        np.subtract(1, self.s, out=self.z)  # S'(z) = s + S(z) (1 - s)
        self.z *= self.h
        self.z += self.s
        self.dh *= self.z
        np.matmul(x.T, self.dh, out=out[0])


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


def networks(rows: int, most: int, features: int) -> dict[int, Network]:
    """Buffers for every size of part met when `rows` are taken `most` at a time."""
    return {size: Network(size, features) for size in {min(rows, most), rows % most} if size}


def load(folder: Path, comm: MPI.Comm) -> Shards:
    """The shards of this rank's clients: an even share of neighbours."""
    paths = sorted(folder.glob("shard-*.npz"))
    if len(paths) < comm.size:
        raise SystemExit(f"{folder}: {len(paths)} shards for {comm.size} ranks; let benchmarks/bench.py prepare them")
    first, end = (len(paths) * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    with np.load(paths[0]) as shard:
        samples, features = shard["x"].shape
    X = np.empty(((end - first) * samples, features), np.float32)
    y = np.empty(len(X), np.int64)
    for client, path in enumerate(paths[first:end]):
        rows = slice(client * samples, (client + 1) * samples)
        with np.load(path) as shard:
            X[rows], y[rows] = shard["x"], shard["y"]
    return Shards(X, y, first, end - first, samples, len(paths))


def minibatch(rng: np.random.Generator, here: Shards, batch: int) -> NDArray[np.int64]:
    """The rows [n * batch] of a draw without replacement at each client."""
    if here.samples > 1000:  # 5 us a client, against 4 ns a sample
        drawn = [rng.choice(here.samples, batch, replace=False, shuffle=False) for _ in range(here.clients)]
        chosen = np.stack(drawn)
    else:
        keys = rng.random((here.clients, here.samples), dtype=np.float32)
        chosen = np.argpartition(keys, batch, axis=1)[:, :batch]
    return (chosen + here.samples * np.arange(here.clients)[:, None]).ravel()


def ssca(t: int, w: Array, g: Array, f: Array, scratch: Array) -> None:
    """The update of Algorithm 1 from the summed gradient `g`; `f` is the surrogate's tracked linear term."""
    rho, gamma = RHO[0] / t ** RHO[1], GAMMA[0] / t ** GAMMA[1]
    f *= 1 - rho  # (14), (15) and beta of (12) in one term
    g *= rho
    f += g
    np.multiply(w, 2 * rho * (PENALTY - TAU), out=scratch)
    f += scratch
    np.multiply(f, -gamma / (2 * TAU), out=scratch)  # (16), (17)
    w *= 1 - gamma
    w += scratch


def descend(w: Array, change: Array, step: float) -> None:
    """A gradient step; `change` is -step times the gradient of the data term."""
    w *= 1 - 2 * PENALTY * step
    w += change


def one_step(case: Case, here: Shards, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of one minibatch gradient at every client: SSCA Algorithm 1 or FedSGD; w is updated in place."""
    features = here.X.shape[1]
    rng = np.random.default_rng([2, comm.rank])
    sized = networks(here.clients * case.batch, CHUNK, features)
    g, f, scratch = np.zeros((3, w.size), np.float32)  # gradient; tracked linear term; scratch
    weights, slopes, further = (layers(flat, features) for flat in (w, g, scratch))
    factor = 1 / (case.batch * here.all_clients)  # N_i / (B N)

    def play(t: int) -> None:
        rows = minibatch(rng, here, case.batch)
        for first in range(0, len(rows), CHUNK):
            part = rows[first : first + CHUNK]
            network = sized[len(part)]
            np.take(here.X, part, axis=0, out=network.x, mode="clip")
            network.gradient(weights, network.x, here.y[part], factor, out=further if first else slopes)
            if first:
                np.add(g, scratch, out=g)
        comm.Allreduce(MPI.IN_PLACE, g)
        if case.algorithm == "ssca":
            ssca(t, w, g, f, scratch)
        else:
            step = case.step[0] / t ** case.step[1]
            np.multiply(g, -step, out=g)
            descend(w, g, step)

    return play


def products(case: Case, here: Shards, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of the matrix products of `one_step` alone."""
    network = Network(here.clients * case.batch, here.X.shape[1])
    for buffer in (network.x, network.h, network.dh, network.q):
        buffer[:] = 0.5
    w1, w2 = layers(w, here.X.shape[1])
    slopes = np.empty_like(w1), np.empty_like(w2)

    def play(t: int) -> None:
        np.matmul(network.x, w1, out=network.z)
        np.matmul(w2.T, network.h.T, out=network.q)
        np.matmul(network.h.T, network.q.T, out=slopes[1])
        np.matmul(network.q.T, w2.T, out=network.dh)
        np.matmul(network.x.T, network.dh, out=slopes[0])

    return play


def local_epoch(case: Case, here: Shards, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of FedAvg with one epoch of SGD at the drawn clients; w is updated in place."""
    features = here.X.shape[1]
    shared, rng = np.random.default_rng(3), np.random.default_rng([2, comm.rank])
    sized = networks(here.samples, case.batch, features)
    epoch = np.empty((here.samples, features), np.float32)
    local, change = np.empty((2, w.size), np.float32)
    total = np.empty(w.size + 1, np.float32)  # weighted models, and the weight
    weights, changes = layers(local, features), layers(change, features)

    def play(t: int) -> None:
        step = case.step[0] / t ** case.step[1]
        total[:] = 0
        for client in shared.choice(here.all_clients, case.clients_per_round, replace=False) - here.first:
            if not 0 <= client < here.clients:
                continue
            rows = client * here.samples + rng.permutation(here.samples)
            np.take(here.X, rows, axis=0, out=epoch, mode="clip")
            y = here.y[rows]
            local[:] = w
            for first in range(0, here.samples, case.batch):
                batch = slice(first, first + case.batch)
                size = len(y[batch])
                sized[size].gradient(weights, epoch[batch], y[batch], -step / size, out=changes)
                descend(local, change, step)
            np.multiply(local, here.samples, out=change)
            total[:-1] += change
            total[-1] += here.samples
        comm.Allreduce(MPI.IN_PLACE, total)
        np.divide(total[:-1], total[-1], out=w)

    return play


def train_loss(here: Shards, w: Array, comm: MPI.Comm) -> float:
    """The mean cross-entropy over all samples of all ranks."""
    features, summed = here.X.shape[1], 0.0
    for first in range(0, len(here.X), 1000):
        x, y = here.X[first : first + 1000], here.y[first : first + 1000]
        network = Network(len(x), features)
        probabilities = network.forward(*layers(w, features), x)[y, network.columns]
        summed -= float(np.log(np.maximum(probabilities, 1e-30)).sum(dtype=np.float64))
    return float(comm.allreduce(summed) / (here.all_clients * here.samples))


def peak_rss_bytes() -> int:
    """The largest resident memory of this process so far."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(case: Case, rounds: int, folder: Path, comm: MPI.Comm) -> dict[str, Any]:
    """Plays warm-up and `rounds` timed rounds; the results, over all ranks."""
    here = load(folder, comm)
    w = glorot(here.X.shape[1])
    start_loss = train_loss(here, w, comm)
    start = {"products": products, "fedavg": local_epoch}.get(case.algorithm, one_step)
    play = start(case, here, w, comm)
    for t in range(1, WARM_UP + 1):
        play(t)
    comm.Barrier()
    marks, cpu_s = [time.perf_counter()], -time.process_time()
    for t in range(WARM_UP + 1, WARM_UP + rounds + 1):
        play(t)
        marks.append(time.perf_counter())
    cpu_s += time.process_time()
    median_s = float(np.median(np.diff(marks)))
    return {
        "rounds_per_second": 1 / median_s,
        "seconds_per_round": median_s,
        "cpu_s_per_round": comm.allreduce(cpu_s) / rounds,
        "peak_rss_bytes": comm.allreduce(peak_rss_bytes(), MPI.MAX),
        "start_loss": start_loss,
        "train_loss": train_loss(here, w, comm),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("data", type=Path, help="folder of shard-*.npz")
    given = parser.parse_args()
    result = measure(CASES[given.case], given.rounds, given.data, MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"case": given.case, "ranks": MPI.COMM_WORLD.size, "rounds": given.rounds} | result))


if __name__ == "__main__":
    main()
