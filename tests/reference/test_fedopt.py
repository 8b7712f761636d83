"""FedAdam, FedYogi and FedAdagrad against Algorithm 2 as printed: m starts at 0, v at tau^2, and neither is corrected.

S. Reddi et al.: "Adaptive Federated Optimization" (ICLR 2021, arXiv:2003.00295).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import ends, local_job, played, rows_of, start_of
from paper import step_size

from mpifed.testing import Job

STEP = {"initial": 0.4, "exponent": 0.3}
EXACT = {"rtol": 0, "atol": 1e-9}
SECOND = {
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * np.sign(v - square),
    "adagrad": lambda v, square, beta2: v + square,
}


def plain_loop(task: Job, name: str, beta1: float, beta2: float, tau: float) -> tuple[Any, Any, Any]:
    """(x, m, v) after all rounds; the mean over clients is by rows."""
    x, data = start_of(task), rows_of(task.data.path)
    m, v, server = np.zeros_like(x), np.full_like(x, tau**2), task.server_optimizer or {}
    for t in range(1, task.rounds + 1):
        found = list(ends(task, data, t, x))
        mean = sum(end.rows * (end.model - x) for end in found) / sum(end.rows for end in found)
        m, v = beta1 * m + (1 - beta1) * mean, SECOND[name](v, mean**2, beta2)
        x = x + step_size(server["learning_rate"], t) * m / (np.sqrt(v) + tau)
    return x, m, v


@pytest.mark.parametrize("work", [{"local_steps": 1}, {"local_steps": 3}, {"local_epochs": 1}], ids=str)
@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("given", [{}, {"beta1": 0.5, "tau": 0.05}], ids=str)
def test_the_printed_form(skewed: Path, name: str, given: dict[str, float], work: dict[str, int]) -> None:
    algorithm = {"name": "fedavg", "batch_size": 8, "client_optimizer": {"learning_rate": STEP}, **work}
    server = {"name": name, "learning_rate": {"initial": 0.1, "exponent": 0.5}, **given}
    task = local_job(
        skewed, algorithm, server_optimizer=server, participation={"clients_per_round": 5},
        data={"path": str(skewed), "block": 3},
    )  # fmt: skip
    settings = {"beta1": 0.0 if name == "adagrad" else 0.9, "beta2": 0.99, "tau": 1e-3, **given}
    found, expected = played(task), plain_loop(task, name, **settings)
    for one, other in zip((found.model, *found.server.optimizer), expected, strict=True):
        np.testing.assert_allclose(one, other, **EXACT)
