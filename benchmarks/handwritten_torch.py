"""The floor of the benchmarks of PyTorch: FedAvg by hand with mpi4py and plain autograd.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/handwritten_torch.py cnn 20 DATA

All clients of a round take 5 local steps of batch 20 with `torch.optim.SGD` on one module, which is loaded anew for
each of them; their models are averaged by hand, in float32, and summed over the ranks by one Allreduce. Rows are in
memory as float32. DATA holds one shard-*.npz a client, all of one size. Rank 0 prints one line of JSON. No code is
shared with mpifed, but that the networks (networks.py) are those of its job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import networks
import numpy as np
import torch
from floor import own_shards, timed
from mpi4py import MPI
from torch.nn.functional import cross_entropy

STEPS, BATCH, RATE, WARM_UP = 5, 20, 0.05, 3


def rounds_of(name: str, folder: Path, comm: MPI.Comm) -> Callable[[int], None]:
    """Rounds of FedAvg of this rank's clients."""
    paths, _, clients = own_shards(folder, comm)
    shards = [np.load(path) for path in paths]
    data = [(torch.from_numpy(shard["x"]), torch.from_numpy(shard["y"].astype(np.int64))) for shard in shards]
    torch.manual_seed(1)
    net: torch.nn.Module = getattr(networks, name)()
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    model = [tensor.detach().clone() for tensor in parameters]
    flat = torch.empty(sum(tensor.numel() for tensor in parameters))
    total = [part.view_as(tensor) for part, tensor in zip(flat.split([t.numel() for t in model]), model, strict=True)]
    rng = np.random.default_rng([2, comm.rank])

    def play(t: int) -> None:
        flat.zero_()
        for X, y in data:
            with torch.no_grad():
                for tensor, common in zip(parameters, model, strict=True):
                    tensor.copy_(common)
            drawn = torch.from_numpy(rng.choice(len(y), STEPS * BATCH, replace=False))
            for rows in drawn.split(BATCH):
                optimizer.zero_grad()
                cross_entropy(net(X[rows]), y[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for summed, tensor in zip(total, parameters, strict=True):
                    summed += tensor
        comm.Allreduce(MPI.IN_PLACE, flat.numpy())
        flat.div_(clients)
        for common, summed in zip(model, total, strict=True):
            common.copy_(summed)

    return play


def main() -> None:
    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD
    name, rounds, folder = sys.argv[1:]
    result = timed(rounds_of(name, Path(folder), comm), int(rounds), comm, WARM_UP)
    if comm.rank == 0:
        print(json.dumps({"case": name} | result))


if __name__ == "__main__":
    main()
