"""The hyper-parameters with which the laws try every algorithm of the registry, and a small job for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STEP = [0.5, 0.1]
HYPER: dict[str, list[dict[str, Any]]] = {
    "ssca-horizontal": [
        {"batch": 7, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]},
        {"batch": 7, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "start": "paper"},
    ],
    "fedavg": [
        {"batch": 7, "step": STEP},
        {"batch": 7, "step": STEP, "local_steps": 3},
        {"batch": 16, "step": STEP, "local_epochs": 2},
    ],
}
CASES = [(name, hyper) for name, many in HYPER.items() for hyper in many]
NAMES = [f"{name}-{number}" for name, many in HYPER.items() for number in range(len(many))]


def table(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> dict[str, Any]:
    """A small job, as a TOML table."""
    base: dict[str, Any] = {
        "name": "law",
        "rounds": 4,
        "data": {"path": str(folder)},
        "objective": {"name": "network", "hidden": 6, "penalty": 1e-3},
        "algorithm": algorithm,
        "record": {"every": 2, "checkpoint_every": 0},
    }
    return base | changes
