"""SCAFFOLD against its printed form, in which clients send two changes and the server keeps c.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: "SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning" (ICML 2020, arXiv:1910.06378), Algorithm 1 with option II.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from lengths import covering
from loops import PRIVATE, Played, ends, local_job, played, rows_of, start_of
from paper import make_data, step_size

from mpifed.testing import Job

STEP = {"initial": 0.4, "exponent": 0.3}
EXACT = {"rtol": 0, "atol": 1e-10}


def scaffold(**changes: Any) -> dict[str, Any]:
    return {
        "name": "scaffold",
        "batch_size": 4,
        "client_optimizer": {"learning_rate": STEP},
        "local_steps": 3,
        **changes,
    }


class Course(NamedTuple):
    """What the loop leaves."""

    x: Any  # [d]
    c: Any  # [d]
    own: Any  # [N, d]


def plain_loop(task: Job) -> Course:
    """The means over clients are by rows; that of c over all of them, present or not."""
    x, data = start_of(task), rows_of(task.data.path)
    c, own, server = np.zeros_like(x), np.zeros((len(data), len(x))), task.server_optimizer or {}
    for t in range(1, task.rounds + 1):
        step, far = step_size(task.client_optimizer["learning_rate"], t), server.get("learning_rate", 1.0)
        dx, dc, present = np.zeros_like(x), np.zeros_like(x), 0
        for i, y, rows, steps in ends(task, data, t, x, lambda i, at, c=c: c - own[i]):
            new = own[i] - c + (x - y) / (steps * step)
            dx, dc, present = dx + rows * (y - x), dc + rows * (new - own[i]), present + rows
            own[i] = new
        x = x + far * dx / present
        c = c + dc / sum(len(y) for _, y in data)
    return Course(x, c, own)


def same(found: Played, expected: Course) -> None:
    np.testing.assert_allclose(found.model, expected.x, **EXACT)
    np.testing.assert_allclose(found.server.memory, expected.c, **EXACT)
    np.testing.assert_allclose(found.kept(""), expected.own, **EXACT)


@covering({"data": ["digits", "skewed"], "steps": [1, 4], "per_round": [None, 4], "server_step": [1.0, 0.6]})
def test_the_printed_form(request: Any, data: str, steps: int, per_round: int | None, server_step: float) -> None:
    """Model, c and every c_i, those of absent clients too."""
    folder = request.getfixturevalue(data)
    participation = {} if per_round is None else {"clients_per_round": per_round}
    algorithm = scaffold(local_steps=steps, server_optimizer={"learning_rate": server_step})
    task = local_job(folder, algorithm, participation=participation, data={"path": str(folder), "block": 3})
    same(played(task), plain_loop(task))


@pytest.mark.parametrize(("epochs", "batch"), [(1, 16), (2, 100), (3, 1000)])
def test_clients_whose_steps_differ_in_number(skewed: Path, epochs: int, batch: int) -> None:
    """Each divides by its own; with whole shards as minibatches they are as many."""
    algorithm = {key: value for key, value in scaffold().items() if key != "local_steps"}
    task = local_job(
        skewed, algorithm | {"local_epochs": epochs, "batch_size": batch}, participation={"clients_per_round": 4},
        data={"path": str(skewed), "block": 3},
    )  # fmt: skip
    same(played(task), plain_loop(task))


@pytest.mark.parametrize("tables", PRIVATE.values(), ids=PRIVATE)
def test_clipped(skewed: Path, tables: dict[str, Any]) -> None:
    """Each record's gradient by itself, and neither the penalty nor the controls."""
    task = local_job(skewed, scaffold(), participation={"clients_per_round": 4}, **tables)
    same(played(task), plain_loop(task))


def test_full_batches_find_the_optimum_of_all(tmp_path_factory: Any) -> None:
    """Where FedAvg stops short of it, clients being different and local steps many."""
    folder = make_data(
        tmp_path_factory.mktemp("data") / "equal", "synthetic", "--split", "rows", "--clients", 4, "--samples", 80,
        "--features", 5,
    )  # fmt: skip
    data = rows_of(folder)
    best = np.linalg.lstsq(np.concatenate([X for X, _ in data]), np.concatenate([y for _, y in data]), rcond=None)[0]
    tables: dict[str, Any] = {"model": {"name": "least-squares", "bias": False}, "rounds": 300}
    algorithm = {"batch_size": 20, "client_optimizer": {"learning_rate": 0.05}, "local_steps": 8}
    found, plain = (played(local_job(folder, {"name": name, **algorithm}, **tables)) for name in ("scaffold", "fedavg"))
    np.testing.assert_allclose(found.model, best, rtol=0, atol=1e-9)
    assert np.abs(plain.model - best).max() > 1e-3
