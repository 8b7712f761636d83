"""FedProx against a loop over clients, and its limits.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks"
(MLSys 2020, arXiv:1812.06127), Algorithm 2, its local problems solved by stochastic gradient steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import PRIVATE, gradient_of, local_job, minibatches, played, present, rows_of, start_of
from paper import step_size

from mpifed.testing import Job

STEP = {"initial": 0.4, "exponent": 0.3}
SOME = {"participation": {"clients_per_round": 3}}


def fedprox(mu: float, **changes: Any) -> dict[str, Any]:
    return {"name": "fedprox", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}, "mu": mu, **changes}


def plain_loop(task: Job, outputs: int = 10) -> Any:
    """min F_k(v) + mu/2 ||v - w||^2 by SGD; the models averaged by rows. With l1: proximal."""
    rule, data, gradient = task.algorithm, rows_of(task.data.path), gradient_of(task, outputs)
    w = start_of(task)
    for t in range(1, task.rounds + 1):
        step, total, rows = step_size(task.client_optimizer["learning_rate"], t), np.zeros_like(w), 0
        for k in present(task, len(data), t):
            X, y = data[k]
            v = w
            for batch in minibatches(task, k, len(y), t):
                v = v - step * (gradient(v, X[batch], y[batch]) + rule["mu"] * (v - w))
            total, rows = total + len(y) * v, rows + len(y)
        w = total / rows
        if task.regularizer is not None:
            pulled = sum((1 - step * rule["mu"]) ** r for r in range(rule["local_steps"]))
            threshold = task.regularizer["weight"] * pulled * step
            w = np.sign(w) * np.maximum(np.abs(w) - threshold, 0)
    return w


@covering({"mu": [0.0, 0.7], "steps": [1, 5], "tables": [{}, SOME]})
def test_the_loop(skewed: Path, mu: float, steps: int, tables: dict[str, Any]) -> None:
    task = local_job(skewed, fedprox(mu, local_steps=steps), **tables)
    np.testing.assert_allclose(played(task).model, plain_loop(task), rtol=0, atol=1e-10)


@pytest.mark.parametrize("tables", PRIVATE.values(), ids=PRIVATE)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_clipped(skewed: Path, mu: float, tables: dict[str, Any]) -> None:
    """Each record's gradient by itself, and neither the penalty nor the pull back."""
    task = local_job(skewed, fedprox(mu, local_steps=3), **SOME, **tables)
    np.testing.assert_allclose(played(task).model, plain_loop(task), rtol=0, atol=1e-10)


@pytest.mark.parametrize("numbers", ["exact", "exact-blocks"])
@pytest.mark.parametrize(
    "work", [{}, {"local_steps": 3}, {"local_epochs": 2}, {"server_optimizer": {"momentum": 0.5}}], ids=str
)
def test_without_mu_it_is_fedavg(skewed: Path, work: dict[str, Any], numbers: str) -> None:
    """Bit for bit."""
    tables: dict[str, Any] = {"compute": {"dtype": "float32"}, "aggregation": {"arithmetic": numbers}, **SOME}
    one = played(local_job(skewed, fedprox(0.0, **work), **tables)).model
    plain = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}, **work}
    other = played(local_job(skewed, plain, **tables)).model
    assert (one == other).all()
    apart = np.abs(one - played(local_job(skewed, fedprox(0.5, **work), **tables)).model).max()
    assert (apart > 1e-4) == bool({"local_steps", "local_epochs"} & set(work))  # one step begins where all are
