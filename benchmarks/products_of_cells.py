"""The floor of an iteration of HyFDCA: X w and X' alpha of every client's block, and nothing else.

    mpiexec -n 2 python benchmarks/products_of_cells.py ROUNDS FOLDER

The blocks are those of a folder that `mpifed data` made, whole and in memory, dense or CSR, dealt to the ranks as a run
deals them; numbers are single. Prints the median seconds of a round, which is as long as its slowest rank takes.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
from mpi4py import MPI

from mpifed.comm.placement import place
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation, open_federation


def block(federation: Federation, client: int) -> object:
    shard = shard_of(federation, client)
    at = np.arange(shard.samples)
    if shard.sparse:
        return shard.take_sparse(at, "float32")
    X = np.empty((shard.samples, shard.features), np.float32)
    shard.take(at, X)
    return X


def main() -> None:
    world, (rounds, folder) = MPI.COMM_WORLD, sys.argv[1:]
    federation, rng = open_federation(folder), np.random.default_rng(0)
    hosted = place(federation.counts, 1, world.size, False).hosted(world.rank)
    blocks = [block(federation, client) for client in hosted.clients]
    pairs = [
        (X, rng.standard_normal(X.shape[1]).astype("f4"), rng.standard_normal(X.shape[0]).astype("f4")) for X in blocks
    ]
    taken, cpu_s = [], time.process_time()
    for _ in range(int(rounds)):
        world.Barrier()
        start = time.perf_counter()
        for X, w, _ in pairs:
            X @ w
        for X, _, alpha in pairs:
            X.T @ alpha
        taken.append(world.allreduce(time.perf_counter() - start, op=MPI.MAX))
    cpu_s = world.allreduce(time.process_time() - cpu_s)
    peak = world.allreduce(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, op=MPI.MAX)
    if world.rank == 0:
        found = {
            "seconds_per_round": float(np.median(taken)), "cpu_s_per_round": cpu_s / int(rounds),
            "peak_rss_bytes": peak,
        }  # fmt: skip
        print(json.dumps(found))


if __name__ == "__main__":
    main()
