"""The floor of the masked channel: the key streams that the clients of case 1 must make in a round, and nothing else.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/streams.py ROUNDS

10 clients, each of whom makes AES-128-CTR streams as long as its message of 101,632 integers of 64 bits, one for each
of the others, into memory that stays in the cache. Rank 0 prints a line of JSON. No code is shared with mpifed.
"""

from __future__ import annotations

import json
import sys

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from floor import timed
from mpi4py import MPI

CLIENTS, BYTES, PIECE = 10, 8 * 101_632, 2**17


def main() -> None:
    comm, rounds = MPI.COMM_WORLD, int(sys.argv[1])
    here = CLIENTS * (comm.rank + 1) // comm.size - CLIENTS * comm.rank // comm.size
    stream = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()
    zeros, made = memoryview(bytes(PIECE)), memoryview(bytearray(PIECE + 15))

    def play(t: int) -> None:
        for _ in range(here * (CLIENTS - 1)):
            for start in range(0, BYTES, PIECE):
                stream.update_into(zeros[: min(PIECE, BYTES - start)], made)
        comm.Barrier()

    found = timed(play, rounds, comm)
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
