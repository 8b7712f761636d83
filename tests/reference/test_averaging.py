"""Methods with another broadcast or server's step than FedAvg's: where they are FedAvg, and where they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import local_job, played
from whole_runs import run

from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.testing import Solo, rounds

STEPS: dict[str, Any] = {"batch_size": 4, "local_steps": 3, "client_optimizer": {"learning_rate": 0.2}}
SOME = {"participation": {"clients_per_round": 4}}

STRONGLY: dict[str, Any] = {"model": {"name": "softmax", "bias": False, "l2": 0.1}}  # convex


@pytest.mark.parametrize(("some", "count"), [({}, 4), (SOME, 600)], ids=["all", "some"])
def test_fedvarp_comes_to_where_fedavg_does_with_all_clients(skewed: Path, some: dict[str, Any], count: int) -> None:
    """Three full gradients a round on unequal shards, whose limit is not the optimum."""
    steps = STEPS | {"batch_size": 1000, "client_optimizer": {"learning_rate": 0.5}}
    job = {"rounds": count, **STRONGLY}
    varp = played(local_job(skewed, {"name": "fedvarp", **steps}, **job, **some))
    plain = played(local_job(skewed, {"name": "fedavg", **steps}, **job))
    np.testing.assert_allclose(varp.model, plain.model, rtol=0, atol=1e-8)
    weight = (sizes := open_federation(skewed).counts) / sizes.mean()
    np.testing.assert_allclose(varp.server.memory, (weight[:, None] * varp.kept("")).mean(axis=0), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["fedcm", "mime-lite", "fedvarp"])
def test_with_a_regularizer_it_rests_at_the_optimum(skewed: Path, name: str) -> None:
    """With one full gradient a round. With another prox step than the gradient's the residual stays at 1."""
    one = {"name": name, "batch_size": 1000, "client_optimizer": {"learning_rate": 0.5}}
    job = local_job(skewed, one, regularizer={"name": "l1", "weight": 0.02}, rounds=300, **STRONGLY)
    *_, last = rounds(job, measured=300)
    assert last.columns["kkt_residual"] is not None
    assert last.columns["kkt_residual"] < 1e-3


def test_rows_of_whole_gradients_are_counted(skewed: Path, tmp_path: Path) -> None:
    counted = {}
    for name in ("fedavg", "mime-lite"):
        run(local_job(skewed, {"name": name, **STEPS}, record={"evaluate_every": 1}), Solo(), tmp_path / name)
        counted[name] = read_history(tmp_path / name)["gradients"]
    rows = open_federation(skewed).counts.sum() * np.arange(5)
    assert (counted["mime-lite"] - counted["fedavg"] == rows).all()
