"""Sums of long arrays of int64 over the ranks, against the length, and whether work hides it.

    OMP_NUM_THREADS=1 mpiexec -n 2 python benchmarks/reductions.py [--nodes K] [--values M ...] [--json FILE]

Rank 0 prints a table. floor: a copy of the array in memory, which every rank makes at least; bare: the one call of the
MPI library, from here; "direct" is that of `mpifed.comm.mpi`, in place, "nodes" the sum of messages which stand in
shared memory, as long ones do under MPICH. Times are medians, of the slowest rank each time, over repetitions that are
interleaved; the ranks begin together. --nodes has the ranks play so many nodes.
`hidden` is the part of an MPI_Allreduce that is hidden behind as much work as it takes itself: the same
products of matrices are done before a blocking call, and after a nonblocking one whose end is then waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from mpi4py import MPI
from rich import box
from rich.console import Console
from rich.table import Table

from mpifed.comm.mpi import Intracomm
from mpifed.comm.reduce import REDUCE, shared_message

COMM = MPI.COMM_WORLD


def slowest(act: Callable[[], object]) -> float:
    COMM.Barrier()
    start = time.perf_counter()
    act()
    return float(COMM.allreduce(time.perf_counter() - start, MPI.MAX))


def reductions(values: int, times: int, comm: Intracomm) -> dict[str, dict[str, float]]:
    """Seconds by call and algorithm."""
    mine, total = np.arange(values) + COMM.rank, np.empty(values, dtype=np.int64)
    here = total if COMM.rank == 0 else None
    acts: dict[tuple[str, str], Callable[[], object]] = {
        ("reduce", "floor"): lambda: np.copyto(total, mine),
        ("reduce", "bare"): lambda: COMM.Reduce(mine, here, op=MPI.SUM),
        ("reduce", "direct"): lambda: comm.Reduce(mine, mine),
        ("reduce_all", "floor"): lambda: np.copyto(total, mine),
        ("reduce_all", "bare"): lambda: COMM.Allreduce(mine, total, op=MPI.SUM),
        ("reduce_all", "direct"): lambda: comm.Allreduce(mine, mine),
    }
    message = shared_message(comm, values)
    if message is not None:
        acts["reduce", "nodes"] = partial(message.reduce, False)
        acts["reduce_all", "nodes"] = partial(message.reduce, True)
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(times + 1):
        for key, act in acts.items():
            found[key].append(slowest(act))
    calls: dict[str, dict[str, float]] = defaultdict(dict)
    for (call, name), seconds in found.items():
        calls[call][name] = median(seconds[1:])
    return calls


def hidden(values: int, times: int) -> float:
    """The part of a reduction that is hidden behind as much work as it takes itself."""
    mine, total = np.arange(values), np.empty(values, dtype=np.int64)
    a = np.ones((200, 200))

    def work(count: int) -> None:
        for _ in range(count):
            a @ a

    reduce = median(slowest(lambda: COMM.Allreduce(mine, total)) for _ in range(times))
    count = COMM.bcast(max(1, round(reduce / (min(slowest(lambda: work(5)) for _ in range(5)) / 5))))

    def overlapped() -> None:
        request = COMM.Iallreduce(mine, total)
        work(count)
        request.Wait()

    alone, together, reduce_s = [], [], []
    for _ in range(times):
        alone.append(slowest(lambda: work(count)))
        reduce_s.append(slowest(lambda: COMM.Allreduce(mine, total)))
        together.append(slowest(overlapped))
    return (median(alone) + median(reduce_s) - median(together)) / median(reduce_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--values", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 5 * 10**6])
    parser.add_argument("--times", type=int, default=11)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ[REDUCE] = "nodes"
    comm = Intracomm(COMM, -(-COMM.size // given.nodes))
    rows = []
    for values in given.values:
        calls = reductions(values, given.times, comm)
        rows += [{"values": values, "call": call, "seconds": seconds} for call, seconds in calls.items()]
        rows[-1]["hidden"] = hidden(values, given.times)
    if COMM.rank:
        return
    shown = Table(title=f"{COMM.size} ranks, {MPI.Get_library_version().splitlines()[0]}", box=box.SIMPLE_HEAD)
    names = list(rows[-1]["seconds"])  # type: ignore[call-overload]
    for heading in ("values", "call", *(f"{name}, ms" if name == "floor" else name for name in names), "hidden"):
        shown.add_column(heading, justify="right")
    for row in rows:
        seconds: Any = row["seconds"]
        times = [f"{1e3 * seconds[name]:.3f}" if name in seconds else "" for name in names]
        shown.add_row(f"{row['values']:,}", str(row["call"]), *times, f"{row['hidden']:.0%}" if "hidden" in row else "")
    Console(width=150).print(shown)
    if given.json:
        given.json.write_text(json.dumps({"ranks": COMM.size, "nodes": given.nodes, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
