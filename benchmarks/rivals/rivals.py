"""Time and memory of mpifed beside other software that simulates federated learning, on the same verified work.

    python benchmarks/rivals/rivals.py [--quick] [--cases 1 2 3]

Installs each rival in an environment of its own (benchmarks/.cache/rivals/NAME, from requirements/NAME.txt; what stands
in NAME-alone.txt without its needs), compares its model after 4 rounds with NumPy's, and measures it beside mpifed with
exact sums, in turns, each on two processes of one thread; rows and steps are counted. No rival is changed. Let nothing
else run meanwhile. Another one is an adapter like these, and its requirements.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import loops  # noqa: E402
from bench import CASES, by_mpifed  # noqa: E402
from prepared import CACHE, ENVIRONMENT, arrays  # noqa: E402

RIVALS = ("pfl", "flower")
WORK = {  # case of bench.py; rounds of each; rows and local steps of a round
    "1": ("1-fedsgd", {"mpifed": 300, "pfl": 100, "flower": 20}, 1000, 10),
    "2": ("2", {"mpifed": 60, "pfl": 40, "flower": 15}, 3000, 100),
    "3": ("3", {"mpifed": 60, "pfl": 6, "flower": 2}, 10_000, 1000),
}
COMPARED = {"step": (70, 0.5, 1), "epoch": (30, 0.1, 3)}  # batch, step and local steps of 6 clients of 70 rows
TOLERANCE = 1e-6  # of any weight after 4 rounds in float32; the largest weights are near 0.2


def python_of(rival: str) -> str:
    """The Python of a rival's environment, which is made where it is not complete."""
    folder = CACHE / "rivals" / rival
    python, done = str(folder / "bin" / "python"), folder / "installed"
    if not done.exists():
        commands = [[sys.executable, "-m", "venv", str(folder)]]
        for wanted, more in ((rival, []), (f"{rival}-alone", ["--no-deps"])):
            if (listed := HERE / "requirements" / f"{wanted}.txt").exists():
                commands.append([python, "-m", "pip", "install", "--quiet", *more, "--requirement", str(listed)])
        for command in commands:
            print(*command[-3:], flush=True)
            subprocess.run(command, check=True)
        done.touch()
    return python


def played(rival: str, case: str, rounds: int, data: Path, rows: int, steps: int) -> dict[str, Any]:
    """What an adapter tells, with the memory of its largest process, and its model; ends where it did other work."""
    python = python_of(rival)
    with tempfile.TemporaryDirectory() as folder, open(Path(folder, "out"), "w+") as out:
        model = Path(folder, "model.npy")
        path = os.pathsep.join([str(Path(python).parent), ENVIRONMENT["PATH"]])
        asked = {"PATH": path, "RIVALS_WORK": f"{case}:{rounds}:{data}:{model}"}
        command = [python, str(HERE / f"{rival}_case.py")]
        started = subprocess.Popen(command, env=ENVIRONMENT | asked, stdout=out, stderr=out, cwd=folder)
        _, status, usage = os.wait4(started.pid, 0)
        out.seek(0)
        lines = out.read().splitlines()
        told = [line for line in lines if line.startswith('{"seconds')]
        if status or not told:
            raise SystemExit(f"{rival}, case {case}: ended with {status}:\n" + "\n".join(lines[-20:]))
        found: dict[str, Any] = json.loads(told[-1])
        if (found["rows"], found["steps"]) != (rows, steps):
            raise SystemExit(f"{rival}, case {case}: {found['rows']} rows of {rows}, {found['steps']} steps of {steps}")
        return found | {"peak_rss_bytes": 1024 * usage.ru_maxrss, "model": np.load(model)}


def expected(clients: list[Any], batch: int, step: float) -> Any:
    """The flat model after 4 rounds of an epoch of FedAvg by loops.py; shares no code with the adapters."""
    w = loops.start(784)
    local, change = np.empty((2, w.size), np.float32)
    for _ in range(4):
        total = np.zeros_like(w)
        for X, y in clients:
            local[:] = w
            for first in range(0, len(y), batch):
                x, labels = X[first : first + batch], y[first : first + batch]
                network = loops.Network(len(x), 784)
                slopes = loops.layers(change, 784)
                network.gradient(loops.layers(local, 784), x, labels, -step / len(x), slopes)
                loops.descend(local, change, step)
            total += local
        w = total / len(clients)
    return np.concatenate([layer.T.ravel() for layer in loops.layers(w, 784)])


def verify(rival: str) -> None:
    """Ends the benchmark where a rival does other work than NumPy."""
    with tempfile.TemporaryDirectory() as folder:
        clients = []
        for path in sorted(arrays("rows", 100).glob("shard-*.npz"))[:6]:
            with np.load(path) as shard:
                clients.append((shard["x"][:70], shard["y"][:70]))
            np.savez(Path(folder, path.name), x=clients[-1][0], y=clients[-1][1])
        for case, (batch, step, steps) in COMPARED.items():
            found = played(rival, case, 3, Path(folder), 4 * 6 * 70, 4 * 6 * steps)
            difference = np.abs(found["model"] - expected(clients, batch, step)).max()
            print(f"{rival}, {case}: largest difference of a weight {difference:.1e}", flush=True)
            if difference > TOLERANCE:
                raise SystemExit(f"{rival} did other work")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition of a fifth of the rounds")
    parser.add_argument("--cases", nargs="+", choices=WORK, default=list(WORK))
    given = parser.parse_args()
    for rival in RIVALS:
        verify(rival)
    for name in given.cases:
        ours, rounds, rows, steps = WORK[name]
        case, found = CASES[ours], defaultdict[str, list[dict[str, Any]]](list)
        for _ in range(1 if given.quick else 3):
            for who, whole in rounds.items():
                count = max(whole // (5 if given.quick else 1), 2)
                if who == "mpifed":
                    found[who].append(by_mpifed(case, 2, count, "exact"))
                else:
                    shards, played_rounds = arrays("rows", case.clients), count + 1  # with the one that warms up
                    found[who].append(played(who, name, count, shards, played_rounds * rows, played_rounds * steps))
        for who, runs in found.items():
            pairs = zip(runs, found["mpifed"], strict=True)
            times = median(one["seconds_per_round"] / two["seconds_per_round"] for one, two in pairs)
            ms = 1e3 * median(run["seconds_per_round"] for run in runs)
            mib = max(run["peak_rss_bytes"] for run in runs) / 2**20
            print(f"case {name}  {who:8}{ms:12.2f} ms a round {times:8.1f} times {mib:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
