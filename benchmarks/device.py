"""A device against the processor, and against what the device itself can do at most.

    python benchmarks/device.py [--device gpu|cpu] [--clients 1000] [--rounds 20] [--quick]

SSCA and FedPDM with 1,000 clients and minibatches of 100, and HyFDCA on 4 x 4 cells of all of MNIST; one rank. Of MNIST
1,000 clients have but 60 rows each: the first two take made-up rows of its shape, 120 for each client.
First what the machine can do is measured: products in the shapes of the cases and large ones, copies on the device, and
between it and page-locked memory. A case's floor is its products with the features alone, one after the other on data
that are there already; its share of the floor is what everything else leaves of that. Times are medians of rounds,
after some that warm up. `--device cpu` runs the same without a device. Writes .cache/device.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from rich.console import Console
from rich.table import Table

from mpifed.comm.mpi import Solo
from mpifed.comm.rounds import play
from mpifed.core.device import Device
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.maths.device import open_device
from mpifed.run.environment import commit, host, versions
from mpifed.run.setup import prepare

CACHE = Path(__file__).resolve().parent / ".cache"
HIDDEN, BATCH, STEPS, OUTPUTS = 128, 100, 3, 10
SPLITS = {
    "rows": ["--split", "rows", "--scale", "minmax"],
    "cells": ["--split", "grid", "--grid", "4x4", "--labels", "even-odd", "--scale", "unit-rows"],
}
NETWORK = {"name": "mlp", "bias": False, "hidden": HIDDEN, "l2": 1e-5}
STEP = {"rho": [0.9, 0.3], "gamma": [0.9, 0.35]}


class Case(NamedTuple):
    """One algorithm on one split."""

    split: str
    algorithm: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any] | None = None  # of the clients


CASES = {
    "ssca": Case("rows", {"name": "ssca", "batch_size": BATCH} | STEP, NETWORK),
    "fedpdm": Case(
        "rows",
        {"name": "fedpdm", "batch_size": BATCH, "rho": 2.0, "local_steps": STEPS},
        NETWORK,
        {"learning_rate": 0.5},
    ),
    "hyfdca": Case("cells", {"name": "hyfdca", "rule": "line-search"}, {"name": "hinge", "l2": 1e-4}),
}


# --- what the machine can do -----------------------------------------------------------------------------------------


class Machine:
    """A device or the processor, and its clock."""

    def __init__(self, device: Device) -> None:
        self.device, self.xp = device, np if device.on_host else vars(device)["xp"]

    def wait(self) -> None:
        """Until all that was begun is done."""
        if self.xp is not np:
            self.xp.cuda.get_current_stream().synchronize()

    def seconds(self, work: Callable[[], object], times: int = 7) -> float:
        """The median of some runs, after one that warms up."""
        work()
        found = []
        for _ in range(times):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - start)
        return median(found)

    def random(self, *shape: int) -> Any:
        return self.device.record(np.random.default_rng(0).random(shape, dtype=np.float32))

    def products(self, size: int) -> float:
        """FLOP/s of square products."""
        a, b = self.random(size, size), self.random(size, size)
        return 2 * size**3 / self.seconds(lambda: a @ b)

    def copies(self, nbytes: int) -> dict[str, float]:
        """Bytes/s: read and written on the device; from memory to it, and back."""
        a = self.random(nbytes // 4)
        b = self.xp.empty_like(a)

        def copy() -> None:
            b[...] = a

        found = {"there": 2 * nbytes / self.seconds(copy)}
        if self.xp is not np:
            import cupyx

            staged = cupyx.zeros_pinned(nbytes // 4, np.float32)  # page-locked: copies are faster
            found["to memory"] = nbytes / self.seconds(lambda: a.get(out=staged))
            found["from memory"] = nbytes / self.seconds(lambda: b.set(staged))
        return found


def floor_of(case: Case, machine: Machine, data: Any, block: int) -> tuple[float, float]:
    """(seconds of a round's products with the features, their FLOP)."""
    if case.split == "cells":
        X = machine.random(data.samples, data.features)
        w, a = machine.random(data.features), machine.random(data.samples)
        return machine.seconds(lambda: (X @ w, a @ X)), 4.0 * data.samples * data.features
    steps = int(case.algorithm.get("local_steps", 1))
    X, s = machine.random(block, BATCH, data.features), machine.random(block, BATCH, HIDDEN)
    w = machine.random(data.features, HIDDEN)

    def products() -> None:
        X.reshape(-1, X.shape[-1]) @ w
        s.swapaxes(1, 2) @ X

    times = steps * data.clients / block
    return machine.seconds(products) * times, 4.0 * block * BATCH * data.features * HIDDEN * times


# --- rounds ----------------------------------------------------------------------------------------------------------


def folder_of(split: str, clients: int, quick: bool) -> Path:
    """Synthetic data of MNIST's shape, or, of cells, MNIST itself where $MPIFED_DATA/mnist is; prepared once."""
    real = Path(os.environ.get("MPIFED_DATA", "")) / "mnist"
    known = bool(os.environ.get("MPIFED_DATA")) and real.exists() and split == "cells" and not quick
    samples = 120 * clients if split == "rows" else 6000 if quick else 60000
    folder = CACHE / f"device-{split}-{'mnist' if known else samples}-{clients}"
    if not folder.exists():
        made = f"synthetic --samples {samples} --features 784 --task classification --classes 10 --dtype uint8"
        source = ["mnist"] if known else made.split()
        split_to = ["--clients", str(clients)] if split == "rows" else []
        command = [sys.executable, "-m", "mpifed", "data", *source, *SPLITS[split], *split_to, "--out", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def rounds(case: Case, folder: Path, device: str, block: int, count: int) -> tuple[list[float], Any, Any]:
    """(seconds of each round, the ranks, the data's sizes)."""
    job = Job.check({
        "name": "device", "rounds": count, "data": {"path": str(folder), "block": block, "verify": False},
        "model": case.model, "algorithm": case.algorithm, "compute": {"device": device},
        "aggregation": {"security": "plain"}, "record": {"evaluate_every": 0},
    } | ({"client_optimizer": case.optimizer} if case.optimizer else {}))  # fmt: skip
    at = prepare(job, Solo())
    machine, found = Machine(at.ranks.device), []
    server, clients = play(at.algorithm.setup, at.server, at.clients, at.everybody, at.ranks)
    for index in range(count + 3):
        start = time.perf_counter()
        now = round_of(job, at.ranks.clients, index)
        server, clients = play(at.algorithm.exchanges, server, clients, now, at.ranks)
        machine.wait()
        found.append(time.perf_counter() - start)
    return found[3:], at.ranks, at.algorithm.problem


def measured(name: str, options: argparse.Namespace, machine: Machine) -> dict[str, Any]:
    """One case by the processor and on the device."""
    case, found = CASES[name], dict[str, Any]()
    folder = folder_of(case.split, options.clients, options.quick)
    block = min(options.block, options.clients if case.split == "rows" else 16)
    for where, size in {"cpu": 1, options.device: block}.items():
        seconds, ranks, problem = rounds(case, folder, where, size, options.rounds)
        found[where] = {"round_s": median(seconds), "rounds_s": seconds, "block": size}
        here = machine if where == options.device else Machine(open_device("cpu", 0))
        least, flop = floor_of(case, here, problem, size if case.split == "rows" else 1)
        found[where] |= {"floor_s": least, "flop": flop, "device": ranks.device.name}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--block", type=int, default=250, help="clients computed together on the device")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="little data: to try this program")
    options = parser.parse_args()
    machine, console = Machine(open_device(options.device, 0)), Console()
    large = 512 if options.quick or machine.xp is np else 8192
    found: dict[str, Any] = {
        "host": host(), "commit": commit(), "versions": versions() | dict(machine.device.versions),
        "device": machine.device.name, "flop_per_s": machine.products(large), "large": large,
        "bytes_per_s": machine.copies(2**24 if options.quick else 2**28),
    }  # fmt: skip
    rates = ", ".join(f"{name} {rate / 1e9:.3g}" for name, rate in found["bytes_per_s"].items())
    console.print(f"{machine.device.name}: products of {large} {found['flop_per_s'] / 1e12:.3g} TFLOP/s; GB/s: {rates}")
    table = Table("case", "where", "block", "ms a round", "times the CPU", "share of the floor", "of large products")
    for name in CASES:
        found[name] = measured(name, options, machine)
        for where, one in found[name].items():
            table.add_row(
                name, where, str(one["block"]), f"{1e3 * one['round_s']:.3g}",
                f"{found[name]['cpu']['round_s'] / one['round_s']:.3g}", f"{one['floor_s'] / one['round_s']:.2f}",
                f"{one['flop'] / one['round_s'] / found['flop_per_s']:.3f}" if where == options.device else "",
            )  # fmt: skip
    console.print(table)
    CACHE.mkdir(exist_ok=True)
    (CACHE / "device.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
