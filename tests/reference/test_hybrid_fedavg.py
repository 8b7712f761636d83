"""Hybrid FedAvg against a plain loop over clients and columns, and at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import played
from own_columns import PENALTY, SGD, cells, close, descended, grid, overlapping, task, who
from paper import make_data
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.run.setup import prepare
from mpifed.shards.store import open_federation
from mpifed.testing import Alone

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


def test_feature_blocks_are_the_holders_of_a_sample(shared_path: Path) -> None:
    folder = overlapping(shared_path)
    held = cells(folder)
    mean = sum(len(cell.t) for cell in held) / len({row for cell in held for row in cell.rows.tolist()})
    one, two = (played(task(folder, FEDAVG | {"combine": kind})).model for kind in ("overlaps", "feature-blocks"))
    close(two * mean, one)


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


@pytest.mark.parametrize("name", ["hybrid-fedavg", "hyfem"])
def test_sparse_rows_give_what_dense_ones_give(tmp_path: Path, name: str) -> None:
    """Columns that no row drawn touches shrink all the same."""
    rng = np.random.default_rng(1)
    X = np.where(rng.random((40, 30)) < 0.08, rng.normal(size=(40, 30)), 0.0)
    X[:, 0] = 1.0
    lines = [
        f"{y} " + " ".join(f"{j + 1}:{x:.17g}" for j, x in enumerate(row) if x) for y, row in enumerate(X, 1) if y % 2
    ]
    lines = [f"{i % 2} {line.split(' ', 1)[1]}" for i, line in enumerate(lines)]
    (tmp_path / "rows.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
    algorithm = {"name": name, "batch_size": 2, "client_optimizer": {"learning_rate": 0.5}, "local_steps": 3} | (
        {"mu": 0.3} if name == "hyfem" else {}
    )
    models = []
    for kind in ("dense", "sparse"):
        folder = make_data(
            tmp_path / kind, "svmlight", tmp_path / "rows.svm", "--split", "grid", "--grid", "2x2", f"--{kind}"
        )
        assert open_federation(folder).shard(0, in_memory=True).sparse == (kind == "sparse")
        models.append(played(task(folder, algorithm)).model)
    assert (np.abs(models[0]) > 1e-3).sum() > 10
    close(models[1], models[0])


def test_it_learns_where_nobody_has_whole_rows(shared_path: Path, tmp_path: Path) -> None:
    """Loss and objective are those of the whole scores; blocks change their size, and so no prediction."""
    folder, last = grid(shared_path, "1x4"), {}
    for combine in ("overlaps", "feature-blocks"):
        job = task(
            folder, FEDAVG | {"local_steps": 20, "combine": combine}, rounds=30,
            record={"evaluate_every": 30, "checkpoint_every": 0},
        )  # fmt: skip
        result = run(job, Alone(), tmp_path / combine)
        assert result is not None
        last[combine] = result.columns
    X = np.concatenate([cell.X for cell in cells(folder)], axis=1)
    t, w = cells(folder)[0].t, result.model.first[:, 0]
    loss = np.maximum(0, 1 - t * (X @ w)).mean()
    assert last["feature-blocks"]["train_loss"] == pytest.approx(loss, rel=1e-9)
    assert last["feature-blocks"]["objective"] == pytest.approx(loss + PENALTY * (w @ w), rel=1e-9)
    assert last["feature-blocks"]["objective"] < 1 and last["overlaps"]["objective"] < 1  # 1 is that of no model
    assert last["feature-blocks"]["test_accuracy"] == last["overlaps"]["test_accuracy"] > 0.75


@pytest.mark.parametrize("name", ["hybrid-fedavg", "hyfem"])
@pytest.mark.parametrize(
    ("algorithm", "objective", "message"),
    [
        ({}, {"name": "mlp", "bias": False}, r"\[model\] name: MLP has parameters that belong to no column"),
        ({}, {"name": "softmax", "bias": True}, r"\[model\] bias = true: \".*\" has no intercepts"),
        ({"local_epochs": 2}, {}, r"\[algorithm\] local_steps and local_epochs"),
    ],
)
def test_what_does_not_fit(
    shared_path: Path, name: str, algorithm: dict[str, Any], objective: dict[str, Any], message: str
) -> None:
    own = {"name": name, **SGD, **({"mu": 1.0} if name == "hyfem" else {}), **algorithm}
    model = {"name": "hinge", "bias": False, "l2": PENALTY} | objective
    with pytest.raises(UsageError, match=message):
        prepare(task(grid(shared_path, "2x3"), own, model=model), Alone())
