"""HyFEM against a plain loop over clients and columns, and at its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import played
from own_columns import SGD, cells, close, descended, grid, overlapping, task, who

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
    for block, state in zip(found.ready.ranks.blocks, found.clients, strict=True):
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


def test_one_client_with_everything_is_sgd_with_memory(shared_path: Path) -> None:
    """Its w_0 is its w_1, so mu pulls to where the round began."""
    folder = grid(shared_path, "1x1")
    (cell,), job, w = cells(folder), task(folder, HYFEM), np.zeros(64)
    for t in range(1, job.rounds + 1):
        w = descended(job, cell, 0, t, w, w, 0.4)
    close(played(job).model, w)
