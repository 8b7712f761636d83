"""The floor of the benchmarks: federated training written by hand with mpi4py and NumPy, for speed and nothing else.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/handwritten.py 1 300 DATA

Network 784-128-10 without biases, swish and softmax cross-entropy, penalty 1e-5 ||w||^2, all in float32 and in memory.
Every rank repeats the server's update, so that a round has one Allreduce of one flat buffer. The cases are those of
case1.toml, alg2.toml ... beside this file; DATA holds one shard-*.npz a client (x [s, p], y [s]), all of one size;
those split by columns are in handwritten_columns.py. Rank 0 prints one line of JSON. No code is shared with mpifed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from floor import Array, Exact, Network, Server, descend, glorot, layers, mean_loss, own_shards, timed
from mpi4py import MPI
from numpy.typing import NDArray

CHUNK = 1000  # most rows of one product: more leave the cache, fewer make poor products; whole minibatches of all cases


class Case(NamedTuple):
    """The work of one round."""

    algorithm: str
    batch: int
    step: tuple[float, float] = (0.5, 0.1)  # (a, alpha) of a / t^alpha
    clients_per_round: int = 0  # 0: all of them
    limited: bool = False  # SSCA: minimize ||w||^2 subject to loss <= LIMIT; otherwise the loss and its penalty
    points: int = 1  # products: models at which the minibatch is scored, for one gradient
    groups: tuple[float, ...] = (1.0,)  # products: shares of the rows that each function counts
    exact: bool = False  # every client's gradient is rounded to a grid and added as integers


CASES = {
    "1": Case("ssca", batch=100),
    "1-exact": Case("ssca", batch=100, exact=True),
    "1-products": Case("products", batch=100),  # the matrix products of case 1 and nothing else
    "1-recursive-products": Case("products", batch=100, points=2),
    "1-fedsgd": Case("fedsgd", batch=100),
    "2": Case("fedavg", batch=30, step=(0.1, 0.0), clients_per_round=5),
    "3": Case("fedsgd", batch=10),
    "3-exact": Case("fedsgd", batch=10, exact=True),
    "alg2": Case("ssca", batch=100, limited=True),
    "alg2-products": Case("products", batch=100),
    "alg2-groups-products": Case("products", batch=100, groups=(0.3, 0.3, 0.4)),
}


class Shards(NamedTuple):
    """The clients of this rank, one after the other."""

    X: Array  # [n * s, p]
    y: NDArray[np.int64]  # [n * s]
    first: int  # number of the first client here
    clients: int  # n
    samples: int  # s, of each client
    all_clients: int  # N, over all ranks


def networks(rows: int, most: int, features: int) -> dict[int, Network]:
    """Buffers for every size of part met when `rows` are taken `most` at a time."""
    return {size: Network(size, features) for size in {min(rows, most), rows % most} if size}


def load(folder: Path, comm: MPI.Comm) -> Shards:
    paths, first, all_clients = own_shards(folder, comm)
    with np.load(paths[0]) as shard:
        samples, features = shard["x"].shape
    X = np.empty((len(paths) * samples, features), np.float32)
    y = np.empty(len(X), np.int64)
    for client, path in enumerate(paths):
        rows = slice(client * samples, (client + 1) * samples)
        with np.load(path) as shard:
            X[rows], y[rows] = shard["x"], shard["y"]
    return Shards(X, y, first, len(paths), samples, all_clients)


def minibatch(rng: np.random.Generator, here: Shards, batch: int) -> NDArray[np.int64]:
    """The rows [n * batch] of a draw without replacement at each client."""
    if here.samples > 1000:  # 5 us a client, against 4 ns a sample
        drawn = [rng.choice(here.samples, batch, replace=False, shuffle=False) for _ in range(here.clients)]
        chosen = np.stack(drawn)
    else:
        keys = rng.random((here.clients, here.samples), dtype=np.float32)
        chosen = np.argpartition(keys, batch, axis=1)[:, :batch]
    return (chosen + here.samples * np.arange(here.clients)[:, None]).ravel()


def one_step(case: Case, here: Shards, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of one minibatch gradient at every client: SSCA Algorithm 1 or 2, or FedSGD; w is updated in place."""
    features = here.X.shape[1]
    rng = np.random.default_rng([2, comm.rank])
    sized = networks(here.clients * case.batch, CHUNK, features)
    message, scratch = np.zeros((2, w.size + 1), np.float32)  # gradient, and loss where it is limited
    g, server = message[:-1], Server(w)
    weights, slopes, further = layers(w, features), layers(message, features), layers(scratch, features)
    everybody = case.batch * here.all_clients
    factor = 1 / everybody  # N_i / (B N)
    exact = Exact(w.size if case.exact else 0)

    def chunks(rows: NDArray[np.int64]) -> Iterator[tuple[int, Network, NDArray[np.int64]]]:
        """(number of the first row, a network with the rows in x, their labels)."""
        for first in range(0, len(rows), CHUNK):
            part = rows[first : first + CHUNK]
            network = sized[len(part)]
            np.take(here.X, part, axis=0, out=network.x, mode="clip")
            yield first, network, here.y[part]

    def sum_of_floats(rows: NDArray[np.int64]) -> None:
        message[-1] = 0
        for first, network, y in chunks(rows):
            right = network.gradient(weights, network.x, y, factor, out=further if first else slopes)
            if first:
                np.add(g, scratch[:-1], out=g)
            if case.limited:
                message[-1] += mean_loss(right, everybody)
        comm.Allreduce(MPI.IN_PLACE, message)

    def exact_sum(rows: NDArray[np.int64]) -> None:
        for first, network, y in chunks(rows):
            network.backward(weights, network.x, y, factor)
            for client in range(0, len(y), case.batch):
                network.pull(network.x, slice(client, client + case.batch), slopes)
                exact.add(g, 0 if first or client else here.clients)
        exact.total(comm, g)

    def play(t: int) -> None:
        rows = minibatch(rng, here, case.batch)
        (exact_sum if case.exact else sum_of_floats)(rows)
        if case.algorithm == "ssca":
            server.step(t, g, float(message[-1]) if case.limited else None)
        else:
            step = case.step[0] / t ** case.step[1]
            np.multiply(g, -step, out=g)
            descend(w, g, step)

    return play


def products(case: Case, here: Shards, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of the matrix products of a step alone, each function's over the rows that it counts."""
    rows, features = here.clients * case.batch, here.X.shape[1]
    network = Network(rows, features)
    for buffer in (network.x, network.h, network.dh, network.q):
        buffer[:] = 0.5
    w1, w2 = layers(w, features)
    ends = np.round(rows * np.cumsum((0, *case.groups))).astype(int).tolist()
    parts = [slice(*some) for some in pairwise(ends)]
    slopes = [(np.empty_like(w1), np.empty_like(w2)) for _ in parts]

    def play(t: int) -> None:
        for _ in range(case.points):
            np.matmul(network.x, w1, out=network.z)
            np.matmul(w2.T, network.h.T, out=network.q)
            for part, (_, second) in zip(parts, slopes, strict=True):
                np.matmul(network.h[part].T, network.q[:, part].T, out=second)
                np.matmul(network.q[:, part].T, w2.T, out=network.dh[part])
        for part, (first, _) in zip(parts, slopes, strict=True):
            np.matmul(network.x[part].T, network.dh[part], out=first)

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


def measure(case: Case, rounds: int, folder: Path, comm: MPI.Comm) -> dict[str, Any]:
    """The results of a case, with the losses before and after."""
    here = load(folder, comm)
    w = glorot(here.X.shape[1])
    start_loss = train_loss(here, w, comm)
    start = {"products": products, "fedavg": local_epoch}.get(case.algorithm, one_step)
    found = timed(start(case, here, w, comm), rounds, comm)
    return found | {"start_loss": start_loss, "train_loss": train_loss(here, w, comm)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("rounds", type=int)
    parser.add_argument("data", type=Path, help="folder of shard-*.npz")
    given = parser.parse_args()
    result = measure(CASES[given.case], given.rounds, given.data, MPI.COMM_WORLD)
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"case": given.case} | result))


if __name__ == "__main__":
    main()
