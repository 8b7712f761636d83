"""FedProx against a loop over clients, with all client optimizers and momentum of the server, and its limits.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: "Federated Optimization in Heterogeneous Networks"
(MLSys 2020, arXiv:1812.06127), Algorithm 2, its local problems solved by stochastic gradient steps. The loop is
`loops.averaged`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import PRIVATE, averaged, local_job, played

STEP = {"initial": 0.4, "exponent": 0.3}
SOME = {"participation": {"clients_per_round": 3}}
CLIENTS = [{}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}, {"weight_decay": 0.2}]
L1: dict[str, Any] = {"regularizer": {"name": "l1", "weight": 0.02}}
SERVERS: list[dict[str, Any]] = [
    {},
    {"learning_rate": 0.8, "momentum": 0.5},
    {"learning_rate": 0.8, "momentum": 0.5, "nesterov": True},
]


def fedprox(mu: float, **changes: Any) -> dict[str, Any]:
    return {"name": "fedprox", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}, "mu": mu, **changes}


@covering({"mu": [0.0, 0.7], "steps": [1, 5], "tables": [{}, SOME]})
def test_the_loop(skewed: Path, mu: float, steps: int, tables: dict[str, Any]) -> None:
    task = local_job(skewed, fedprox(mu, local_steps=steps), **tables)
    np.testing.assert_allclose(played(task).model, averaged(task), rtol=0, atol=1e-10)


@covering(
    {
        "client, steps, numbers": [
            (client, *how) for client in CLIENTS for how in ((1, "exact"), (1, "exact-blocks"), (3, "exact"))
        ],
        "server, more": [(server, more) for server in SERVERS for more in ({}, L1)],
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
    np.testing.assert_allclose(played(task).model, averaged(task), rtol=0, atol=1e-10)


@pytest.mark.parametrize("tables", PRIVATE.values(), ids=PRIVATE)
@pytest.mark.parametrize(("mu", "steps"), [(0.0, 3), (0.7, 3), (0.7, 1)])
def test_clipped(skewed: Path, mu: float, steps: int, tables: dict[str, Any]) -> None:
    """Each record's gradient by itself, and neither the penalty nor the pull back."""
    task = local_job(skewed, fedprox(mu, local_steps=steps), **SOME, **tables)
    np.testing.assert_allclose(played(task).model, averaged(task), rtol=0, atol=1e-10)


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
