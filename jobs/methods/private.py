"""Accuracy by epsilon, of whole clients, with a trusted server: the picture of docs/how-to/privacy.md; six minutes.

    mpifed data mnist --split rows --clients 1000 --out data/mnist-1000
    python jobs/methods/private.py data/mnist-1000 docs/how-to/figures/privacy.png

1,000 clients hold 60 images each; in a round 100 take part, on average, by secret coins. Softmax regression, 3 seeds.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import mpifed as mf

EPSILONS = (1.0, 2.0, 4.0, 8.0, None)
STEPS: dict[str, Any] = {"batch_size": 20, "local_steps": 3, "client_optimizer": mf.SGD(0.1)}
METHODS: dict[str, Any] = {
    "FedAvg": mf.FedAvg(**STEPS),
    "DP-FedAdam": mf.FedAvg(**STEPS, server_optimizer=mf.ServerAdam(0.01)),
    "SCAFFOLD": mf.Scaffold(**STEPS),
    "FedPDM": mf.FedPDM(**STEPS, rho=1.0),
}
# who remembers what it has sent counts in every round: coins do not amplify SCAFFOLD's and FedPDM's
COINS: dict[str, Any] = {"level": "client", "trust": "central", "sampling": "poisson", "noise": "test"}


def accuracy(method: Any, data: str, epsilon: float | None) -> list[float]:
    """That of the test rows after 50 rounds, by seed."""
    privacy = None if epsilon is None else mf.Privacy(epsilon=epsilon, delta=1e-4, clip=0.3, **COINS)
    sweep = mf.sweep(
        {"method": method}, data, mf.Softmax(), rounds=50, seeds=3, privacy=privacy, evaluate_every=50,
        participation=mf.Participation(clients_per_round=100), aggregation=mf.Aggregation(min_clients=1),
    )  # fmt: skip
    return [run.summary["test_accuracy"] for run in sweep.runs["method"]]


def main(data: str, out: str) -> None:
    """Print the table, and draw it."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(EPSILONS))
    for label, method in METHODS.items():
        found = np.array([accuracy(method, data, epsilon) for epsilon in EPSILONS])
        print(f"{label:12}" + "".join(f"{mean:8.3f}" for mean in found.mean(axis=1)), flush=True)
        spread = np.abs([found.min(axis=1), found.max(axis=1)] - found.mean(axis=1))
        axes.errorbar(places, found.mean(axis=1), spread, marker="o", capsize=3, label=label)
    axes.set_xticks(places, ["none" if epsilon is None else f"{epsilon:g}" for epsilon in EPSILONS])
    axes.set(xlabel="epsilon at delta = 1e-4, of whole clients", ylabel="test accuracy, MNIST")
    axes.legend()
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
