"""Hybrid FedAvg and HyFEM against plain loops over clients and columns, and at their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import played, present
from own_columns import PENALTY, SGD, cells, close, descended, grid, overlapping, task

EPOCHS = {key: value for key, value in SGD.items() if key != "local_steps"} | {"local_epochs": 2}
FEDAVG: dict[str, Any] = {"name": "hybrid-fedavg"}
HYFEM: dict[str, Any] = {"name": "hyfem", "mu": 0.4}


def hybrid_fedavg(job: Any, folder: Path) -> Any:
    """[p] w of the server: changes averaged in each column, weighted by rows."""
    held = cells(folder)
    w = np.zeros(64)
    for t in range(1, job.rounds + 1):
        total, weight = np.zeros(64), np.zeros(64)
        for k in present(job, len(held), t):
            cell = held[k]
            change = descended(job, cell, k, t, w[cell.columns]) - w[cell.columns]
            for j, column in enumerate(cell.columns):
                total[column] += len(cell.t) * change[j]
                weight[column] += len(cell.t)
        w = w + np.divide(total, weight, out=np.zeros(64), where=weight > 0)
    return w


@pytest.mark.parametrize(("size", "blocks"), [("1x1", 1), ("3x1", 1), ("1x4", 4), ("2x3", 3)])
def test_grids(shared_path: Path, size: str, blocks: int) -> None:
    folder, rule = grid(shared_path, size), FEDAVG | SGD
    expected = hybrid_fedavg(task(folder, rule), folder)
    close(played(task(folder, rule)).model, expected)
    close(played(task(folder, rule | {"combine": "feature-blocks"})).model, expected / blocks)


@covering({"objective": ["hinge", "logistic"], "per_round": [None, 2], "steps": [SGD, EPOCHS]})
def test_hybrid_fedavg(shared_path: Path, steps: dict[str, Any], per_round: int | None, objective: str) -> None:
    """Some columns are held by none of those present, and stay."""
    folder = overlapping(shared_path)
    part = {} if per_round is None else {"clients_per_round": per_round}
    job = task(folder, FEDAVG | steps, participation=part, model={"name": objective, "l2": PENALTY})
    close(played(job).model, hybrid_fedavg(job, folder))


@pytest.mark.parametrize("steps", [{"local_steps": 3}, {"local_epochs": 1}], ids=str)
def test_with_whole_rows_it_is_fedavg(skewed: Path, steps: dict[str, int]) -> None:
    rate = {"learning_rate": {"initial": 0.5, "exponent": 0.5}}
    algorithm = {"name": "fedavg", "batch_size": 7, "client_optimizer": rate, **steps}
    changes: dict[str, Any] = {
        "model": {"name": "softmax", "bias": False, "l2": 1e-3}, "participation": {"clients_per_round": 5},
    }  # fmt: skip
    expected = played(task(skewed, algorithm, **changes)).model
    for combine in ("overlaps", "feature-blocks"):
        close(played(task(skewed, algorithm | FEDAVG | {"combine": combine}, **changes)).model, expected)


def hyfem(job: Any, folder: Path) -> tuple[Any, list[Any]]:
    """(w_0 [p], every client's w_k): the mean in each column of the last w_k known."""
    held, mu = cells(folder), job.algorithm["mu"]
    common, own = np.zeros(64), [np.zeros(len(cell.columns)) for cell in held]
    known: set[int] = set()
    for t in range(1, job.rounds + 1):
        here = present(job, len(held), t)
        for k in here:
            own[k] = descended(job, held[k], k, t, own[k], common[held[k].columns], mu)
        known |= set(here)
        for column in range(64):
            found = [own[k][held[k].columns == column] for k in known if column in held[k].columns]
            if found:
                common[column] = np.mean(found)
    return common, own


@pytest.mark.parametrize("steps", [SGD, EPOCHS, SGD | {"mu": 0.0}], ids=["steps", "epochs", "mu = 0"])
@pytest.mark.parametrize("per_round", [None, 2])
def test_hyfem(shared_path: Path, steps: dict[str, Any], per_round: int | None) -> None:
    folder = overlapping(shared_path)
    job = task(folder, HYFEM | steps, participation={} if per_round is None else {"clients_per_round": per_round})
    found, (common, own) = played(job), hyfem(job, folder)
    close(found.model, common)
    for row, expected in zip(found.clients, own, strict=True):
        close(row[: len(expected), 0], expected)
