"""FedAvg on 20 small clients as one writes it on the first day: NumPy, a loop over clients, one process.

    OMP_NUM_THREADS=1 python benchmarks/newcomer.py 300 DATA

Softmax regression with intercepts, in float32; a round is 5 full-batch steps of 0.1 at every client, and the mean.
DATA/npz holds one shard-*.npz a client. Prints one line of JSON. No code is shared with mpifed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from floor import CLASSES, Array, timed
from mpi4py import MPI

STEPS, RATE = 5, 0.1


def softmax(z: Array) -> Array:
    power: Array = np.exp(z - z.max(axis=1, keepdims=True))
    return power / power.sum(axis=1, keepdims=True)


def main() -> None:
    rounds, folder = int(sys.argv[1]), Path(sys.argv[2], "npz")
    shards = [np.load(path) for path in sorted(folder.glob("shard-*.npz"))]
    clients = [(shard["x"], np.eye(CLASSES, dtype=np.float32)[shard["y"]]) for shard in shards]
    W = np.zeros((clients[0][0].shape[1], CLASSES), np.float32)
    b = np.zeros(CLASSES, np.float32)

    def play(t: int) -> None:
        nonlocal W, b
        models = []
        for X, Y in clients:
            w, c = W.copy(), b.copy()
            for _ in range(STEPS):
                slope = (softmax(X @ w + c) - Y) / len(X)
                w -= RATE * (X.T @ slope)
                c -= RATE * slope.sum(axis=0)
            models.append((w, c))
        W = np.mean([w for w, _ in models], axis=0)
        b = np.mean([c for _, c in models], axis=0)

    print(json.dumps(timed(play, rounds, MPI.COMM_WORLD)))


if __name__ == "__main__":
    main()
