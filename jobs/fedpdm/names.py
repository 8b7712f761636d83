"""The curves: a job each, and what is changed of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

JOBS = Path(__file__).parent
KINDS = ("paper", "rigorous")  # whose accounting; the paper's goes with its loss (25), the rigorous one with softmax
METHODS = ("fedpdm", "fedavg", "fedprox", "scaffold")
TITLES = {"fedpdm": "FedPDM", "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD"}
TUNED = ("fedpdm", "fedavg", "scaffold")  # FedProx with one local step is FedAvg
LEVELS = ("none", "30", "20", "10")  # Figure 1: epsilon
COMPARED = ("none", "7")  # Figure 2
RHO = 10.0
LABELS = {
    "by-rho": "step / rho",
    "tuned": "tuned",
    "q5": "5 local steps",
    "no-l1": "without l1",
    "rule": "(11), at most 20 local steps",
}


def label(kind: str, method: str, level: str, change: str = "") -> str:
    """The name of a curve; without a change that of its job."""
    return "-".join([kind, method, level, *([change] if change else [])])


def jobs() -> Iterator[tuple[str, str, str]]:
    """Accounting, method and level of each job file."""
    for kind in KINDS:
        for method in METHODS:
            for level in (*LEVELS, "7") if method == "fedpdm" else COMPARED:
                yield kind, method, level


def changes(kind: str, method: str, level: str) -> dict[str, list[str]]:
    """What else is run of a job, but for what a search gives: by label, the changes."""
    found: dict[str, list[str]] = {}
    if level not in COMPARED:
        return found
    found["q5"] = ["algorithm.local_steps=5"]
    if method == "fedpdm":
        found["no-l1"] = ["regularizer.weight=0.0"]
        if level == "none":
            found["rule"] = ["algorithm.local_steps=20", "algorithm.tolerance=0.01"]
    elif method in TUNED:
        found["by-rho"] = [f"client_optimizer.learning_rate={{initial = {1 / RHO}, exponent = 0.5}}"]
    return found
