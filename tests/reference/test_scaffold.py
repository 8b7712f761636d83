"""SCAFFOLD finds the optimum of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from loops import local_job, played, rows_of
from paper import make_data


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
