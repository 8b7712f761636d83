"""Hybrid FedAvg and HyFEM against plain loops over clients and columns, and at their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import Whole, descended, on_cells, task
from lengths import covering
from loops import close, played, present

RATE = {"client_optimizer": {"learning_rate": {"initial": 1.5, "exponent": 0.5, "offset": 2.0}}}
SGD, EPOCHS = ({"batch_size": 6, **RATE, **work} for work in ({"local_steps": 4}, {"local_epochs": 2}))
FEDAVG: dict[str, Any] = {"name": "hybrid-fedavg"}
HYFEM: dict[str, Any] = {"name": "hyfem", "mu": 0.4}


def hybrid_fedavg(job: Any, folder: Path) -> Any:
    """[p] w of the server: changes averaged in each column, weighted by rows."""
    held = Whole(folder).cells
    w = np.zeros(64)
    for t in range(1, job.rounds + 1):
        total, weight = np.zeros(64), np.zeros(64)
        for k in present(job, t):
            cell = held[k]
            change = descended(job, cell, k, t, w[cell.columns]) - w[cell.columns]
            total[cell.columns] += len(cell.t) * change
            weight[cell.columns] += len(cell.t)
        w = w + np.divide(total, weight, out=np.zeros(64), where=weight > 0)
    return w


@pytest.mark.parametrize(("size", "blocks"), [("1x1", 1), ("3x1", 1), ("1x4", 4), ("2x3", 3)])
def test_grids(shared_path: Path, size: str, blocks: int) -> None:
    folder, rule = on_cells(shared_path, size), FEDAVG | SGD
    expected = hybrid_fedavg(task(folder, rule), folder)
    close(played(task(folder, rule)).model, expected)
    close(played(task(folder, rule | {"combine": "feature-blocks"})).model, expected / blocks)


@covering({"loss": ["hinge", "logistic"], "some": [None, 2], "steps": [SGD, EPOCHS]})
def test_hybrid_fedavg(shared_path: Path, steps: dict[str, Any], some: int | None, loss: str) -> None:
    """Some columns are held by none of those present, and stay."""
    folder = on_cells(shared_path, "overlapping")
    job = task(folder, FEDAVG | steps, loss, some)
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
    held, mu = Whole(folder).cells, job.algorithm["mu"]
    common, own = np.zeros(64), [np.zeros(len(cell.columns)) for cell in held]
    known: set[int] = set()
    for t in range(1, job.rounds + 1):
        here = present(job, t)
        for k in here:
            own[k] = descended(job, held[k], k, t, own[k], common[held[k].columns], mu)
        known |= set(here)
        for column in range(64):
            found = [own[k][held[k].columns == column] for k in known if column in held[k].columns]
            if found:
                common[column] = np.mean(found)
    return common, own


@pytest.mark.parametrize("steps", [SGD, EPOCHS, SGD | {"mu": 0.0}], ids=["steps", "epochs", "mu = 0"])
@pytest.mark.parametrize("some", [None, 2])
def test_hyfem(shared_path: Path, steps: dict[str, Any], some: int | None) -> None:
    folder = on_cells(shared_path, "overlapping")
    job = task(folder, HYFEM | steps, some=some)
    found, (common, own) = played(job), hyfem(job, folder)
    close(found.model, common)
    for row, expected in zip(found.clients, own, strict=True):
        close(row[: len(expected), 0], expected)
