"""The floor of the benchmark of clients that keep states: FedPDM by hand with mpi4py and batched NumPy.

    OMP_NUM_THREADS=1 mpiexec -n 4 python benchmarks/handwritten_states.py 300 DATA

Softmax regression without regularizer, in float32 and in memory: 50 clients a round, 5 local steps of batch 10 from the
common model, steps of 1 / (rho + 1/eta), eta = 1/sqrt(t), rho = 10. The clients drawn are computed together; each keeps
its model and its dual variable. One Allreduce a round. DATA holds one shard-*.npz a client, all of one size. Rank 0
prints one line of JSON. No code is shared with mpifed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from floor import CLASSES, Array, own_shards, timed
from mpi4py import MPI
from numpy.typing import NDArray

PER_ROUND, STEPS, BATCH, RHO = 50, 5, 10, 10.0


def load(folder: Path, comm: MPI.Comm) -> tuple[Array, NDArray[np.int64], int, int]:
    """(X [n, s, p], y [n, s], number of the first client here, N)."""
    paths, first, clients = own_shards(folder, comm)
    shards = [np.load(path) for path in paths]
    X, y = (np.stack([shard[name] for shard in shards]) for name in ("x", "y"))
    return X.astype(np.float32), y, first, clients


def rounds_of(X: Array, y: NDArray[np.int64], first: int, clients: int, comm: MPI.Comm) -> Callable[[int], None]:
    here, samples, features = X.shape
    shape = (features, CLASSES)
    shared, rng = np.random.default_rng(3), np.random.default_rng([2, comm.rank])
    model, total = np.zeros(shape, np.float32), np.empty(shape, np.float32)
    own, dual = np.zeros((2, here, *shape), np.float32)

    def play(t: int) -> None:
        step = np.float32(1 / (RHO + t**0.5))
        drawn = np.sort(shared.choice(clients, PER_ROUND, replace=False)) - first
        who = drawn[(drawn >= 0) & (drawn < here)]
        total[:] = 0
        if len(who):
            keys = rng.random((len(who), samples), dtype=np.float32)
            rows = np.argsort(keys, axis=1)[:, : STEPS * BATCH]
            some, labels = X[who[:, None], rows], y[who[:, None], rows]
            x, multiplier = np.repeat(model[None], len(who), axis=0), dual[who]
            for r in range(0, STEPS * BATCH, BATCH):
                batch, right = some[:, r : r + BATCH], labels[:, r : r + BATCH]
                q = batch @ x
                q -= q.max(axis=2, keepdims=True)
                np.exp(q, out=q)
                q /= q.sum(axis=2, keepdims=True)
                np.put_along_axis(q, right[..., None], np.take_along_axis(q, right[..., None], 2) - 1, 2)
                q *= np.float32(1 / BATCH)
                down = batch.transpose(0, 2, 1) @ q
                down -= multiplier
                down += RHO * (x - model)
                down *= step
                x -= down
            multiplier += RHO * (model - x)
            own[who], dual[who] = x, multiplier
            np.sum(x - multiplier * np.float32(1 / RHO), axis=0, out=total)
        comm.Allreduce(MPI.IN_PLACE, total)
        np.divide(total, PER_ROUND, out=model)

    return play


def main() -> None:
    comm = MPI.COMM_WORLD
    result = timed(rounds_of(*load(Path(sys.argv[2]), comm), comm), int(sys.argv[1]), comm)
    if comm.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
