"""Compressed uploads and their memories on a9a: the picture of docs/how-to/compression.md; a few minutes.

    python jobs/methods/compression.py docs/how-to/figures/compression.svg

20 clients hold the rows of a9a of $MPIFED_DATA in the order of their labels. Gradients are of whole shards. Left:
logistic regression with l2 = L / 58, steps of 1 / L, 12 numbers of 123 sent: how far the loss is from its minimum, as
L-BFGS has it apart from the package, by bytes sent. Right: the experiment of EF21 (arXiv:2106.05203), logistic loss +
.1 sum w^2 / (1 + w^2), 1 number of 123 sent, steps of 1 and 256 times the largest that is proven there, 1 / (L + L'
sqrt(beta / theta)); the squared norm of the gradient, relative to the first. Ends with 1 where EF21 and DIANA do not
come to the optimum, or the others do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize
from scipy.sparse.linalg import svds
from scipy.special import expit
from sklearn.datasets import load_svmlight_file

import mpifed as mf
from mpifed.core.record import Array

MEMORIES: dict[str, Any] = {
    "none": None,
    "top-k": mf.TopK(k=12),
    "top-k, error feedback": mf.TopK(k=12, memory="error-feedback"),
    "top-k, EF21": mf.TopK(k=12, memory="ef21"),
    "rand-k": mf.RandK(k=12),
    "rand-k, DIANA": mf.RandK(k=12, memory="diana"),
}


def main(out: str) -> bool:
    """Print where each ends, and draw the way there."""
    X, y = load_svmlight_file(str(Path(os.environ["MPIFED_DATA"]) / "libsvm/a9a.bz2"))
    signs, rows = np.where(y > 0, 1.0, -1.0), len(y)
    order = np.argsort(y, kind="stable")
    data = mf.FederatedDataset.from_arrays(X, y.astype(int), clients=np.argsort(order) * 20 // rows)
    shards = np.array_split(order, 20)
    L = float(svds(X, k=1, return_singular_vectors=False)[0]) ** 2 / (4 * rows)
    l2 = L / 58

    def loss(w: Array) -> tuple[float, Array]:
        margins = signs * (X @ w)
        slope = X.T @ (-signs * expit(-margins)) / rows + 2 * l2 * w
        return float(np.logaddexp(0, -margins).mean() + l2 * w @ w), slope

    settings = {"ftol": 1e-16, "gtol": 1e-12, "maxiter": 10**4}
    least = minimize(loss, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=settings).fun

    def played(compression: Any, model: Any, step: float, rounds: int, **more: Any) -> mf.Run:
        method = mf.FedAvg(batch_size=2000, client_optimizer=mf.SGD(step))  # more rows than a client has
        return mf.run(
            method, data, model, rounds=rounds, compression=compression, progress="none",
            compute=mf.Compute(dtype="float64"), evaluate_every=10, **more,
        )  # fmt: skip

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    (left, right), ends = figure.subplots(1, 2), {}
    for name, compression in MEMORIES.items():
        run = played(compression, mf.Logistic(l2=l2, bias=False), 1 / (L + 2 * l2), 400)
        gap = run.history["objective"] - least
        left.semilogy(run.history["up_bytes"] / 2**20, gap.clip(1e-14), label=name)
        ends[name] = gap.iloc[-1]
        print(f"{name:22} {run.summary['up_bytes'] / 2**20:5.2f} MiB  from the minimum: {ends[name]:.1e}", flush=True)
    left.set(xlabel="MiB sent up", ylabel="loss less its minimum", xlim=(0, 1))
    own = [svds(X[i], k=1, return_singular_vectors=False)[0] ** 2 / (4 * len(y) / 20) + 0.2 for i in shards]
    delta = 1 / X.shape[1]
    theta = 1 - np.sqrt(1 - delta)
    beta = (1 - delta) / theta
    proven = 1 / (L + 0.2 + np.sqrt(np.mean(np.square(own))) * np.sqrt(beta / theta))
    for times, style in ((1, "--"), (256, "-")):
        for name, color in (("error feedback", "C2"), ("EF21", "C3")):
            compression = mf.TopK(k=1, memory=MEMORIES[f"top-k, {name}"].memory)
            model = mf.Logistic(nonconvex_penalty=0.1, bias=False)
            run = played(compression, model, times * proven, 600, record={"certify_every": 10})
            square = (run.history["kkt_residual"] / run.history["kkt_residual"].iloc[0]) ** 2
            right.semilogy(run.history["round"], square, style, color=color, label=f"{name}, {times} x")
            ends[f"{name}, {times} x"] = square.iloc[-1]
            print(f"{name + f', {times} x':22}  squared gradient: {square.iloc[-1]:.1e} of the first", flush=True)
    right.set(xlabel="rounds", ylabel="squared norm of the gradient")
    left.legend(fontsize=8, loc="center right")
    right.legend(fontsize=8, loc="lower left")
    figure.savefig(out, metadata={"Date": None})
    come = all(ends[name] < 1e-9 for name in ("top-k, EF21", "rand-k, DIANA"))
    ahead = ends["EF21, 256 x"] < 1e-6 and ends["error feedback, 256 x"] > 1e-2
    return come and ahead and all(ends[name] > 1e-3 for name in ("top-k", "rand-k", "top-k, error feedback"))


if __name__ == "__main__":
    sys.exit(int(not main(sys.argv[1])))
