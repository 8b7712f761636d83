"""Federated training by hand with mpi4py and NumPy or PyTorch, for speed and nothing else: the floors of bench.py.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/loops.py fedsgd 100 300 DATA

DATA holds one shard-*.npz a client (x [s, p], y [s]), all of one size, which are read into memory as float32. Rank 0
prints one line of JSON. No code is shared with mpifed, but that the networks of PyTorch are those of its job.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]
Play: TypeAlias = Callable[[int], None]  # a round, of its number

HIDDEN, CLASSES, PENALTY = 128, 10, 1e-5
TAU, RHO, GAMMA = 0.1, (0.9, 0.3), (0.9, 0.35)  # SSCA: (a, alpha) of a / t^alpha
CHUNK = 1000  # most rows of one product: more leave the cache, fewer make poor products
COMM = MPI.COMM_WORLD


class Shards(NamedTuple):
    """The clients of this rank, an even share of neighbours."""

    clients: list[tuple[Array, Labels]]
    first: int  # number of the first one here
    everybody: int  # clients of all ranks

    def joined(self) -> tuple[Array, Labels]:
        """The rows of all clients here, one client after the other."""
        xs, ys = zip(*self.clients, strict=True)
        return np.concatenate(xs), np.concatenate(ys)


class Network:
    """784-128-10 without biases, swish, softmax: loss and gradient of `rows` samples in buffers that are reused."""

    def __init__(self, rows: int, features: int, comm: MPI.Comm = MPI.COMM_SELF) -> None:
        self.comm = comm  # whose ranks' scores add up
        self.x = np.empty((rows, features), np.float32)
        self.z, self.s, self.h, self.dh = np.empty((4, rows, HIDDEN), np.float32)
        self.q = np.empty((CLASSES, rows), np.float32)  # classes first: reductions over them run along memory

    def gradient(self, w: tuple[Array, Array], x: Array, y: Labels, factor: float, out: tuple[Array, Array]) -> None:
        """Puts `factor` times the summed gradient of the cross-entropy of `x`, `y` into `out`."""
        np.matmul(x, w[0], out=self.z)
        if self.comm.size > 1:
            self.comm.Allreduce(MPI.IN_PLACE, self.z)
        np.multiply(self.z, 0.5, out=self.s)
        np.tanh(self.s, out=self.s)
        self.s += 1
        self.s *= 0.5
        np.multiply(self.z, self.s, out=self.h)
        np.matmul(w[1].T, self.h.T, out=self.q)
        self.q -= self.q.max(axis=0)
        np.exp(self.q, out=self.q)
        self.q /= self.q.sum(axis=0)
        self.q[y, np.arange(len(y))] -= 1
        self.q *= factor
        np.matmul(self.q.T, w[1].T, out=self.dh)
        np.subtract(1, self.s, out=self.z)  # S'(z) = s + S(z) (1 - s)
        self.z *= self.h
        self.z += self.s
        self.dh *= self.z
        np.matmul(self.h.T, self.q.T, out=out[1])
        np.matmul(x.T, self.dh, out=out[0])


def layers(flat: Array, features: int) -> tuple[Array, Array]:
    """The two weight matrices as views of one flat buffer."""
    first, second = np.split(flat, [features * HIDDEN])
    return first.reshape(features, HIDDEN), second.reshape(HIDDEN, CLASSES)


def start(features: int) -> Array:
    """Glorot's, alike on every rank."""
    rng, w = np.random.default_rng(1), np.empty((features + CLASSES) * HIDDEN, np.float32)
    for layer in layers(w, features):
        layer[:] = rng.uniform(-1, 1, layer.shape) * (6 / sum(layer.shape)) ** 0.5
    return w


def descend(w: Array, change: Array, step: float) -> None:
    """A gradient step; `change` is -step times the gradient of the data term."""
    w *= 1 - 2 * PENALTY * step
    w += change


def ssca_of(w: Array) -> Callable[[int, Array], None]:
    """SSCA's update of a model in place, from the gradient, which is overwritten."""
    f, scratch = np.zeros((2, w.size), np.float32)

    def step(t: int, g: Array) -> None:
        rho, gamma = (a / t**alpha for a, alpha in (RHO, GAMMA))
        np.multiply(f, 1 - rho, out=f)  # (14), (15) and beta of (12) in one term
        g *= rho
        np.add(f, g, out=f)
        np.multiply(w, 2 * rho * (PENALTY - TAU), out=scratch)
        np.add(f, scratch, out=f)
        np.multiply(f, -gamma / (2 * TAU), out=scratch)  # (16), (17)
        np.multiply(w, 1 - gamma, out=w)
        np.add(w, scratch, out=w)

    return step


def one_step(here: Shards, batch: int, ssca: bool) -> Play:
    """One minibatch gradient at every client: SSCA Algorithm 1, or FedSGD."""
    X, Y = here.joined()
    count, features = len(here.clients), X.shape[1]
    samples, rng = len(X) // count, np.random.default_rng([2, COMM.rank])
    w = start(features)
    g, scratch = np.empty((2, w.size), np.float32)
    weights, slopes, further = (layers(flat, features) for flat in (w, g, scratch))
    rows_here, update = count * batch, ssca_of(w)
    networks = {size: Network(size, features) for size in {min(rows_here, CHUNK), rows_here % CHUNK} if size}

    def play(t: int) -> None:
        if samples > 1000:  # 5 us a client, against 4 ns a sample
            chosen = np.stack([rng.choice(samples, batch, replace=False, shuffle=False) for _ in range(count)])
        else:
            chosen = np.argpartition(rng.random((count, samples), dtype=np.float32), batch, axis=1)[:, :batch]
        rows = (chosen + samples * np.arange(count)[:, None]).ravel()
        for first in range(0, len(rows), CHUNK):
            part = rows[first : first + CHUNK]
            network = networks[len(part)]
            np.take(X, part, axis=0, out=network.x, mode="clip")
            network.gradient(weights, network.x, Y[part], 1 / (batch * here.everybody), further if first else slopes)
            if first:
                np.add(g, scratch, out=g)
        COMM.Allreduce(MPI.IN_PLACE, g)
        if ssca:
            update(t, g)
        else:
            step = 0.5 / t**0.1
            descend(w, np.multiply(g, -step, out=g), step)

    return play


def local_epoch(here: Shards, batch: int) -> Play:
    """FedAvg with an epoch of SGD at 5 clients."""
    X, Y = here.joined()
    count, features = len(here.clients), X.shape[1]
    samples, step = len(X) // count, 0.1
    shared, rng = np.random.default_rng(3), np.random.default_rng([2, COMM.rank])
    networks = {size: Network(size, features) for size in {min(samples, batch), samples % batch} if size}
    w, epoch = start(features), np.empty((samples, features), np.float32)
    local, change, total = np.empty((3, w.size), np.float32)
    weights, changes = layers(local, features), layers(change, features)

    def play(t: int) -> None:
        total[:] = 0
        for client in shared.choice(here.everybody, 5, replace=False) - here.first:
            if not 0 <= client < count:
                continue
            rows = client * samples + rng.permutation(samples)
            np.take(X, rows, axis=0, out=epoch, mode="clip")
            labels = Y[rows]
            local[:] = w
            for first in range(0, samples, batch):
                y = labels[first : first + batch]
                networks[len(y)].gradient(weights, epoch[first : first + batch], y, -step / len(y), changes)
                descend(local, change, step)
            np.add(total, local, out=total)
        COMM.Allreduce(MPI.IN_PLACE, total)
        np.divide(total, 5, out=w)

    return play


def columns(here: Shards, batch: int) -> Play:
    """SSCA Algorithm 3: every rank holds its clients' columns side by side and updates its part of the first layer."""
    X, Y = np.concatenate([x for x, _ in here.clients], axis=1), here.clients[0][1]
    features, shared = X.shape[1], np.random.default_rng(2)
    everywhere = COMM.allgather(features)
    first, second = layers(start(sum(everywhere)), sum(everywhere))
    left = sum(everywhere[: COMM.rank])
    w = np.concatenate([first[left : left + features].ravel(), second.ravel()])
    g, network, update = np.empty_like(w), Network(batch, features, COMM), ssca_of(w)
    weights, slopes = layers(w, features), layers(g, features)

    def play(t: int) -> None:
        rows = shared.choice(len(Y), batch, replace=False, shuffle=False)
        np.take(X, rows, axis=0, out=network.x, mode="clip")
        network.gradient(weights, network.x, Y[rows], 1 / batch, slopes)
        update(t, g)

    return play


def states(here: Shards, batch: int) -> Play:
    """FedPDM of softmax regression: 50 clients a round, 5 steps of 1 / (rho + 1/eta), each keeps model and dual."""
    X, Y = (np.stack(part) for part in zip(*here.clients, strict=True))
    count, samples, features = X.shape
    steps, rho, present = 5, 10.0, 50
    shared, rng = np.random.default_rng(3), np.random.default_rng([2, COMM.rank])
    model, total = np.zeros((2, features, CLASSES), np.float32)
    own, dual = np.zeros((2, count, features, CLASSES), np.float32)

    def play(t: int) -> None:
        step = np.float32(1 / (rho + t**0.5))
        drawn = np.sort(shared.choice(here.everybody, present, replace=False)) - here.first
        who = drawn[(drawn >= 0) & (drawn < count)]
        total[:] = 0
        if len(who):
            keys = rng.random((len(who), samples), dtype=np.float32)
            rows = np.argsort(keys, axis=1)[:, : steps * batch]
            some, labels = X[who[:, None], rows], Y[who[:, None], rows]
            x, multiplier = np.repeat(model[None], len(who), axis=0), dual[who]
            for r in range(0, steps * batch, batch):
                part, right = some[:, r : r + batch], labels[:, r : r + batch]
                q = part @ x
                q -= q.max(axis=2, keepdims=True)
                np.exp(q, out=q)
                q /= q.sum(axis=2, keepdims=True)
                np.put_along_axis(q, right[..., None], np.take_along_axis(q, right[..., None], 2) - 1, 2)
                q *= np.float32(1 / batch)
                down = part.transpose(0, 2, 1) @ q
                down -= multiplier
                down += rho * (x - model)
                down *= step
                x -= down
            multiplier += rho * (model - x)
            own[who], dual[who] = x, multiplier
            np.sum(x - multiplier * np.float32(1 / rho), axis=0, out=total)
        COMM.Allreduce(MPI.IN_PLACE, total)
        np.divide(total, present, out=model)

    return play


def of_torch(here: Shards, batch: int, network: str) -> Play:
    """FedAvg of a network of PyTorch, which is loaded anew for each client: 5 steps of plain autograd."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    from mpifed import models

    torch.set_num_threads(1)
    torch.manual_seed(1)
    net: torch.nn.Module = getattr(models, network)((1, 28, 28), CLASSES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    model = parameters_to_vector(net.parameters()).detach().clone()
    total = torch.empty_like(model)
    data = [(torch.from_numpy(x).view(-1, 1, 28, 28), torch.from_numpy(y)) for x, y in here.clients]
    rng = np.random.default_rng([2, COMM.rank])

    def play(t: int) -> None:
        total.zero_()
        for X, y in data:
            with torch.no_grad():
                vector_to_parameters(model.clone(), net.parameters())
            for rows in torch.from_numpy(rng.choice(len(y), 5 * batch, replace=False)).split(batch):
                optimizer.zero_grad()
                cross_entropy(net(X[rows]), y[rows]).backward()
                optimizer.step()
            total.add_(parameters_to_vector(net.parameters()).detach())
        COMM.Allreduce(MPI.IN_PLACE, total.numpy())
        torch.div(total, here.everybody, out=model)

    return play


def naive(here: Shards, steps: int) -> Play:
    """FedAvg of softmax regression as one writes it on the first day: a loop over clients, full batches."""
    clients = [(x, np.eye(CLASSES, dtype=np.float32)[y]) for x, y in here.clients]
    W, b = np.zeros((clients[0][0].shape[1], CLASSES), np.float32), np.zeros(CLASSES, np.float32)

    def play(t: int) -> None:
        nonlocal W, b
        models = []
        for X, Y in clients:
            w, c = W.copy(), b.copy()
            for _ in range(steps):
                z = X @ w + c
                power = np.exp(z - z.max(axis=1, keepdims=True))
                slope = (power / power.sum(axis=1, keepdims=True) - Y) / len(X)
                w -= 0.1 * (X.T @ slope)
                c -= 0.1 * slope.sum(axis=0)
            models.append((w, c))
        W = np.mean([w for w, _ in models], axis=0)
        b = np.mean([c for _, c in models], axis=0)

    return play


def cells(here: Shards, _: int) -> Play:
    """X w and X' alpha of every client's block, and nothing else of HyFDCA."""
    rng = np.random.default_rng(0)
    blocks = [(x, *(rng.standard_normal(size).astype("f4") for size in x.shape)) for x, _ in here.clients]

    def play(t: int) -> None:
        for X, alpha, w in blocks:
            X @ w
            X.T @ alpha

    return play


LOOPS: Mapping[str, Callable[[Shards, int], Play]] = {
    "ssca": lambda here, batch: one_step(here, batch, ssca=True),
    "fedsgd": lambda here, batch: one_step(here, batch, ssca=False),
    "fedavg": local_epoch,
    "columns": columns,
    "states": states,
    "small_cnn": lambda here, batch: of_torch(here, batch, "small_cnn"),
    "mlp": lambda here, batch: of_torch(here, batch, "mlp"),
    "naive": naive,
    "cells": cells,
}


def load(folder: Path) -> Shards:
    """The shards of this rank."""
    paths = sorted(folder.glob("shard-*.npz"))
    first, end = (len(paths) * rank // COMM.size for rank in (COMM.rank, COMM.rank + 1))
    clients = []
    for path in paths[first:end]:
        with np.load(path) as shard:
            clients.append((shard["x"].astype(np.float32), shard["y"].astype(np.int64)))
    return Shards(clients, first, len(paths))


def timed(play: Play, rounds: int) -> dict[str, Any]:
    """Plays rounds that warm up and rounds that count; over all ranks."""
    warm_up = min(10, rounds)
    for t in range(warm_up):
        play(t + 1)
    COMM.Barrier()
    marks, cpu_s = [time.perf_counter()], -time.process_time()
    for t in range(warm_up, warm_up + rounds):
        play(t + 1)
        marks.append(time.perf_counter())
    cpu_s += time.process_time()
    return {
        "seconds_per_round": COMM.allreduce(float(np.median(np.diff(marks))), MPI.MAX),
        "cpu_s_per_round": COMM.allreduce(cpu_s) / rounds,
        "peak_rss_bytes": COMM.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, MPI.MAX),
    }


if __name__ == "__main__":
    name, setting, rounds, folder = sys.argv[1:]
    found = timed(LOOPS[name](load(Path(folder)), int(setting)), int(rounds))
    if COMM.rank == 0:
        print(json.dumps(found))
