"""The noise alone of a case with noise on gradients: what its 10 clients draw in a round, and nothing else.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/draws.py NUMBERS ROUNDS

Each client draws as many discrete Gaussian numbers as its model has, by mpifed's own functions, into memory that stays
in the cache. Rank 0 prints a line of JSON.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from floor import timed
from mpi4py import MPI

from mpifed.core.privacy import Privacy
from mpifed.core.round import Round
from mpifed.maths.privacy.mechanism import Noise, mechanism

CLIENTS, BATCH = 10, 100


def main() -> None:
    comm, numbers, rounds = MPI.COMM_WORLD, int(sys.argv[1]), int(sys.argv[2])
    here = CLIENTS * (comm.rank + 1) // comm.size - CLIENTS * comm.rank // comm.size
    sigma = mechanism(Privacy(1e-5, clip=1.0, noise_multiplier=1.0), numbers, BATCH, CLIENTS).sigma
    now = Round(0, 1, np.ones(CLIENTS, dtype=bool), secure=True)

    def play(t: int) -> None:
        for client in range(here):
            noise, left = Noise(sigma, now.words("gradient", client), numbers), numbers
            while left:
                left -= len(noise.piece(left))
        comm.Barrier()

    found = timed(play, rounds, comm)
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
