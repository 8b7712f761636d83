"""Does [model] name = "torch" run on the device, and what does a round cost: 10 and 1,000 clients, MLP 784-128-10, and
McMahan's CNN. Rounds are played by `mpifed.testing`; their time includes the copy of the model to the host.

    python3 benchmarks/gpu-drill/probe.py [cpu]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from mpifed.testing import rounds

NETWORKS = """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(784, 128), nn.SiLU(), nn.Linear(128, 10))


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.pool, self.c, self.d = nn.MaxPool2d(2), nn.Linear(3136, 512), nn.Linear(512, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.a(x)))
        x = self.pool(torch.relu(self.b(x)))
        return self.d(torch.relu(self.c(x.flatten(1))))


def cnn():
    return Image()
"""
MLP = {"name": "mlp", "bias": True, "hidden": 128}
TORCH = {"name": "torch", "build": "probe_nets:mlp"}
CNN = {"name": "torch", "build": "probe_nets:cnn", "shape": [1, 28, 28]}


class Case(NamedTuple):
    """What is timed on the device and on the processor."""

    title: str
    clients: int
    block: int  # on the device
    model: Mapping[str, Any]
    batch: int = 100
    steps: int = 1


CASES = (
    Case("case 1, mlp", 10, 10, MLP),
    Case("case 1, mlp, default block", 10, 1, MLP),
    Case("mlp, 1000 clients", 1000, 250, MLP),
    Case("torch mlp", 10, 10, TORCH),
    Case("torch CNN, batch 50, 2 steps", 10, 10, CNN, batch=50, steps=2),
)


def data(folder: Path, clients: int) -> Path:
    """120 rows of 784 pixels for each client."""
    out = folder / f"data-{clients}"
    if not out.exists():
        words = f"synthetic --samples {120 * clients} --features 784 --task classification --classes 10 --dtype uint8"
        words += f" --split rows --scale minmax --clients {clients} --out"
        command = [sys.executable, "-m", "mpifed", "data", *words.split(), str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def job(folder: Path, case: Case, device: str, count: int) -> dict[str, Any]:
    """FedAvg, with nothing measured."""
    block = case.block if device == "gpu" else 1
    return {
        "name": "probe",
        "rounds": count,
        "data": {"path": str(data(folder, case.clients)), "block": block, "verify": False},
        "model": dict(case.model),
        "algorithm": {"name": "fedavg", "batch_size": case.batch, "local_steps": case.steps},
        "client_optimizer": {"learning_rate": 0.05},
        "compute": {"device": device},
        "aggregation": {"security": "plain"},
        "record": {"evaluate_every": 0},
    }


def timed(folder: Path, case: Case, device: str, count: int) -> tuple[list[float], np.ndarray]:
    """The seconds of each round, and the model [d] after the last."""
    played, seconds = rounds(job(folder, case, device, count)), []
    next(played)
    for _ in range(count):
        start = time.perf_counter()
        after = next(played)
        seconds.append(time.perf_counter() - start)
    return seconds, np.concatenate([leaf.reshape(-1) for leaf in after.model.values()])


def tried(folder: Path, case: Case, device: str, count: int) -> bool:
    """Print what it took, or how it failed: the next case is to be seen all the same."""
    try:
        seconds, w = timed(folder, case, device, count)
    except Exception as error:
        where = traceback.format_exc().splitlines()[-7:]
        print(
            f"{case.title} {device}: FAILED {type(error).__name__}: {str(error)[:300]}", *where, sep="\n  ", flush=True
        )
        return False
    first, others = 1e3 * seconds[0], 1e3 * median(seconds[1:])
    print(
        f"{case.title:34} {device}: first {first:8.1f} ms, median of the rest {others:8.2f} ms, "
        f"|w| {np.linalg.norm(w):.6f}, finite: {np.isfinite(w).all()}",
        flush=True,
    )
    return True


def main(devices: tuple[str, ...]) -> int:
    """All cases; 1 if one has failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "probe_nets.py").write_text(NETWORKS, encoding="utf-8")
        sys.path.insert(0, name)
        counts = {"gpu": 5, "cpu": 3}
        return int(not all([tried(folder, case, device, counts[device]) for case in CASES for device in devices]))


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or ("gpu", "cpu")))
