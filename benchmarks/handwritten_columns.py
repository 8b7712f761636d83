"""The floor of the benchmarks for data split by columns: SSCA Algorithms 3 and 4 by mpi4py and NumPy.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/handwritten_columns.py alg3 1000 300 DATA

The network of handwritten.py. Every rank holds the columns of its clients side by side, and its part of the first
layer, which it updates by itself: a round has one Allreduce of the scores, and with a constraint one of three numbers.
DATA holds one shard-*.npz a client (x [s, p_i], y [s]). Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from floor import CLASSES, HIDDEN, Array, Network, Server, glorot, layers, mean_loss, own_shards, timed
from mpi4py import MPI
from numpy.typing import NDArray

ALGORITHMS = ("alg3", "alg4", "products")


class Columns(NamedTuple):
    """The clients of this rank, side by side."""

    X: Array  # [s, p]
    y: NDArray[np.int64]  # [s]
    widths: list[int]  # columns of each client
    first: int  # number of the first column here
    all_columns: int


class SharedNetwork(Network):
    """Adds the scores of all ranks."""

    def __init__(self, rows: int, features: int, comm: MPI.Comm) -> None:
        super().__init__(rows, features)
        self.comm = comm

    def scores(self, x: Array, w1: Array) -> None:
        super().scores(x, w1)
        self.comm.Allreduce(MPI.IN_PLACE, self.z)


def load(folder: Path, comm: MPI.Comm) -> Columns:
    parts = []
    for path in own_shards(folder, comm)[0]:
        with np.load(path) as shard:
            parts.append(shard["x"])
            y = shard["y"]
    everywhere = comm.allgather(sum(part.shape[1] for part in parts))
    widths = [part.shape[1] for part in parts]
    return Columns(np.concatenate(parts, axis=1), y, widths, sum(everywhere[: comm.rank]), sum(everywhere))


def start(here: Columns) -> Array:
    """The start on this rank: its rows of the first layer, and all of the second."""
    first, second = layers(glorot(here.all_columns), here.all_columns)
    own = first[here.first : here.first + here.X.shape[1]]
    return np.concatenate([own.ravel(), second.ravel()])


def one_step(limited: bool, batch: int, here: Columns, w: Array, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of one minibatch gradient; w is updated in place."""
    samples, features = here.X.shape
    shared = np.random.default_rng(2)
    network, g = SharedNetwork(batch, features, comm), np.empty_like(w)
    weights, slopes = layers(w, features), layers(g, features)
    head = CLASSES * HIDDEN if comm.rank else 0  # alike on all ranks, and counted on one
    server = Server(w, slice(0, w.size - head), comm)

    def play(t: int) -> None:
        rows = shared.choice(samples, batch, replace=False, shuffle=False)
        np.take(here.X, rows, axis=0, out=network.x, mode="clip")
        right = network.gradient(weights, network.x, here.y[rows], 1 / batch, out=slopes)
        server.step(t, g, mean_loss(right, batch) if limited else None)

    return play


def products(batch: int, here: Columns, w: Array) -> Callable[[int], None]:
    """Rounds of the matrix products alone: each client's own, and once those of the head."""
    network = Network(batch, here.X.shape[1])
    for buffer in (network.h, network.dh, network.q):
        buffer[:] = 0.5
    w1, w2 = layers(w, here.X.shape[1])
    x = [np.full((batch, width), 0.5, np.float32) for width in here.widths]
    own = np.split(w1, np.cumsum(here.widths)[:-1])
    slopes, second = [np.empty_like(part) for part in own], np.empty_like(w2)

    def play(t: int) -> None:
        for features, part in zip(x, own, strict=True):
            np.matmul(features, part, out=network.z)
        np.matmul(w2.T, network.h.T, out=network.q)
        np.matmul(network.h.T, network.q.T, out=second)
        np.matmul(network.q.T, w2.T, out=network.dh)
        for features, first in zip(x, slopes, strict=True):
            np.matmul(features.T, network.dh, out=first)

    return play


def train_loss(here: Columns, w: Array, comm: MPI.Comm) -> float:
    """The mean cross-entropy over all samples."""
    features, summed = here.X.shape[1], 0.0
    for first in range(0, len(here.X), 1000):
        x, y = here.X[first : first + 1000], here.y[first : first + 1000]
        network = SharedNetwork(len(x), features, comm)
        summed += mean_loss(network.forward(*layers(w, features), x)[y, network.columns], len(here.X))
    return summed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("batch", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("data", type=Path, help="folder of shard-*.npz")
    given, comm = parser.parse_args(), MPI.COMM_WORLD
    here = load(given.data, comm)
    w = start(here)
    start_loss = train_loss(here, w, comm)
    if given.algorithm == "products":
        play = products(given.batch, here, w)
    else:
        play = one_step(given.algorithm == "alg4", given.batch, here, w, comm)
    found = timed(play, given.rounds, comm)
    losses = {"start_loss": start_loss, "train_loss": train_loss(here, w, comm)}
    if comm.rank == 0:
        print(json.dumps(found | losses))


if __name__ == "__main__":
    main()
