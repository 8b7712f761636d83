"""Hybrid FedAvg against a plain loop over clients and columns, and at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import played
from own_columns import PENALTY, SGD, cells, close, descended, grid, overlapping, task, who

FEDAVG = {"name": "hybrid-fedavg", **SGD}
EPOCHS = {key: value for key, value in FEDAVG.items() if key != "local_steps"} | {"local_epochs": 2}


def plain_loop(job: Any, folder: Path) -> Any:
    """[p] w of the server: changes averaged in each column, weighted by rows."""
    held = cells(folder)
    w = np.zeros(64)
    for t in range(1, job.rounds + 1):
        total, weight = np.zeros(64), np.zeros(64)
        for k in who(job, len(held), t):
            cell = held[k]
            change = descended(job, cell, k, t, w[cell.columns]) - w[cell.columns]
            for j, column in enumerate(cell.columns):
                total[column] += len(cell.t) * change[j]
                weight[column] += len(cell.t)
        w = w + np.divide(total, weight, out=np.zeros(64), where=weight > 0)
    return w


@pytest.mark.parametrize(("size", "blocks"), [("1x1", 1), ("3x1", 1), ("1x4", 4), ("2x3", 3)])
def test_grids(shared_path: Path, size: str, blocks: int) -> None:
    folder = grid(shared_path, size)
    expected = plain_loop(task(folder, FEDAVG), folder)
    close(played(task(folder, FEDAVG)).model, expected)
    close(played(task(folder, FEDAVG | {"combine": "feature-blocks"})).model, expected / blocks)


@covering({"objective": ["hinge", "logistic"], "per_round": [None, 2], "algorithm": [FEDAVG, EPOCHS]})
def test_overlapping_rectangles(
    shared_path: Path, algorithm: dict[str, Any], per_round: int | None, objective: str
) -> None:
    """Some columns are held by none of those present, and stay."""
    folder = overlapping(shared_path)
    part = {} if per_round is None else {"clients_per_round": per_round}
    job = task(folder, algorithm, participation=part, model={"name": objective, "l2": PENALTY})
    close(played(job).model, plain_loop(job, folder))


@pytest.mark.parametrize("work", [{"local_steps": 3}, {"local_epochs": 1}], ids=str)
def test_with_whole_rows_it_is_fedavg(skewed: Path, work: dict[str, int]) -> None:
    algorithm = {
        "name": "fedavg",
        "batch_size": 7,
        "client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.5}},
        **work,
    }
    changes: dict[str, Any] = {
        "model": {"name": "softmax", "bias": False, "l2": 1e-3}, "participation": {"clients_per_round": 5},
    }  # fmt: skip
    expected = played(task(skewed, algorithm, **changes)).model
    for combine in ("overlaps", "feature-blocks"):
        own = algorithm | {"name": "hybrid-fedavg", "combine": combine}
        close(played(task(skewed, own, **changes)).model, expected)
