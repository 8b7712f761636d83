"""HyFEM against a plain loop over clients and columns, and at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import played
from own_columns import PENALTY, SGD, cells, close, descended, grid, overlapping, task, who
from whole_runs import run

from mpifed.core.errors import UsageError
from mpifed.run.setup import prepare
from mpifed.testing import Alone

HYFEM = {"name": "hyfem", "mu": 0.4, **SGD}
EPOCHS = {key: value for key, value in HYFEM.items() if key != "local_steps"} | {"local_epochs": 2}


def plain_loop(job: Any, folder: Path) -> tuple[Any, list[Any]]:
    """(w_0 [p], every client's w_k): the mean in each column of the last w_k known."""
    held, mu = cells(folder), job.algorithm["mu"]
    common, own = np.zeros(64), [np.zeros(len(cell.columns)) for cell in held]
    known: set[int] = set()
    for t in range(1, job.rounds + 1):
        here = who(job, len(held), t)
        for k in here:
            own[k] = descended(job, held[k], k, t, own[k], common[held[k].columns], mu)
        known |= set(here)
        for column in range(64):
            found = [own[k][held[k].columns == column] for k in known if column in held[k].columns]
            if found:
                common[column] = np.mean(found)
    return common, own


def kept(found: Any) -> list[Any]:
    """Every client's w_k, by the product."""
    models: dict[int, Any] = {}
    for block, state in zip(found.ready.aggregator.blocks, found.clients, strict=True):
        for shard, row in zip(block.shards, state.first, strict=True):
            models[shard.client] = row[: shard.features, 0]
    return [models[k] for k in sorted(models)]


@pytest.mark.parametrize("algorithm", [HYFEM, EPOCHS, HYFEM | {"mu": 0.0}], ids=["steps", "epochs", "mu = 0"])
@pytest.mark.parametrize("per_round", [None, 2])
def test_overlapping_rectangles(shared_path: Path, algorithm: dict[str, Any], per_round: int | None) -> None:
    folder = overlapping(shared_path)
    job = task(folder, algorithm, participation={} if per_round is None else {"clients_per_round": per_round})
    found, (common, own) = played(job), plain_loop(job, folder)
    close(found.model, common)
    for one, expected in zip(kept(found), own, strict=True):
        close(one, expected)


@pytest.mark.parametrize("size", ["1x1", "3x1", "1x4", "2x3"])
def test_grids(shared_path: Path, size: str) -> None:
    folder = grid(shared_path, size)
    job = task(folder, HYFEM, model={"name": "logistic", "bias": False, "l2": PENALTY})
    close(played(job).model, plain_loop(job, folder)[0])


def test_one_client_with_everything_is_sgd_with_memory(shared_path: Path) -> None:
    """Its w_0 is its w_1, so mu pulls to where the round began."""
    folder = grid(shared_path, "1x1")
    (cell,), job, w = cells(folder), task(folder, HYFEM), np.zeros(64)
    for t in range(1, job.rounds + 1):
        w = descended(job, cell, 0, t, w, w, 0.4)
    close(played(job).model, w)


def test_without_mu_nobody_knows_of_the_others(shared_path: Path) -> None:
    folder = grid(shared_path, "2x3")
    held, job = cells(folder), task(folder, HYFEM | {"mu": 0.0})
    own = [np.zeros(len(cell.columns)) for cell in held]
    for t in range(1, job.rounds + 1):
        own = [descended(job, cell, k, t, w) for k, (cell, w) in enumerate(zip(held, own, strict=True))]
    for one, expected in zip(kept(played(job)), own, strict=True):
        close(one, expected)


def test_it_learns(shared_path: Path, tmp_path: Path) -> None:
    job = task(
        grid(shared_path, "2x3"), HYFEM | {"local_steps": 20}, rounds=20,
        record={"evaluate_every": 10, "checkpoint_every": 0},
        participation={"clients_per_round": 3},
    )  # fmt: skip
    result = run(job, Alone(), tmp_path / "run")
    assert result is not None
    assert result.columns["objective"] < 1  # that of no model
    assert result.columns["test_accuracy"] > 0.7


def test_steps_that_diverge_are_refused(shared_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[algorithm\] mu = 9: with a step of 0.5 .* by -3.51, and so diverges"):
        prepare(task(grid(shared_path, "2x3"), HYFEM | {"mu": 9.0}), Alone())
