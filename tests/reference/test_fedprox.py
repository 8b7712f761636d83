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
from paper import make_data, step_size

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
    np.testing.assert_allclose(played(task).model, plain_loop(task), rtol=0, atol=1e-12)


def test_concave_penalty_and_l1(skewed: Path) -> None:
    tables = {
        "model": {"name": "softmax", "bias": False, "nonconvex_penalty": 0.2},
        "regularizer": {"name": "l1", "weight": 0.01},
    }
    task = local_job(skewed, fedprox(0.7, local_steps=3), **tables)
    expected = plain_loop(task)
    np.testing.assert_allclose(played(task).model, expected, rtol=0, atol=1e-12)
    assert (expected == 0).sum() > 100


@pytest.mark.parametrize("tables", PRIVATE.values(), ids=PRIVATE)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_clipped(skewed: Path, mu: float, tables: dict[str, Any]) -> None:
    """Each record's gradient by itself, and neither the penalty nor the pull back."""
    task = local_job(skewed, fedprox(mu, local_steps=3), **SOME, **tables)
    np.testing.assert_allclose(played(task).model, plain_loop(task), rtol=0, atol=1e-12)


@pytest.mark.parametrize("numbers", ["exact", "float"])
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


@pytest.mark.parametrize("mu", [3.0, pytest.param(0.0, marks=pytest.mark.long)])
def test_local_steps_on_different_data_have_a_fixed_point_of_their_own(tmp_path_factory: Any, mu: float) -> None:
    """E steps on quadratics A_k with optima w_k: sum (I - M_k^E)(A_k + mu)^-1 A_k (w - w_k) = 0, M = I - h (A + mu)."""
    folder = make_data(
        tmp_path_factory.mktemp("data") / "equal", "synthetic", "--split", "rows", "--clients", 4, "--samples", 80,
        "--features", 5,
    )  # fmt: skip
    E, h, left, right = 6, 0.2, np.zeros((5, 5)), np.zeros(5)
    for X, y in rows_of(folder):
        A, bent = X.T @ X / len(y), X.T @ X / len(y) + mu * np.eye(5)
        pull = (np.eye(5) - np.linalg.matrix_power(np.eye(5) - h * bent, E)) @ np.linalg.solve(bent, A)
        left, right = left + pull, right + pull @ np.linalg.solve(A, X.T @ y / len(y))
    algorithm = {
        "name": "fedprox",
        "batch_size": 20,
        "client_optimizer": {"learning_rate": h},
        "mu": mu,
        "local_steps": E,
    }
    found = played(local_job(folder, algorithm, rounds=150, model={"name": "least-squares", "bias": False})).model
    np.testing.assert_allclose(found, np.linalg.solve(left, right), rtol=0, atol=1e-10)
