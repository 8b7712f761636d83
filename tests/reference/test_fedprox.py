"""FedProx against a loop over clients, with all optimizers of clients and server, and its limits.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks"
(MLSys 2020, arXiv:1812.06127), Algorithm 2, its local problems solved by stochastic gradient steps; of adaptive servers
S. Reddi et al.: "Adaptive Federated Optimization" (ICLR 2021, arXiv:2003.00295), Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable
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
CLIENTS = [{}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}, {"weight_decay": 0.2}]
ADAPTIVE = {"learning_rate": 0.1, "beta1": 0.7, "tau": 0.05}
L1: dict[str, Any] = {"regularizer": {"name": "l1", "weight": 0.02}}
SERVERS: list[dict[str, Any]] = [
    {},
    {"learning_rate": 0.8, "momentum": 0.5},
    {"learning_rate": 0.8, "momentum": 0.5, "nesterov": True},
    {"name": "adam", "beta2": 0.9, **ADAPTIVE},
    {"name": "yogi", "beta2": 0.9, **ADAPTIVE},
    {"name": "adagrad", **ADAPTIVE},
]


def fedprox(mu: float, **changes: Any) -> dict[str, Any]:
    return {"name": "fedprox", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}, "mu": mu, **changes}


def moved(server: dict[str, Any], m: Any, v: Any, D: Any) -> tuple[Any, Any, Any]:
    """m, v, and how far the server goes."""
    rate, momentum = server.get("learning_rate", 1.0), server.get("momentum", 0.0)
    if "name" not in server:
        m = momentum * m + D
        return m, v, rate * (D + momentum * m if "nesterov" in server else m)
    m = server["beta1"] * m + (1 - server["beta1"]) * D
    if server["name"] == "adagrad":
        v = v + D**2
    elif server["name"] == "adam":
        v = server["beta2"] * v + (1 - server["beta2"]) * D**2
    else:
        v = v - (1 - server["beta2"]) * D**2 * np.sign(v - D**2)
    return m, v, rate * m / (np.sqrt(v) + server["tau"])


def walked(task: Job, start: Any, step: float, slopes: list[Callable[[Any], Any]]) -> Any:
    """Where steps from `start` end."""
    client, mu = task.client_optimizer, task.algorithm["mu"]
    v, velocity, momentum = start, np.zeros_like(start), client.get("momentum", 0.0)
    for slope in slopes:
        down = slope(v) + mu * (v - start)
        velocity = momentum * velocity + down
        v = v - step * (down + momentum * velocity if "nesterov" in client else velocity)
    return v


def plain_loop(task: Job, outputs: int = 10) -> Any:
    """min F_k(v) + mu/2 ||v - w||^2 by SGD; the models averaged by rows. With l1: proximal."""
    data, gradient, server = rows_of(task.data.path), gradient_of(task, outputs), task.server_optimizer or {}
    decay, penalized = task.client_optimizer.get("weight_decay", 0.0), data[0][0].shape[1] * outputs
    w = start_of(task)
    m, square = np.zeros_like(w), np.full_like(w, server.get("tau", 0.0) ** 2)
    for t in range(1, task.rounds + 1):
        step, total, rows = step_size(task.client_optimizer["learning_rate"], t), np.zeros_like(w), 0
        for k in present(task, len(data), t):
            X, y = data[k]
            slopes = [
                lambda v, X=X[batch], y=y[batch]: gradient(v, X, y) + decay * v
                for batch in minibatches(task, k, len(y), t)
            ]
            total, rows = total + len(y) * walked(task, w, step, slopes), rows + len(y)
        m, square, move = moved(server, m, square, total / rows - w)
        before, w = w, w + move
        if task.regularizer is not None:  # its prox goes as far as a constant gradient, and the velocity knows of it
            (away,) = -walked(task, np.zeros(1), step, [lambda v: 1.0] * task.algorithm["local_steps"])
            rate, momentum = server.get("learning_rate", 1.0), server.get("momentum", 0.0)
            threshold = task.regularizer["weight"] * rate * (1 + momentum * ("nesterov" in server)) * away
            w[:penalized] = np.sign(w[:penalized]) * np.maximum(np.abs(w[:penalized]) - threshold, 0)
            m = (w - before) / rate
    return w


@covering({"mu": [0.0, 0.7], "steps": [1, 5], "tables": [{}, SOME]})
def test_the_loop(skewed: Path, mu: float, steps: int, tables: dict[str, Any]) -> None:
    task = local_job(skewed, fedprox(mu, local_steps=steps), **tables)
    np.testing.assert_allclose(played(task).model, plain_loop(task), rtol=0, atol=1e-10)


@covering(
    {
        "client, steps, numbers": [
            (client, *how) for client in CLIENTS for how in ((1, "exact"), (1, "exact-blocks"), (3, "exact"))
        ],
        "server, more": [*((server, {}) for server in SERVERS), *((server, L1) for server in SERVERS[:3])],
    },
    1,
)
def test_optimizers(
    skewed: Path, client: dict[str, Any], steps: int, numbers: str, server: dict[str, Any], more: dict[str, Any]
) -> None:
    """With all penalties; one step also where the changes of many clients are one product."""
    task = local_job(
        skewed,
        fedprox(0.7, local_steps=steps, client_optimizer={"learning_rate": STEP, **client}, server_optimizer=server),
        model={"name": "softmax", "bias": True, "l2": 1e-2, "nonconvex_penalty": 0.05},
        aggregation={"arithmetic": numbers}, **SOME, **more,
    )  # fmt: skip
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
