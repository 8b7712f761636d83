"""Seconds a round on one core, on all cores, and on a device that one rank has, or several share.

    python benchmarks/device.py [--device cuda|cpu] [--out FILE.json]

The median of three rounds, by `mpifed check --time` on those ranks. Data are made up: 1,000 clients of 60 rows, of the
shapes of MNIST (of which 16 take part in a round), so that no file is needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

CASES: dict[str, dict[str, Any]] = {
    "FedAvg, CNN": {"model": {"name": "torch", "build": "mpifed.models:cnn", "shape": [1, 28, 28]}},
    "FedAvg, 2NN": {"model": {"name": "torch", "build": "mpifed.models:mlp"}},
    "FedAvg, mlp, blocks of 100": {"model": {"name": "mlp", "hidden": 128}, "data": {"block": 100}},
}
CLIENTS, ROWS, PRESENT = 1000, 60, 16


def seconds(case: dict[str, Any], ranks: int, device: str, folder: Path) -> float:
    """The seconds of a round."""
    job = {
        "name": "device", "rounds": 3, "model": case["model"], "compute": {"device": device},
        "data": {"path": str(folder / "data"), "block": 1, "verify": False} | case.get("data", {}),
        "algorithm": {"name": "fedavg", "batch_size": 50, "local_steps": 1}, "client_optimizer": {"learning_rate": 0.1},
        "participation": {"clients_per_round": PRESENT}, "record": {"evaluate_every": 0},
    }  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job), encoding="utf-8")
    start = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    command = [*start, sys.executable, "-m", "mpifed", "check", str(folder / "job.toml"), "--time", "--json"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if said.returncode:
        raise RuntimeError(said.stdout + said.stderr)
    return float(json.loads(said.stdout)["time"]["seconds_per_round"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=Path("device.json"))
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    places = {"1 core": (1, "cpu"), f"{cores} cores": (cores, "cpu")}
    if options.device == "cuda":
        places |= {"device": (1, "cuda"), "device, 4 ranks": (4, "cuda")}
    found = dict[str, dict[str, float]]()
    print("seconds a round:", ", ".join(places))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = f"synthetic --samples {CLIENTS * ROWS} --features 784 --task classification --classes 10 --dtype uint8"
        command = [sys.executable, "-m", "mpifed", "data", *made.split(), "--split", "rows", "--clients", str(CLIENTS)]
        subprocess.run([*command, "--out", str(folder / "data")], check=True, stdout=subprocess.DEVNULL)
        for title, case in CASES.items():
            found[title] = {}
            for place, where in places.items():
                found[title][place] = seconds(case, *where, folder)
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("; ".join(f"{title}: {' '.join(f'{one:.2g}' for one in row.values())}" for title, row in found.items()), "s")


if __name__ == "__main__":
    main()
