"""FedExP beside FedAvg on the synthetic linear regression of its paper (arXiv:2301.09604): seconds.

20 clients hold 30 rows of norm 1 in 1000 dimensions, with targets of one model, those of each client scaled to norm 1:
600 equations that one model solves. Each takes 20 full gradient steps of .1 on ||A_i w - b_i||^2 / 2 a round; eps is 0.
Prints the mean over rows of the squared error / 2 after 1, 10, 50 rounds; ends with 1 unless FedExP is ahead.

    python jobs/fedexp/synthetic.py
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import mpifed as mf

CLIENTS, ROWS, FEATURES, ROUNDS = 20, 30, 1000, 50


def main() -> int:
    """The exit code."""
    rng = np.random.default_rng(1)
    w, pairs = rng.standard_normal(FEATURES), []
    for _ in range(CLIENTS):
        A = rng.standard_normal((ROWS, FEATURES))
        A /= np.linalg.norm(A, axis=1, keepdims=True)
        pairs.append((A, A @ w / np.linalg.norm(A @ w)))
    data = mf.FederatedDataset.from_clients(pairs)
    steps: dict[str, Any] = {
        "batch_size": ROWS,
        "local_steps": 20,
        "client_optimizer": mf.SGD(0.1 * ROWS),
    }  # of means over rows
    losses = {}
    for method in (mf.FedAvg(**steps), mf.FedExP(**steps, eps=0.0)):
        run = mf.run(
            method, data, mf.LeastSquares(bias=False), rounds=ROUNDS, evaluate_every=1,
            compute=mf.Compute(dtype="float64"), progress="none",
        )  # fmt: skip
        losses[type(method).__name__] = run.history["train_loss"]
    for name, loss in losses.items():
        print(f"{name:7}" + "".join(f"  round {t}: {loss[t]:.3g}" for t in (1, 10, ROUNDS)))
    return int(not losses["FedExP"][ROUNDS] < losses["FedAvg"][ROUNDS])


if __name__ == "__main__":
    sys.exit(main())
