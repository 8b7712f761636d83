"""Accuracy by virtual seconds, synchronous and not: the picture of docs/how-to/simulated-network.md; three minutes.

    mpifed data mnist --split rows --clients 100 --partition dirichlet:0.3 --out data/mnist-100-dirichlet
    python jobs/methods/asynchronous.py data/mnist-100-dirichlet docs/how-to/figures/asynchrony.png

20 of 100 clients are at work at any time. Delays are lognormal: half the answers come within a second, 2 in 100 take
more than 20. Softmax regression, 5 seeds.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import mpifed as mf

STEPS: dict[str, Any] = {"batch_size": 20, "local_steps": 10, "client_optimizer": mf.SGD(0.05)}
NETWORK = mf.SimulatedNetwork(delay_s=1.0, delay_spread=1.5)
TARGET = 0.88
WAYS: dict[str, tuple[Any, int, dict[str, Any]]] = {  # method, rounds, and who takes part
    "FedAvg, a round of 20": (mf.FedAvg(**STEPS), 50, {"participation": mf.Participation(clients_per_round=20)}),
    "FedBuff, buffer 5": (mf.FedBuff(**STEPS), 1000, {"asynchrony": mf.Asynchrony(buffer=5, concurrency=20)}),
    "FedAsync": (mf.FedAsync(**STEPS), 5000, {"asynchrony": mf.Asynchrony(buffer=1, concurrency=20)}),
}


def main(data: str, out: str) -> None:
    """Print when the target is reached, and draw the curves."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for label, (method, rounds, tables) in WAYS.items():
        sweep = mf.sweep(
            {label: method}, data, mf.Softmax(), rounds=rounds, seeds=5, evaluate_every=rounds // 50,
            record=mf.Record(evaluate_rows=1000), simulated_network=NETWORK, **tables,
        )  # fmt: skip
        curves = [(run.columns["simulated_s"], run.columns["test_accuracy"]) for run in sweep.runs[label]]
        reached = [float(seconds[np.argmax(accuracy >= TARGET)]) for seconds, accuracy in curves]
        assert all((accuracy >= TARGET).any() for _, accuracy in curves)
        end = min(seconds[-1] for seconds, _ in curves)
        at = np.linspace(0, end, 200)
        every = np.array([np.interp(at, *curve) for curve in curves])
        (line,) = axes.plot(at, every.mean(axis=0), label=label)
        axes.fill_between(at, every.min(axis=0), every.max(axis=0), color=line.get_color(), alpha=0.2, lw=0)
        print(f"{label:24} {TARGET:.0%} after {np.mean(reached):7.1f} s ({min(reached):.1f} to {max(reached):.1f})")
    axes.set(xlabel="virtual seconds", ylabel="test accuracy, MNIST", ylim=(0.5, 1.0), xlim=(0, None))
    axes.legend()
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
